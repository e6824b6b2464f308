// The device's random number generator.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <optional>

#include "aten/delegate_target.h"
#include "atlas/random.h"

namespace hologram::aten {

class HologramGenerator final : public c10::GeneratorImpl {
 public:
  // Draws from the source of the device's default generator, or from one of its own.
  HologramGenerator(c10::DeviceIndex device, RandomSource& source);
  HologramGenerator(c10::DeviceIndex device, const RandomState& state);

  void set_current_seed(uint64_t seed) override;
  // Of counters, each of which gives four words of 32 bits.
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  // 16 bytes, as of torch's CUDA generators: the seed and the offset. Throws RuntimeError for
  // another size, and TypeError for what is no CPU tensor of bytes.
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  RandomSource& source() const { return source_; }

 private:
  HologramGenerator* clone_impl() const override;

  std::optional<RandomSource> own_;
  RandomSource& source_;
};

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator make_generator(c10::DeviceIndex device);

// What an operator on a device is to draw from: `generator`, or the device's default one. Throws
// RuntimeError for a generator of another device, in torch's words.
RandomSource& random_source(const std::optional<at::Generator>& generator, c10::DeviceIndex device);

// The same for a kernel of torch's: a generator of the target for this one call, whose numbers
// depend on the state and on nothing else. Takes kCpuCounters of it, or one where the target is not
// the CPU.
at::Generator kernel_generator(const DelegateTarget& target,
                               const std::optional<at::Generator>& generator,
                               c10::DeviceIndex device);

}  // namespace hologram::aten

// The device's random number generator.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <optional>

#include "atlas/random.h"

namespace hologram::aten {

// torch's CPU generator as an engine of a device's random numbers: a delegated random operator
// gives the very numbers torch's CPU gives for the same seed, without touching the CPU's default
// generator.
class CpuEngine final : public RandomSource::Engine {
 public:
  CpuEngine();
  void load(const RandomState& state) override;
  void save(RandomState& state) const override;
  const at::Generator& generator() const { return generator_; }

 private:
  at::Generator generator_;
};

class HologramGenerator final : public c10::GeneratorImpl {
 public:
  // Draws from the stream of the device's default generator, or from a stream of its own.
  HologramGenerator(c10::DeviceIndex device, RandomSource& stream);
  HologramGenerator(c10::DeviceIndex device, const RandomState& state);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  // The format is that of torch's CPU generators.
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  // What torch's CPU kernels draw from to draw from this one.
  const at::Generator& cpu() const;

 private:
  HologramGenerator* clone_impl() const override;

  std::optional<RandomSource> own_;
  RandomSource& stream_;
  mutable CpuEngine engine_;
};

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator make_generator(c10::DeviceIndex device);

// The CPU generator a CPU kernel is to draw from: that of `generator`, or of the device's default.
// Throws RuntimeError for a generator of another device, in torch's words.
at::Generator cpu_generator(const std::optional<at::Generator>& generator, c10::DeviceIndex device);

}  // namespace hologram::aten

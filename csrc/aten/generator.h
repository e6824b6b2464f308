// The device's random number generator.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

namespace hologram::aten {

// Draws come from a CPU generator held inside, so a delegated random operator gives the very
// numbers torch's CPU gives for the same seed, without touching the CPU's default generator.
class HologramGenerator final : public c10::GeneratorImpl {
 public:
  HologramGenerator(c10::DeviceIndex device, at::Generator cpu);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }
  const at::Generator& cpu() const { return cpu_; }

 private:
  HologramGenerator* clone_impl() const override;
  at::Generator cpu_;
};

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator make_generator(c10::DeviceIndex device);

// The CPU generator a CPU kernel is to draw from: that of `generator`, or of the device's default.
// Throws RuntimeError for a generator of another device, in torch's words.
at::Generator cpu_generator(const std::optional<at::Generator>& generator, c10::DeviceIndex device);

}  // namespace hologram::aten

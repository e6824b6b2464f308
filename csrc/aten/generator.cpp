#include "aten/precompiled.h"

#include "aten/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <deque>
#include <mutex>

#include "aten/runtime.h"
#include "atlas/device.h"

namespace hologram::aten {
namespace {

// at::Generator::mutex() is not const.
std::mutex& mutex_of(const at::Generator& generator) {
  return generator.unsafeGetGeneratorImpl()->mutex_;
}

}  // namespace

HologramGenerator::HologramGenerator(c10::DeviceIndex device, at::Generator cpu)
    : c10::GeneratorImpl(c10::Device(kHologram, device),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      cpu_(std::move(cpu)) {}

// The inner generator's own mutex guards its engine: kernels lock that one.
void HologramGenerator::set_current_seed(uint64_t seed) {
  std::lock_guard<std::mutex> lock(cpu_.mutex());
  cpu_.set_current_seed(seed);
}
void HologramGenerator::set_offset(uint64_t offset) {
  std::lock_guard<std::mutex> lock(cpu_.mutex());
  cpu_.set_offset(offset);
}
uint64_t HologramGenerator::get_offset() const {
  std::lock_guard<std::mutex> lock(mutex_of(cpu_));
  return cpu_.get_offset();
}
uint64_t HologramGenerator::current_seed() const {
  std::lock_guard<std::mutex> lock(mutex_of(cpu_));
  return cpu_.current_seed();
}
uint64_t HologramGenerator::seed() {
  std::lock_guard<std::mutex> lock(cpu_.mutex());
  return cpu_.seed();
}
void HologramGenerator::set_state(const c10::TensorImpl& state) {
  std::lock_guard<std::mutex> lock(cpu_.mutex());
  cpu_.unsafeGetGeneratorImpl()->set_state(state);
}
c10::intrusive_ptr<c10::TensorImpl> HologramGenerator::get_state() const {
  std::lock_guard<std::mutex> lock(mutex_of(cpu_));
  return cpu_.unsafeGetGeneratorImpl()->get_state();
}
HologramGenerator* HologramGenerator::clone_impl() const {
  std::lock_guard<std::mutex> lock(mutex_of(cpu_));
  return new HologramGenerator(device_.index(), cpu_.clone());
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  device = check_device(device);
  // Leaked on purpose; a deque keeps references valid while devices are added.
  static auto* generators = [] {
    auto* made = new std::deque<at::Generator>();
    for (int index = 0; index < hologram::device_count(); ++index) {
      made->push_back(at::make_generator<HologramGenerator>(
          static_cast<c10::DeviceIndex>(index),
          at::detail::createCPUGenerator(c10::default_rng_seed_val)));
    }
    return made;
  }();
  return (*generators)[static_cast<size_t>(device)];
}

at::Generator make_generator(c10::DeviceIndex device) {
  return at::make_generator<HologramGenerator>(
      check_device(device), at::detail::createCPUGenerator(c10::default_rng_seed_val));
}

at::Generator cpu_generator(const std::optional<at::Generator>& generator,
                            c10::DeviceIndex device) {
  if (!generator || !generator->defined()) {
    return static_cast<HologramGenerator*>(default_generator(device).unsafeGetGeneratorImpl())
        ->cpu();
  }
  TORCH_CHECK(generator->device().type() == kHologram,
              "Expected a 'hologram' device type for generator but found '", generator->device(),
              "'");
  TORCH_CHECK(generator->device().index() == device,
              "Expected a generator on hologram:", static_cast<int>(device), " but found one on ",
              generator->device());
  return static_cast<HologramGenerator*>(generator->unsafeGetGeneratorImpl())->cpu();
}

}  // namespace hologram::aten

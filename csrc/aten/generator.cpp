#include "aten/precompiled.h"

#include "aten/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>
#include <vector>

#include "aten/runtime.h"
#include "atlas/device.h"

namespace hologram::aten {
namespace {

at::CPUGeneratorImpl* impl_of(const at::Generator& generator) {
  return static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
}

}  // namespace

CpuEngine::CpuEngine() : generator_(at::detail::createCPUGenerator()) {}

void CpuEngine::load(const RandomState& state) {
  at::mt19937 engine;
  engine.set_data(
      {state.seed, static_cast<int>(state.left), /*seeded_=*/true, state.next, state.words});
  at::CPUGeneratorImpl* impl = impl_of(generator_);
  const std::lock_guard lock(impl->mutex_);
  impl->set_engine(engine);
  impl->set_next_float_normal_sample(state.float_normal);
  impl->set_next_double_normal_sample(state.double_normal);
}

void CpuEngine::save(RandomState& state) const {
  at::CPUGeneratorImpl* impl = impl_of(generator_);
  const std::lock_guard lock(impl->mutex_);
  const at::mt19937_data_pod data = impl->engine().data();
  state.seed = data.seed_;
  state.words = data.state_;
  state.next = data.next_;
  state.left = static_cast<uint32_t>(data.left_);
  state.float_normal = impl->next_float_normal_sample();
  state.double_normal = impl->next_double_normal_sample();
}

HologramGenerator::HologramGenerator(c10::DeviceIndex device, RandomSource& stream)
    : c10::GeneratorImpl(c10::Device(kHologram, device),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      stream_(stream) {}

HologramGenerator::HologramGenerator(c10::DeviceIndex device, const RandomState& state)
    : c10::GeneratorImpl(c10::Device(kHologram, device),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      own_(std::in_place, state),
      stream_(*own_) {}

const at::Generator& HologramGenerator::cpu() const {
  stream_.lend(engine_);
  return engine_.generator();
}

// The engine's own mutex guards it: kernels lock that one.
void HologramGenerator::set_current_seed(uint64_t seed) {
  at::Generator engine = cpu();
  const std::lock_guard lock(engine.mutex());
  engine.set_current_seed(seed);
}
void HologramGenerator::set_offset(uint64_t offset) {
  at::Generator engine = cpu();
  const std::lock_guard lock(engine.mutex());
  engine.set_offset(offset);
}
uint64_t HologramGenerator::get_offset() const {
  at::Generator engine = cpu();
  const std::lock_guard lock(engine.mutex());
  return engine.get_offset();
}
uint64_t HologramGenerator::current_seed() const {
  at::Generator engine = cpu();
  const std::lock_guard lock(engine.mutex());
  return engine.current_seed();
}
uint64_t HologramGenerator::seed() {
  at::Generator engine = cpu();
  const std::lock_guard lock(engine.mutex());
  return engine.seed();
}
void HologramGenerator::set_state(const c10::TensorImpl& state) {
  at::Generator engine = cpu();
  const std::lock_guard lock(engine.mutex());
  impl_of(engine)->set_state(state);
}
c10::intrusive_ptr<c10::TensorImpl> HologramGenerator::get_state() const {
  at::Generator engine = cpu();
  const std::lock_guard lock(engine.mutex());
  return impl_of(engine)->get_state();
}
HologramGenerator* HologramGenerator::clone_impl() const {
  return new HologramGenerator(device_.index(), stream_.state());
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  device = check_device(device);
  // Leaked on purpose.
  static auto* generators = [] {
    auto* made = new std::vector<at::Generator>();
    for (int index = 0; index < hologram::device_count(); ++index) {
      made->push_back(at::make_generator<HologramGenerator>(static_cast<c10::DeviceIndex>(index),
                                                            default_random_source(index)));
    }
    return made;
  }();
  return (*generators)[static_cast<size_t>(device)];
}

at::Generator make_generator(c10::DeviceIndex device) {
  return at::make_generator<HologramGenerator>(check_device(device), RandomState(kDefaultSeed));
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

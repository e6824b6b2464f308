#include "aten/precompiled.h"

#include "aten/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>

#include <array>
#include <cstring>
#include <vector>

#include "aten/runtime.h"
#include "atlas/device.h"
#include "atlas/philox.h"

namespace hologram::aten {
namespace {

constexpr size_t kStateBytes = sizeof(RandomState);
static_assert(kStateBytes == 16);
// Of torch's CPU generators, whose state this device's once had.
constexpr size_t kCpuStateBytes = 5056;

// The words that MT19937 begins with are those of so many counters.
constexpr size_t kCpuCounters = at::MERSENNE_STATE_N / 4;

}  // namespace

HologramGenerator::HologramGenerator(c10::DeviceIndex device, RandomSource& source)
    : c10::GeneratorImpl(c10::Device(kHologram, device),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      source_(source) {}

HologramGenerator::HologramGenerator(c10::DeviceIndex device, const RandomState& state)
    : c10::GeneratorImpl(c10::Device(kHologram, device),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      own_(std::in_place, state),
      source_(*own_) {}

void HologramGenerator::set_current_seed(uint64_t seed) {
  source_.set_state({seed});
}
void HologramGenerator::set_offset(uint64_t offset) {
  source_.set_state({source_.state().seed, offset});
}
uint64_t HologramGenerator::get_offset() const {
  return source_.state().offset;
}
uint64_t HologramGenerator::current_seed() const {
  return source_.state().seed;
}
uint64_t HologramGenerator::seed() {
  const uint64_t seed = c10::detail::getNonDeterministicRandom();
  set_current_seed(seed);
  return seed;
}
void HologramGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  const auto bytes = static_cast<size_t>(state.numel());
  TORCH_CHECK(bytes != kCpuStateBytes, "RNG state is wrong size: it has ", bytes,
              " bytes, as those of torch's CPU generators, and of hologram generators before they "
              "were counter-based. A state of this device has ",
              kStateBytes, " bytes, its seed and its offset; seed the generator instead");
  TORCH_CHECK(bytes == kStateBytes, "RNG state is wrong size: it has ", bytes,
              " bytes; that of a hologram generator has ", kStateBytes);
  RandomState read{0};
  std::memcpy(&read, state.data(), kStateBytes);
  source_.set_state(read);
}
c10::intrusive_ptr<c10::TensorImpl> HologramGenerator::get_state() const {
  at::Tensor state = at::detail::empty_cpu({static_cast<int64_t>(kStateBytes)}, at::kByte);
  const RandomState now = source_.state();
  std::memcpy(state.mutable_data_ptr(), &now, kStateBytes);
  return state.getIntrusivePtr();
}
HologramGenerator* HologramGenerator::clone_impl() const {
  return new HologramGenerator(device_.index(), source_.state());
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
  return at::make_generator<HologramGenerator>(check_device(device), RandomState{kDefaultSeed});
}

RandomSource& random_source(const std::optional<at::Generator>& generator,
                            c10::DeviceIndex device) {
  if (!generator || !generator->defined()) {
    return default_random_source(check_device(device));
  }
  TORCH_CHECK(generator->device().type() == kHologram,
              "Expected a 'hologram' device type for generator but found '", generator->device(),
              "'");
  TORCH_CHECK(generator->device().index() == device,
              "Expected a generator on hologram:", static_cast<int>(device), " but found one on ",
              generator->device());
  return static_cast<HologramGenerator*>(generator->unsafeGetGeneratorImpl())->source();
}

// One whose seed is words of the next counter.
static at::Generator vendor_generator(const DelegateTarget& target, RandomSource& source) {
  const RandomState from = source.reserve(1);
  const Philox::Words words = Philox::block(from.seed, from.offset);
  at::Generator made = at::globalContext()
                           .getAcceleratorHooksInterface(target.device.type())
                           .getNewGenerator(target.device.index());
  made.set_current_seed(uint64_t{words[0]} << 32 | words[1]);
  return made;
}

at::Generator kernel_generator(const DelegateTarget& target,
                               const std::optional<at::Generator>& generator,
                               c10::DeviceIndex device) {
  if (!target.is_cpu()) return vendor_generator(target, random_source(generator, device));
  const RandomState from = random_source(generator, device).reserve(kCpuCounters);
  at::mt19937_data_pod data{from.seed, /*left_=*/1, /*seeded_=*/true, /*next_=*/0, {}};
  for (size_t i = 0; i < kCpuCounters; ++i) {
    const Philox::Words words = Philox::block(from.seed, from.offset + i);
    std::copy(words.begin(), words.end(), data.state_.begin() + 4 * static_cast<ptrdiff_t>(i));
  }
  at::mt19937 engine;
  engine.set_data(data);
  at::Generator made = at::detail::createCPUGenerator(from.seed);
  static_cast<at::CPUGeneratorImpl*>(made.unsafeGetGeneratorImpl())->set_engine(engine);
  return made;
}

}  // namespace hologram::aten

#include "atlas/device.h"

#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <string>

#include "atlas/backends.h"
#include "atlas/config.h"

namespace hologram {
namespace {

constinit std::array<std::atomic<Device*>, kMaxDevices> devices{};
constinit std::mutex making;  // held while a device is being made

constinit thread_local int current_index = 0;

void (*device_made)(Device&) = nullptr;

Device& make_device(int index) {
  const std::lock_guard guard(making);
  if (Device* made = device_if_used(index)) return *made;
  const DeviceSlot& slot = config().devices[static_cast<size_t>(index)];
  std::unique_ptr<Backend> backend = make_backend(slot.backend, slot.ordinal, slot.count);
  const size_t limit =
      config().memory_limit != 0 ? config().memory_limit : backend->properties().total_memory;
  Device* made = new Device(index, std::move(backend), limit);
  devices[static_cast<size_t>(index)].store(made, std::memory_order_release);
  return *made;
}

}  // namespace

Device::Device(int index, std::unique_ptr<Backend> backend, size_t memory_limit)
    : index_(index),
      backend_(std::move(backend)),
      memory_(*backend_, memory_limit, config().poison_freed),
      plans_(*backend_),
      channels_(*backend_, plans_, memory_) {
  backend_->give_back_idle = [this] { memory_.trim_everywhere(); };
}

void Device::drop_plans() {
  channels_.drop_plans();
  plans_.clear();
}

int device_count() noexcept {
  return config().error.empty() ? static_cast<int>(config().devices.size()) : 0;
}

void check_any_device() {
  if (!config().error.empty()) throw Error("no hologram device is available: " + config().error);
  if (config().devices.empty()) {
    throw Error("no hologram device is available: HOLOGRAM_BACKENDS is empty");
  }
}

void check_device_index(int index) {
  check_any_device();
  if (index < 0 || index >= device_count()) {
    throw InvalidDevice("hologram device index " + std::to_string(index) + " is out of range: " +
                        std::to_string(device_count()) + " device(s) available");
  }
}

Device* device_if_used(int index) noexcept {
  if (index < 0 || index >= kMaxDevices) return nullptr;
  return devices[static_cast<size_t>(index)].load(std::memory_order_acquire);
}

Device& device(int index) {
  if (Device* made = device_if_used(index)) return *made;
  check_device_index(index);
  Device& made = make_device(index);
  if (device_made != nullptr) device_made(made);
  return made;
}

void set_device_made(void (*hook)(Device&)) noexcept {
  device_made = hook;
}

RandomSource& default_random_source(int index) {
  check_device_index(index);
  static auto* streams = [] {
    auto* made = new std::deque<RandomSource>();  // leaked on purpose, as the devices
    for (int i = 0; i < device_count(); ++i) made->emplace_back(RandomState{kDefaultSeed});
    return made;
  }();
  return (*streams)[static_cast<size_t>(index)];
}

Device* device_owning(const void* pointer) noexcept {
  for (int i = 0; i < device_count(); ++i) {
    Device* made = device_if_used(i);
    if (made != nullptr && made->memory().owns(pointer)) return made;
  }
  return nullptr;
}

int current_device() noexcept {
  return current_index;
}

void set_current_device(int index) {
  check_device_index(index);
  current_index = index;
}

int exchange_current_device(int index) {
  const int before = current_index;
  set_current_device(index);
  return before;
}

void lock_devices_for_fork() noexcept {
  making.lock();
  for (auto& slot : devices) {
    if (Device* made = slot.load(std::memory_order_acquire)) {
      made->channels().lock_for_fork();
      made->plans().lock_for_fork();
      made->memory().lock_for_fork();
    }
  }
}

void unlock_devices_after_fork() noexcept {
  for (auto& slot : devices) {
    if (Device* made = slot.load(std::memory_order_acquire)) {
      made->memory().unlock_after_fork();
      made->plans().unlock_after_fork();
      made->channels().unlock_after_fork();
    }
  }
  making.unlock();
}

}  // namespace hologram

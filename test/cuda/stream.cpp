#include "stream.h"

#include <atomic>
#include <utility>

#include "../sim/environment.h"

namespace simulated_cuda {

Stream::Stream(uint64_t seed) : thread(seed, sim::number("HOLOGRAM_TEST_CUDA_DELAY", 50)) {}

uintptr_t new_number() {
  static std::atomic<uintptr_t> last{0xc0da0000};
  return ++last;
}

void Place::reach() {
  const std::lock_guard guard(mutex_);
  time_ = std::chrono::steady_clock::now();
  reached_ = true;
  changed_.notify_all();
}

void Place::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reached_; });
}

bool Place::reached() {
  const std::lock_guard guard(mutex_);
  return reached_;
}

float Place::milliseconds_since(Place& before) {
  return std::chrono::duration<float, std::milli>(time_ - before.time_).count();
}

Events& Events::instance() {
  static auto* events = new Events();
  return *events;
}

hologram::cuda::Event Events::create(Device* device, bool takes_time) {
  const std::lock_guard guard(mutex_);
  const auto handle = new_handle<hologram::cuda::Event>();
  all_.emplace(handle, Event{device, takes_time, nullptr});
  return handle;
}

void Events::destroy(hologram::cuda::Event handle) {
  const std::lock_guard guard(mutex_);
  all_.erase(handle);
}

Event Events::find(hologram::cuda::Event handle) {
  const std::lock_guard guard(mutex_);
  const auto found = all_.find(handle);
  return found != all_.end() ? found->second : Event{nullptr, false, nullptr};
}

int Events::count() {
  const std::lock_guard guard(mutex_);
  return static_cast<int>(all_.size());
}

void Events::set_place(hologram::cuda::Event handle, std::shared_ptr<Place> place) {
  const std::lock_guard guard(mutex_);
  if (const auto found = all_.find(handle); found != all_.end()) {
    found->second.place = std::move(place);
  }
}

}  // namespace simulated_cuda

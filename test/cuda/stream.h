// Streams and events of the driver: threads that run late, and places in their order.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "../sim/late_thread.h"
#include "cuda/driver.h"

namespace simulated_cuda {

// HOLOGRAM_TEST_CUDA_DELAY: most microseconds before each task.
struct Stream {
  explicit Stream(uint64_t seed);
  std::atomic<bool> captured{false};
  // What is captured, by the thread that has begun it; null while nothing is.
  hologram::cuda::Graph graph = nullptr;
  sim::LateThread thread;
};

// A number that was never a handle before, so that one that is used too long is found.
uintptr_t new_number();
template <class Handle>
Handle new_handle() {
  return reinterpret_cast<Handle>(new_number());
}

// Where an event was recorded.
class Place {
 public:
  void reach();
  void wait();
  bool reached();
  // Both have been.
  float milliseconds_since(Place& before);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  std::chrono::steady_clock::time_point time_;
};

class Device;

struct Event {
  Device* device;
  bool takes_time;
  std::shared_ptr<Place> place;  // null before it is recorded
};

// Those that have not been destroyed.
class Events {
 public:
  static Events& instance();
  hologram::cuda::Event create(Device* device, bool takes_time);
  void destroy(hologram::cuda::Event handle);
  // Without a device if there is none.
  Event find(hologram::cuda::Event handle);
  int count();
  void set_place(hologram::cuda::Event handle, std::shared_ptr<Place> place);

 private:
  std::mutex mutex_;
  std::map<hologram::cuda::Event, Event> all_;
};

}  // namespace simulated_cuda

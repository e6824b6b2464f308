// Events that queues and the host raise and wait for.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "objc.h"

namespace simulated_metal {

class SharedEvent final : public Object {
 public:
  SharedEvent();
  uint64_t value();
  // It may fall where a command buffer has failed: then the host sets values in its place.
  void set(uint64_t value);
  void wait(uint64_t value);
  bool wait(uint64_t value, uint64_t milliseconds);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t value_ = 0;
};

}  // namespace simulated_metal

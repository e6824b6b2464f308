// Autorelease pools, a stack of them for each thread.
#include <string>
#include <vector>

#include "objc.h"

namespace simulated_metal {
namespace {

class Pools {
 public:
  ~Pools() {
    if (!all_.empty()) misuse("a thread ends with an autorelease pool");
  }
  void* push() {
    all_.emplace_back();
    return token();
  }
  void pop(void* its) {
    if (all_.empty() || its != token()) misuse("an autorelease pool that is not the latest ends");
    const std::vector<Object*> left = std::move(all_.back());
    all_.pop_back();
    for (Object* object : left) object->release();
  }
  void add(Object* object) {
    // Objective-C says so too, and leaks it.
    if (all_.empty()) misuse(std::string(object->kind_name()) + " is autoreleased without a pool");
    all_.back().push_back(object);
  }

 private:
  void* token() const { return reinterpret_cast<void*>(all_.size()); }

  std::vector<std::vector<Object*>> all_;
};

Pools& pools() {
  static thread_local Pools its;
  return its;
}

}  // namespace

void autorelease(Object* object) {
  pools().add(object);
}

}  // namespace simulated_metal

extern "C" {

void* objc_autoreleasePoolPush(void) {
  return simulated_metal::pools().push();
}

void objc_autoreleasePoolPop(void* pool) {
  simulated_metal::pools().pop(pool);
}

}  // extern "C"

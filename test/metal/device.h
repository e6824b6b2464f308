// The device and what it makes, but for what runs (commands.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>

#include "objc.h"

extern "C" uintptr_t vm_page_size;

namespace simulated_metal {

class Device final : public Object {
 public:
  Device();
  // There is one, for good.
  static Device& instance();

  std::atomic<uint64_t> allocated{0};  // bytes of living buffers
};

// Memory of the host.
class Buffer final : public Object {
 public:
  // Checks that it is whole pages of memory that is there, and no other buffer's.
  Buffer(char* memory, size_t bytes);

  char* memory() const noexcept { return memory_; }
  size_t bytes() const noexcept { return bytes_; }

  // A dispatch that is committed and has not ended. It has a reference of its own, but the memory
  // is the host's: it has to keep the buffer as long.
  void begin_use();
  void end_use();

 private:
  void released() override;
  void deallocate() override;
  void check_use();

  char* const memory_;
  const size_t bytes_;
  std::atomic<int64_t> uses_{0};
};

}  // namespace simulated_metal

// A block of device memory on its way from one owner to the next, and what its fence asks of him.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>

#include "atlas/fence.h"
#include "atlas/queue.h"

namespace hologram {

// Which of the free blocks of a size is handed out next: the one that was freed last, or the one
// with the lowest address. Then the same requests and frees get the same addresses again, as soon
// as what is in use at their beginning is the same.
enum class BlockOrder : uint8_t { warmest, lowest };

struct Allocation {
  void* data = nullptr;
  size_t capacity = 0;  // usable bytes, >= the request
  Fence fence{};        // up to which its last owner's work may still use it
  bool is_new = false;  // no block has been there before
};

// Whether work of a queue that is enqueued now may use memory with this fence.
inline bool is_ready(const Fence& fence, const Queue* queue) noexcept {
  return fence.ticket == 0 || fence.queue == queue || !fence.outstanding();
}

// What the work before the fence did wrong is for those to hear who wait for its results.
inline void wait_until_idle(const Fence& fence) noexcept {
  try {
    if (fence.outstanding()) fence.wait();
  } catch (const std::exception&) {
  }
}

}  // namespace hologram

// Blocks that came back while work of several queues uses them, in the order in which they are
// looked at. Not synchronised: MemoryPool calls it under its lock.
#pragma once

#include <memory>
#include <utility>

#include "atlas/fence.h"

namespace hologram {

struct LateBlock {
  void* data;
  Fences fences;
  LateBlock* next = nullptr;
};

class LateBlocks {
 public:
  LateBlocks() = default;
  LateBlocks(const LateBlocks&) = delete;
  LateBlocks& operator=(const LateBlocks&) = delete;
  ~LateBlocks() {
    while (!empty()) take_first();
  }

  bool empty() const noexcept { return first_ == nullptr; }

  // At the end.
  void add(std::unique_ptr<LateBlock> block) noexcept {
    LateBlock* const last = block.release();
    (last_ != nullptr ? last_->next : first_) = last;
    last_ = last;
  }

  // There is one.
  std::unique_ptr<LateBlock> take_first() noexcept {
    std::unique_ptr<LateBlock> block(first_);
    first_ = std::exchange(block->next, nullptr);
    if (first_ == nullptr) last_ = nullptr;
    return block;
  }

  void swap(LateBlocks& other) noexcept {
    std::swap(first_, other.first_);
    std::swap(last_, other.last_);
  }

 private:
  LateBlock* first_ = nullptr;
  LateBlock* last_ = nullptr;
};

}  // namespace hologram

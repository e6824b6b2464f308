// Streams that use memory in a way that the device does not see, such as by its address: what
// Tensor.record_stream() is told. What is recorded on tensors needs none of it.
#pragma once

#include <c10/core/Stream.h>

#include <utility>
#include <vector>

#include "atlas/fence.h"
#include "atlas/stream.h"

namespace hologram::aten {

struct Block;

// Of the memory of one block, while anybody has any.
class StreamUses {
 public:
  void add(int device, StreamId stream);

  // When the memory is freed, which is the device's: submits what is recorded for the streams by
  // then. Memory of a device without queues is waited for.
  void end(int device) noexcept;

  // After that: of the streams, and of the block itself.
  Fences fences_with(const Fence& last_use);

  // When memory is freed that its owner may use at once.
  void wait() noexcept;

 private:
  void submit() noexcept;
  std::vector<std::pair<int, StreamId>> streams_;
  Fences fences_;
};

// Notes that a stream uses the memory of a block. Throws c10::Error where there is no such stream.
void record_use(Block* block, const c10::Stream& stream);

}  // namespace hologram::aten

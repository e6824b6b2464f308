// Calls: instructions of which the stream knows what memory they read and write, and nothing else.
//
// A matrix product is one. It has its place among the others, waits for what it reads and holds the
// memory that it touches; what it computes, its body knows, which the queue runs when it gets
// there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "atlas/block_state.h"
#include "atlas/dtype.h"
#include "atlas/error.h"
#include "atlas/product.h"
#include "atlas/strided_copy.h"

namespace hologram {

// What a call throws to say of which kind its failure is. All else that it throws is of none.
struct CallError : Error {
  enum class Kind : uint8_t { other, out_of_memory, out_of_range };
  CallError(const std::string& what, Kind which) : Error(what), kind(which) {}
  Kind kind;
};

class Call {
 public:
  virtual ~Call() = default;
  // Addresses of what it reads and of what it writes, in the order in which they were recorded. On
  // the thread that submits the program. Once. What it throws is the failure of all that it writes.
  virtual void run(std::span<void* const> memory) = 0;
  // The matrix product that it is, of the same addresses: a queue that computes it
  // (Queue::product) does not run the call.
  virtual std::optional<Product> product(std::span<void* const> /*memory*/) const {
    return std::nullopt;
  }
  // The copy that it is, of the same addresses: as product(), for Queue::copies_strided.
  virtual std::optional<StridedCopy> strided_copy(std::span<void* const> /*memory*/) const {
    return std::nullopt;
  }
  // Whether it enqueues what it computes on a stream (launch), any number of times; then a queue
  // that is a stream does not run it.
  virtual bool is_launched() const noexcept { return false; }
  // On the stream with this handle, of the same addresses. Where that is captured, `captured` holds
  // what the captured work needs as long as it may be done. Throws as run() does, and where
  // such work cannot be captured.
  virtual void launch(void* /*stream*/, std::span<void* const> /*memory*/,
                      std::shared_ptr<void>* /*captured*/) {}
  // Whether it launches the same as another call, of the same addresses.
  virtual bool is_launched_as(const Call& /*other*/) const noexcept { return false; }
};

// Elements of a block that lie side by side.
struct Range {
  BlockState* block;
  int64_t offset;  // bytes from the start of the block
  DType dtype;
  int64_t count;
};

struct CallOperands {
  const char* name;  // lives as long as the process
  std::span<const Range> reads, writes;
  std::shared_ptr<Call> body;
};

}  // namespace hologram

// A device of the driver: its primary context, its memory, and which context a thread has.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "cuda/driver.h"
#include "status.h"
#include "stream.h"

// A context is a device: there are no others than the primary ones.
struct hologram::cuda::CUctx_st {};

namespace simulated_cuda {

using hologram::cuda::Address;
using hologram::cuda::Status;

class Device final : public hologram::cuda::CUctx_st {
 public:
  explicit Device(int ordinal);

  const int ordinal;

  // kSuccess, or what a kernel has done to the context: nothing works any more.
  Status lost() const noexcept { return lost_.load(std::memory_order_acquire); }
  void lose(Status status) noexcept {
    Status none = hologram::cuda::kSuccess;
    lost_.compare_exchange_strong(none, status);
  }

  Status allocate(Address* memory, size_t bytes);
  Status free(Address memory);  // waits for all streams
  size_t total_memory() const noexcept { return total_; }
  size_t free_memory();
  // Whether all of a range is memory of one allocation.
  bool holds(Address start, size_t bytes);

  // Of copies from page-locked memory, as tables of addresses come: how many bytes from there on
  // are of the last one that wrote them; 0 where there was none.
  void note_copy(Address start, size_t bytes);
  size_t copied(Address start);

  // Access to the memory of another one; false where it has it.
  bool enable(int peer);

  // Streams have to be of the device and not destroyed; null otherwise. Of a null handle the
  // default one.
  std::shared_ptr<Stream> find(hologram::cuda::Stream handle);
  hologram::cuda::Stream create_stream();
  Status destroy_stream(hologram::cuda::Stream handle);

  // Does it, in the order of a stream, unless the context is lost by then.
  void push(Stream& stream, sim::LateThread::Task task);

 private:
  std::shared_ptr<Stream> make_stream();
  void wait_for_all();

  const size_t total_;
  std::atomic<Status> lost_{hologram::cuda::kSuccess};
  std::mutex mutex_;  // of all below
  std::map<Address, size_t> allocations_;
  std::map<Address, size_t> copies_;
  size_t taken_ = 0;
  std::set<int> peers_;
  std::map<hologram::cuda::Stream, std::shared_ptr<Stream>> streams_;
  int streams_made_ = 0;
};

// By ordinal; null where there is none.
Device* device(int ordinal);
int device_count();

// Contexts of the calling thread; the last one is current.
std::vector<hologram::cuda::Context>& contexts();
Device* current_device();  // null if there is none

}  // namespace simulated_cuda

// Device memory as torch sees it.
//
// A hologram StorageImpl holds a DataPtr whose context is a Block. A Block can hold one StorageImpl
// of the device's target (aten/delegate_target.h) over the same bytes, its *twin*: the delegate
// hands tensors on the twin to torch's kernels. On host-visible memory it is a CPU storage, and one
// of a vendor's device where that has kernels for the memory. One twin per storage, never two:
// overlap checks compare storages.
//
//   hologram StorageImpl -> DataPtr{bytes, Block} -> twin: CPU StorageImpl -> DataPtr{bytes, Block}
//
// A tensor on the twin keeps the bytes alive after the hologram storage has gone.
#pragma once

#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "aten/stream_uses.h"
#include "atlas/channels.h"
#include "atlas/memory.h"
#include "atlas/queue.h"
#include "atlas/window.h"

namespace hologram::aten {

struct Block final : BlockState {
  // Strong reference owned by the hologram DataPtr; made on first use (see twin()).
  std::atomic<c10::StorageImpl*> twin{nullptr};
  // Of pool memory: the hologram DataPtr and the twin's DataPtr, each counted before it is made, so
  // that making a twin costs no read-modify-write. Without a meaning where the bytes are foreign.
  std::atomic<uint32_t> refs{2};
  MemoryPool* pool = nullptr;  // of the device
  int32_t device = 0;
  // Another allocator owns the bytes, all of which are counted as such in the statistics.
  bool foreign = false;
  // Foreign bytes that lie inside a device's pools: another Block may have them, too.
  bool overlay = false;
  // Somebody outside has the address, for good.
  std::atomic<bool> exported{false};
  // Somebody outside has been given the address, and works on the memory in the order of a stream:
  // when it is freed, its last use is what he has done by then.
  std::atomic<bool> handed_out{false};
  // Foreign bytes of a vendor's allocator, which hands them out again in the order of the stream
  // that they were asked for on: they are given back when that has been ordered behind their last
  // use.
  bool stream_ordered = false;
  void* stream = nullptr;
  // Null but for what Tensor.record_stream() was called with.
  std::unique_ptr<StreamUses> uses;

  void give_back_memory() noexcept override {
    if (foreign) {
      if (stream_ordered) give_back_in_order();
      return;
    }
    if (C10_LIKELY(uses == nullptr)) {
      pool->deallocate({data, 0, last_use.load()});
    } else {
      pool->deallocate(data, uses->fences_with(last_use.load()));
    }
  }
  void retire_memory() noexcept override {
    if (!foreign) pool->retire(data);
  }

  void give_back_in_order() noexcept;

  // From a few that the thread keeps: every storage makes one.
  static void* operator new(size_t size);
  static void operator delete(void* block) noexcept;
};

// Fresh device memory. Throws c10::OutOfMemoryError. nbytes == 0 gives a null pointer with a Block.
c10::DataPtr allocate_block(size_t nbytes, c10::DeviceIndex device);

// A fresh, resizable hologram storage of nbytes.
c10::Storage make_storage(size_t nbytes, c10::DeviceIndex device);
// For the result of what a window records next.
c10::Storage make_storage(size_t nbytes, c10::DeviceIndex device, const Window& window);

// A fresh storage of 1..12,288 bytes in one class of the boundary pool, not resizable. Throws
// hologram::Error where the class has no room.
c10::Storage make_boundary_storage(int class_index, size_t nbytes, c10::DeviceIndex device);

// A hologram storage over the bytes of a storage of the device's target, which becomes its twin. No
// copy. Resizable where the other one is.
// Throws c10::OutOfMemoryError where the memory limit leaves no room for them.
c10::Storage make_storage_over(c10::intrusive_ptr<c10::StorageImpl> theirs,
                               c10::DeviceIndex device);

// A CPU storage of the size of a hologram storage, resizable where that is, with bytes of torch's
// own CPU allocator, or of another one.
c10::intrusive_ptr<c10::StorageImpl> host_storage_like(const c10::StorageImpl* storage,
                                                       c10::Allocator* allocator = nullptr);

// Turns a CPU storage that nobody else refers to, and whose bytes were allocated for the device
// (see ResultsFromPool), into a hologram storage. Returns false, with nothing changed, for another
// one.
bool relabel_storage(c10::StorageImpl* cpu, c10::DeviceIndex device);

// A queue that is lent to kernels of a vendor, which are launched on a stream of theirs.
struct Loan {
  c10::DeviceIndex device;
  Channel* channel;
  void* stream;
  Ticket launched;  // what they are done by, 0 until the queue has been taken back
};

// The twin of a hologram storage, for as long as that lives. A storage whose DataPtr came from
// elsewhere (DLPack, set_data_ptr) is given a Block first. On return the host may read and write
// the bytes; with a loan, kernels that do may be launched.
c10::StorageImpl* twin(const c10::Storage& storage, const Loan* loan = nullptr);

// Takes over the bytes of a twin that a kernel of torch's has reallocated (out= of another size).
// Returns true if anything changed.
bool adopt_twin_bytes(const c10::Storage& storage);

// While one of these lives, what its thread allocates through torch's CPU allocator is memory of a
// device, if the host can touch that: the results and temporaries of CPU kernels that run for the
// delegate. make_storage_over()
// recognises such bytes and counts nothing twice.
class ResultsFromPool {
 public:
  explicit ResultsFromPool(c10::DeviceIndex device) noexcept;
  ~ResultsFromPool();
  ResultsFromPool(const ResultsFromPool&) = delete;
  ResultsFromPool& operator=(const ResultsFromPool&) = delete;

 private:
  c10::DeviceIndex before_;
};

// While one of these lives, what its thread allocates through torch's CPU allocator is memory of a
// device, as with ResultsFromPool, but for requests that are known to be for results: these are
// given the places of the results. For kernels that run in a program. Where they are a vendor's,
// what is asked for is known by EmptyRequests (empty_requests.h).
class PlacedResults {
 public:
  struct Place {
    void* memory;
    size_t bytes;
    size_t before;  // how many requests for as many bytes come before that of the result
    bool taken = false, freed = false;
  };
  PlacedResults(c10::DeviceIndex device, std::span<Place> places) noexcept;
  ~PlacedResults();
  PlacedResults(const PlacedResults&) = delete;
  PlacedResults& operator=(const PlacedResults&) = delete;

  // The thread's; null: none.
  static PlacedResults* current() noexcept;

  // Null for a request that is not for a result.
  void* take(size_t bytes) noexcept;
  // The kernel has made its results: no more places are given.
  void close() noexcept { closed_ = true; }
  // Whether it is a place, which is free then; others are somebody else's to free.
  bool free(const void* memory) noexcept;
  // Whether the kernel has kept none.
  bool all_free() const noexcept;

 private:
  std::span<Place> places_;
  bool closed_ = false;
  PlacedResults* outer_;
  c10::DeviceIndex before_;
};

// What the thread's ResultsFromPool, or EmptyRequests, have been asked for while one of these
// lives.
class ResultRequests {
 public:
  ResultRequests() noexcept;
  ~ResultRequests();
  ResultRequests(const ResultRequests&) = delete;
  ResultRequests& operator=(const ResultRequests&) = delete;

  // The thread's; null: none.
  static ResultRequests* current() noexcept;

  void add(void* memory, size_t bytes) { requests_.push_back({memory, bytes}); }
  // How many requests for as many bytes came before the one that was given this memory last.
  size_t before(const void* memory) const noexcept;

 private:
  struct Request {
    void* memory;
    size_t bytes;
  };
  std::vector<Request> requests_;
  ResultRequests* outer_;
};

// Puts an allocator in front of torch's CPU allocator that does so. Called once; it hands every
// other request on.
void install_result_allocator();

// Makes a hologram storage look at the bytes of a storage of the device's target, its twin from now
// on. The size in bytes becomes that of the other storage.
void rebind_storage(c10::StorageImpl* storage, c10::intrusive_ptr<c10::StorageImpl> theirs);

// Fake tensors, the wrappers of torch.func and other stand-ins name the device and have none of its
// memory. They come here where a kernel is reached past the dispatcher. Throws RuntimeError.
void check_has_memory(const c10::StorageImpl* storage);

// The Block of a hologram storage, nullptr where another owner made its DataPtr.
Block* block_of(const c10::DataPtr& data);

// The Block of a hologram storage with everything about it up to date: made where another owner
// made the DataPtr, of the bytes that a CPU tensor has grown. Null where there are no bytes.
Block* settled_block(c10::StorageImpl* storage);

// Whether somebody beside the device's tensors on the Block may read or write the bytes at any
// time: a CPU tensor, another library, or another storage. Instructions on them run at once.
inline bool is_shared(const Block& block) noexcept;

// Foreign Blocks that are overlays, and whether one of them has bytes of this Block.
inline std::atomic<size_t> overlay_count{0};
bool is_overlaid(const Block& block) noexcept;

inline bool is_shared(const Block& block) noexcept {
  if (block.exported.load(std::memory_order_relaxed)) return true;
  auto* const twin = block.twin.load(std::memory_order_acquire);
  return (twin != nullptr && c10::raw::intrusive_ptr::use_count(twin) != 1) ||
         (C10_UNLIKELY(overlay_count.load(std::memory_order_relaxed) != 0) && is_overlaid(block));
}

// Runs what is recorded of the storage's memory. Called before anything but the stream touches it.
void synchronize_storage(c10::StorageImpl* storage);

// Before the address is given to code that is not ours. Where that works in the order of the
// calling thread's current stream (DelegateTarget::in_stream_order) what is recorded is submitted,
// the stream is behind it, and what comes later is behind the stream; else it has run on return.
void hand_out_storage(c10::StorageImpl* storage);

// The same before somebody outside may touch the memory at any time: what other threads are
// recording of it at this moment has run, too, or will run at once. Called when is_shared().
void synchronize_shared(c10::StorageImpl* storage);

// The same where an address is given out: the memory is shared from now on.
void export_storage(c10::StorageImpl* storage);

// Grows or shrinks a hologram storage to nbytes, keeping the common prefix.
void resize_storage(c10::StorageImpl* storage, size_t nbytes);

}  // namespace hologram::aten

#include "aten/precompiled.h"

#include "aten/block.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "aten/activity.h"
#include "aten/delegate_target.h"
#include "aten/memory_trace.h"
#include "aten/runtime.h"
#include "aten/transfer.h"
#include "atlas/allocation.h"
#include "atlas/device.h"
#include "atlas/fork.h"

namespace hologram::aten {
namespace {

// Blocks that a thread keeps for itself. Zero-initialised and never destroyed, so that storages may
// still be freed while a thread ends; its guard then gives the blocks back and turns keeping off.
struct SpareBlocks {
  static constexpr uint32_t kMost = 32;
  uint32_t count;
  bool closed;
  bool guarded;
  std::array<void*, kMost> blocks;
};
constinit thread_local SpareBlocks spare_blocks{};

struct SpareBlocksGuard {
  ~SpareBlocksGuard() {
    auto& spare = spare_blocks;
    spare.closed = true;
    while (spare.count != 0) {
      ::operator delete(spare.blocks[--spare.count]);
    }
  }
};

// Registers the guard of this thread.
[[gnu::noinline]] void guard_spare_blocks() noexcept {
  static thread_local SpareBlocksGuard guard;
  static_cast<void>(&guard);
  spare_blocks.guarded = true;
}

// Guards the rare mutation of a storage whose DataPtr was made elsewhere. Leaked on purpose:
// storages may be touched after static destruction.
std::mutex& adopt_mutex() {
  static auto* mutex = new std::mutex();
  return *mutex;
}

c10::Device hologram_device(c10::DeviceIndex index) {
  return c10::Device(c10::DeviceType::PrivateUse1, index);
}

// Foreign Blocks over bytes of a device's pools. Such bytes have two storages, which torch makes of
// a slice of a storage, of DLPack and of from_blob(); which Blocks lie below is found out by
// address, and only while there is any such Block.
class Overlays {
 public:
  void add(const Block& block) {
    const std::lock_guard lock(mutex_);
    blocks_.push_back(&block);
    overlay_count.store(blocks_.size(), std::memory_order_relaxed);
  }
  void remove(const Block& block) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase(blocks_, &block);
    overlay_count.store(blocks_.size(), std::memory_order_relaxed);
  }
  bool cover(const Block& block) noexcept {
    const std::lock_guard lock(mutex_);
    return std::any_of(blocks_.begin(), blocks_.end(), [&](const Block* other) {
      return other->data < block.data + block.bytes && block.data < other->data + other->bytes;
    });
  }

 private:
  std::mutex mutex_;
  std::vector<const Block*> blocks_;
};

Overlays& overlays() {
  static auto* overlays = new Overlays();  // outlives every storage
  return *overlays;
}

// The memory is in use until what has been launched on the stream by now is done.
void end_hand_out(Block& block) noexcept {
  const Fence last = block.last_use.load();
  if (last.ticket == 0 || in_forked_child()) return;
  try {
    block.last_use.store({last.queue, last.queue->take_back(last.queue->vendor_stream())});
  } catch (const std::exception&) {  // the context is lost, and its memory with it
  }
}

void destroy(Block* block) noexcept {
  if (memory_traced() && !block->foreign) {
    trace_free(static_cast<c10::DeviceIndex>(block->device), block->data);
  }
  if (C10_UNLIKELY(block->uses != nullptr)) {
    block->uses->end(block->device);
  }
  if (Window::keep(block)) {
    return;  // recorded instructions touch it
  }
  if (C10_UNLIKELY(block->handed_out.load(std::memory_order_relaxed))) end_hand_out(*block);
  block->give_back_memory();
  delete block;
}

void unref(Block* block) noexcept {
  // A sole owner needs no read-modify-write.
  if (block->refs.load(std::memory_order_acquire) == 1 ||
      block->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    destroy(block);
  }
}

void release_twin_bytes(void* context) {
  unref(static_cast<Block*>(context));
}

void release_device_bytes(void* context) {
  auto* block = static_cast<Block*>(context);
  auto* twin = block->twin.load(std::memory_order_acquire);
  if (twin == nullptr) {
    destroy(block);  // no CPU tensor has ever seen the bytes
  } else if (block->foreign) {
    block->pool->note_foreign(-static_cast<ptrdiff_t>(block->bytes));
    if (block->overlay) overlays().remove(*block);
    if (C10_UNLIKELY(block->uses != nullptr)) {
      block->uses->wait();  // its owner hands the memory out without looking
    }
    if (!block->stream_ordered) c10::intrusive_ptr<c10::StorageImpl>::reclaim(twin);
    destroy(block);
  } else if (twin->data_ptr().get_context() == block &&
             c10::raw::intrusive_ptr::use_count(twin) == 1) {
    // Nobody else has the twin, which therefore takes the Block with it.
    block->refs.store(1, std::memory_order_relaxed);
    c10::intrusive_ptr<c10::StorageImpl>::reclaim(twin);
  } else {
    // The twin lives on under a CPU tensor, whose storage may become a hologram storage again.
    block->twin.store(nullptr, std::memory_order_release);
    c10::intrusive_ptr<c10::StorageImpl>::reclaim(twin);
    unref(block);
  }
}

// Of this thread: while a kernel runs in a program, and while somebody wants to know.
thread_local PlacedResults* placed_results = nullptr;
thread_local ResultRequests* result_requests = nullptr;

// Runs an allocation of the core and turns its error into torch's, which names the device. Before
// it gives up, it has what is recorded executed: instructions hold blocks that the user has freed.
template <class F>
auto or_out_of_memory(c10::DeviceIndex device, F&& allocate) {
  Channels& channels = hologram::device(device).channels();
  while (true) {
    // While a program runs, there is no running another.
    const bool hopeless = placed_results != nullptr || channels.empty();
    try {
      return allocate(channels);
    } catch (const OutOfMemory& error) {
      if (hopeless && memory_traced()) {
        trace_out_of_memory(device, error.requested);
      }
      TORCH_CHECK_WITH(OutOfMemoryError, !hopeless, error.what(), " The device is ",
                       hologram_device(device), ".");
    }
    device_memory(device).forget_refusal();
    channels.flush(FlushReason::memory);
  }
}

// Whether memory that exists already may be refused for the limit.
enum class Limit : uint8_t { holds, waived };

Block* make_block(MemoryPool& pool, c10::DeviceIndex device, const Allocation& taken,
                  size_t bytes) {
  auto* block = new Block();
  block->pool = &pool;
  block->device = device;
  block->data = static_cast<char*>(taken.data);
  block->bytes = bytes;
  if (C10_UNLIKELY(taken.fence.may_be_outstanding())) {
    block->last_use.store(taken.fence);
  }
  return block;
}

// `queue`: of what uses the bytes first; see current_queue().
Allocation allocate_bytes(MemoryPool& pool, size_t nbytes, c10::DeviceIndex device,
                          const Queue* queue) {
  const Allocation taken =
      or_out_of_memory(device, [&](Channels&) { return pool.allocate(nbytes, queue); });
  if (memory_traced()) {
    trace_allocation(device, taken.data);
  }
  return taken;
}
Allocation allocate_bytes(MemoryPool& pool, size_t nbytes, c10::DeviceIndex device) {
  Channels& channels = hologram::device(device).channels();
  return allocate_bytes(pool, nbytes, device, current_queue(channels, device));
}

// The device that this thread's CPU allocations are taken from; -1: none.
thread_local c10::DeviceIndex results_device = -1;

c10::Allocator* host_allocator = nullptr;  // torch's own
c10::Allocator* cpu_allocator = nullptr;   // the one in front of it, which is torch's CPU allocator

// Frees what ResultAllocator allocated, by its address alone: oneDNN frees with raw_deallocate(),
// which knows neither a context nor whether the memory was a device's.
void release_result_bytes(void* data) {
  if (placed_results != nullptr && placed_results->free(data)) return;
  if (Device* device = device_owning(data)) {
    if (memory_traced()) {
      trace_free(static_cast<c10::DeviceIndex>(device->index()), data);
    }
    device->memory().deallocate({data, 0});
  } else {
    host_allocator->raw_deleter()(data);
  }
}

// Stands in front of torch's CPU allocator, see ResultsFromPool. Memory is its own context, as
// raw_allocate() demands; the Block is made where a result is handed over, so temporaries have
// none.
class ResultAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    const auto index = results_device;
    if (C10_LIKELY(index < 0) || nbytes == 0) {
      return host_allocator->allocate(nbytes);
    }
    if (placed_results != nullptr) {
      if (void* const place = placed_results->take(nbytes)) {
        return {place, place, &release_result_bytes, c10::Device(c10::kCPU)};
      }
    }
    const Allocation taken = allocate_bytes(device_memory(index), nbytes, index);
    c10::DataPtr bytes(taken.data, taken.data, &release_result_bytes, c10::Device(c10::kCPU));
    if (C10_UNLIKELY(result_requests != nullptr)) result_requests->add(taken.data, nbytes);
    // A kernel is about to write it.
    if (C10_UNLIKELY(target_of(index).kind == DelegateTarget::Kind::launched)) {
      Queue& queue = *current_channel(index).queue;
      if (taken.fence.queue != &queue && taken.fence.outstanding()) queue.wait_for(taken.fence);
      queue.lend(target_of(index).stream());
    } else {
      taken.fence.wait();
    }
    return bytes;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_result_bytes; }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    host_allocator->copy_data(dest, src, count);
  }
};

// Whether these are bytes of the allocator of the device's vendor, who shows them to nobody else.
bool is_of_vendor(const c10::DataPtr& data, const DelegateTarget& target) {
  return C10_UNLIKELY(!target.is_cpu()) && data.get_deleter() == target.allocator->raw_deleter();
}

// Whether these are bytes of ResultAllocator, of this device, that no Block owns yet.
bool is_unclaimed_result(const c10::DataPtr& data, c10::DeviceIndex device) {
  return data.get_deleter() == &release_result_bytes &&
         (device_count() == 1 || device_memory(device).owns(data.get()));
}

// The Block of a CPU storage whose bytes were allocated for the device, if no hologram storage has
// it yet: it is then the caller's.
Block* claim_result_block(c10::StorageImpl* cpu, c10::DeviceIndex device) {
  if (is_unclaimed_result(cpu->data_ptr(), device)) {
    std::lock_guard<std::mutex> lock(adopt_mutex());
    auto& bytes = cpu->_mutable_data_ptr_no_checks();
    if (is_unclaimed_result(bytes, device)) {
      void* data = bytes.release_context();
      auto* block = make_block(device_memory(device), device, {data}, cpu->nbytes());
      block->refs.store(1, std::memory_order_relaxed);  // the other one is counted below
      bytes = {data, block, &release_twin_bytes, c10::Device(c10::kCPU)};
    }
  }
  const c10::DataPtr& data = cpu->data_ptr();
  if (data.get_deleter() != &release_twin_bytes) {
    return nullptr;
  }
  auto* block = static_cast<Block*>(data.get_context());
  c10::StorageImpl* none = nullptr;
  if (block->device != device ||
      !block->twin.compare_exchange_strong(none, cpu, std::memory_order_acq_rel)) {
    return nullptr;
  }
  block->refs.fetch_add(1, std::memory_order_relaxed);
  return block;
}

// The Block of bytes that another allocator owns, which it may show to anybody.
Block* make_foreign_block(c10::DeviceIndex device, void* data, size_t nbytes, Limit limit) {
  auto& memory = device_memory(device);
  if (limit == Limit::holds) {
    or_out_of_memory(device, [&](Channels&) { memory.admit_foreign(nbytes); });
  } else {
    memory.note_foreign(static_cast<ptrdiff_t>(nbytes));
  }
  auto* block = make_block(memory, device, {data}, nbytes);
  block->foreign = true;
  block->exported.store(true, std::memory_order_relaxed);
  if (nbytes != 0 && device_owning(data) != nullptr) {
    block->overlay = true;
    overlays().add(*block);
  }
  return block;
}

// What is recorded of a new Block's bytes under other storages runs; what will be runs at once.
void synchronize_below(const Block& block) {
  if (!block.overlay) return;
  Channels& channels = device_owning(block.data)->channels();
  channels.fence();
  channels.finish(FlushReason::read);
}

// A hologram DataPtr over the bytes of a storage of the device's target, its twin from now on.
c10::DataPtr bytes_over(c10::intrusive_ptr<c10::StorageImpl> theirs, c10::DeviceIndex device,
                        Limit limit) {
  void* data = theirs->mutable_data();  // materialises a copy-on-write storage
  if (auto* block = claim_result_block(theirs.get(), device)) {
    theirs.release();
    return {data, block, &release_device_bytes, hologram_device(device)};
  }
  auto* block = make_foreign_block(device, data, theirs->nbytes(), limit);
  const DelegateTarget& target = target_of(device);
  if (is_of_vendor(theirs->data_ptr(), target)) {
    block->exported.store(false, std::memory_order_relaxed);
    block->stream_ordered = true;
    block->stream = target.stream();
  }
  block->twin.store(theirs.release(), std::memory_order_release);
  c10::DataPtr bytes(data, block, &release_device_bytes, hologram_device(device));
  synchronize_below(*block);
  return bytes;
}

c10::StorageImpl* make_pool_twin(Block* block, void* data, size_t nbytes) {
  const DelegateTarget& target = target_of(static_cast<c10::DeviceIndex>(block->device));
  auto twin = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), nbytes,
      c10::DataPtr(data, block, &release_twin_bytes, target.device), target.allocator,
      /*resizable=*/true);
  c10::StorageImpl* expected = nullptr;
  if (block->twin.compare_exchange_strong(expected, twin.get(), std::memory_order_acq_rel)) {
    return twin.release();
  }
  block->refs.fetch_add(1, std::memory_order_relaxed);  // what ours gives back now
  return expected;                                      // another thread was first
}

// Gives a Block to a storage whose DataPtr another owner made.
void adopt(c10::StorageImpl* storage) {
  std::unique_lock<std::mutex> lock(adopt_mutex());
  const c10::DataPtr& current = storage->data_ptr();
  if (block_of(current) != nullptr) {
    return;
  }
  const auto device = storage->device();
  void* const data = current.get();
  auto* block = make_foreign_block(device.index(), data, storage->nbytes(), Limit::waived);
  c10::DataPtr original =
      storage->set_data_ptr(c10::DataPtr(data, block, &release_device_bytes, device));
  const DelegateTarget& target = target_of(device.index());
  original.unsafe_set_device(target.device);
  auto twin = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                    storage->nbytes(), std::move(original),
                                                    target.allocator, storage->resizable());
  block->twin.store(twin.release(), std::memory_order_release);
  lock.unlock();
  synchronize_below(*block);
}

// Makes a storage and its twin agree where one of them was resized.
void reconcile(c10::StorageImpl* storage, c10::StorageImpl* twin) {
  if (C10_LIKELY(twin->nbytes() == storage->nbytes() && twin->data() == storage->data())) {
    return;
  }
  if (twin->data() == storage->data()) {
    twin->set_nbytes(storage->nbytes());  // the hologram storage was cut or grown in place
  } else {
    rebind_storage(storage, c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(twin));
  }
}

}  // namespace

void check_has_memory(const c10::StorageImpl* storage) {
  TORCH_CHECK(storage != nullptr && storage->device().type() == kHologram &&
                  (storage->data() != nullptr || storage->nbytes() == 0),
              "this tensor has no memory on the hologram device: it stands for another one, as a "
              "FakeTensor or a tensor inside a transform of torch.func does");
}

Block* block_of(const c10::DataPtr& data) {
  return data.get_deleter() == &release_device_bytes ? static_cast<Block*>(data.get_context())
                                                     : nullptr;
}

Block* settled_block(c10::StorageImpl* storage) {
  Block* block = block_of(storage->data_ptr());
  if (C10_UNLIKELY(block == nullptr)) {
    if (storage->device_type() != c10::DeviceType::PrivateUse1 || storage->data() == nullptr) {
      return nullptr;
    }
    adopt(storage);
    block = block_of(storage->data_ptr());
  }
  if (auto* twin = block->twin.load(std::memory_order_acquire)) {
    reconcile(storage, twin);
    block = block_of(storage->data_ptr());
  }
  return block->bytes != 0 ? block : nullptr;
}

bool is_overlaid(const Block& block) noexcept {
  return overlays().cover(block);
}

void synchronize_storage(c10::StorageImpl* storage) {
  if (Block* block = settled_block(storage)) {
    Window::finish(*block);
  }
}

// A ticket of the queue's stands for what is launched on its stream from now on: it is marked when
// somebody asks for it.
static void hand_out(Block& block) {
  const auto index = static_cast<c10::DeviceIndex>(block.device);
  if (C10_LIKELY(!target_of(index).in_stream_order)) return Window::finish(block);
  Channel& channel = hologram::device(index).channels().of(current_stream(index));
  if (channel.queue->takes_work()) {
    channel.window.begin_use(block);
    block.handed_out.store(true, std::memory_order_relaxed);
    channel.window.end_use(block, channel.queue->take_back(channel.queue->vendor_stream()));
  } else {
    // It becomes part of a graph, which runs later: what has been done by then is in its order.
    Window::submit(block);
    const Fence last = block.last_use.load();
    if (last.queue != channel.queue.get()) last.finish();
    Window::check(block);
    block.handed_out.store(true, std::memory_order_relaxed);
  }
}

void hand_out_storage(c10::StorageImpl* storage) {
  if (Block* block = settled_block(storage)) hand_out(*block);
}

void synchronize_shared(c10::StorageImpl* storage) {
  if (Block* block = settled_block(storage)) {
    hologram::device(block->device).channels().fence();
    hand_out(*block);
  }
}

void export_storage(c10::StorageImpl* storage) {
  if (Block* block = settled_block(storage)) {
    block->exported.store(true, std::memory_order_relaxed);
    synchronize_shared(storage);
  }
}

// Without that order memory in use could be handed out again: then it is not given back.
void Block::give_back_in_order() noexcept {
  try {
    const Fence last = last_use.load();
    if (last.may_be_outstanding()) last.queue->lend(stream);
    c10::intrusive_ptr<c10::StorageImpl>::reclaim(twin.load(std::memory_order_acquire));
  } catch (const std::exception&) {
  }
}

void* Block::operator new(size_t size) {
  auto& spare = spare_blocks;
  if (spare.count != 0) return spare.blocks[--spare.count];
  return ::operator new(size);
}

void Block::operator delete(void* block) noexcept {
  auto& spare = spare_blocks;
  if (spare.closed || spare.count == SpareBlocks::kMost) {
    ::operator delete(block);
    return;
  }
  if (C10_UNLIKELY(!spare.guarded)) {
    guard_spare_blocks();
  }
  spare.blocks[spare.count++] = block;
}

static c10::DataPtr data_of(Block* block, c10::DeviceIndex device) {
  return {block->data, block, &release_device_bytes, hologram_device(device)};
}

c10::DataPtr allocate_block(size_t nbytes, c10::DeviceIndex device) {
  auto& pool = device_memory(device);
  return data_of(make_block(pool, device, allocate_bytes(pool, nbytes, device), nbytes), device);
}

// The device whose memory results and temporaries of CPU kernels can be, -1 for none.
static c10::DeviceIndex in_reach_of_host(c10::DeviceIndex device) noexcept {
  const bool in_reach = device >= 0 && target_of(device).is_on_host_memory();
  return in_reach ? device : c10::DeviceIndex(-1);
}

ResultsFromPool::ResultsFromPool(c10::DeviceIndex device) noexcept
    : before_(std::exchange(results_device, in_reach_of_host(device))) {
  if (device >= 0) begin_activity_of(this, device);  // the kernel, for a profiler of the device
}

ResultsFromPool::~ResultsFromPool() {
  end_activity_of(this);
  results_device = before_;
}

PlacedResults::PlacedResults(c10::DeviceIndex device, std::span<Place> places) noexcept
    : places_(places),
      outer_(std::exchange(placed_results, this)),
      before_(std::exchange(results_device, in_reach_of_host(device))) {}

PlacedResults::~PlacedResults() {
  results_device = before_;
  placed_results = outer_;
}

PlacedResults* PlacedResults::current() noexcept {
  return placed_results;
}

void* PlacedResults::take(size_t bytes) noexcept {
  if (closed_) return nullptr;
  void* memory = nullptr;
  for (Place& place : places_) {
    if (place.taken || place.bytes != bytes) continue;
    if (place.before != 0) {
      --place.before;
    } else if (memory == nullptr) {
      place.taken = true;
      memory = place.memory;
    }
  }
  return memory;
}

bool PlacedResults::free(const void* memory) noexcept {
  for (Place& place : places_) {
    if (place.memory != memory) continue;
    place.freed = true;
    return true;
  }
  return false;
}

bool PlacedResults::all_free() const noexcept {
  return std::ranges::all_of(places_,
                             [](const Place& place) { return place.taken == place.freed; });
}

ResultRequests::ResultRequests() noexcept : outer_(std::exchange(result_requests, this)) {}
ResultRequests::~ResultRequests() {
  result_requests = outer_;
}

ResultRequests* ResultRequests::current() noexcept {
  return result_requests;
}

size_t ResultRequests::before(const void* memory) const noexcept {
  size_t count = 0;
  const auto last =
      std::ranges::find(requests_.rbegin(), requests_.rend(), memory, &Request::memory);
  if (last == requests_.rend()) return 0;
  for (auto other = std::next(last); other != requests_.rend(); ++other) {
    count += other->bytes == last->bytes;
  }
  return count;
}

void install_result_allocator() {
  if (host_allocator == nullptr) {
    host_allocator = c10::GetCPUAllocator();
    cpu_allocator = new ResultAllocator();  // leaked: storages refer to it
    c10::SetCPUAllocator(cpu_allocator, /*priority=*/255);
  }
}

static c10::Storage storage_of(c10::DataPtr bytes, size_t nbytes, bool resizable) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                            nbytes, std::move(bytes),
                                                            device_allocator(), resizable));
}

c10::Storage make_storage(size_t nbytes, c10::DeviceIndex device) {
  return storage_of(allocate_block(nbytes, device), nbytes, /*resizable=*/true);
}

c10::Storage make_storage(size_t nbytes, c10::DeviceIndex device, const Window& window) {
  auto& pool = device_memory(device);
  auto* const block =
      make_block(pool, device, allocate_bytes(pool, nbytes, device, window.queue()), nbytes);
  block->born = window.open_program();
  return storage_of(data_of(block, device), nbytes, /*resizable=*/true);
}

c10::Storage make_boundary_storage(int class_index, size_t nbytes, c10::DeviceIndex device) {
  auto& pool = device_memory(device);
  const auto taken = or_out_of_memory(
      device, [&](Channels&) { return pool.allocate_in_class(class_index, nbytes); });
  if (memory_traced()) {
    trace_allocation(device, taken.data);
  }
  return storage_of(data_of(make_block(pool, device, taken, nbytes), device), nbytes,
                    /*resizable=*/false);
}

c10::Storage make_storage_over(c10::intrusive_ptr<c10::StorageImpl> theirs,
                               c10::DeviceIndex device) {
  const size_t nbytes = theirs->nbytes();
  const bool resizable = theirs->resizable();  // not where its bytes belong to somebody else
  return storage_of(bytes_over(std::move(theirs), device, Limit::holds), nbytes, resizable);
}

c10::intrusive_ptr<c10::StorageImpl> host_storage_like(const c10::StorageImpl* storage,
                                                       c10::Allocator* allocator) {
  if (allocator == nullptr) allocator = host_allocator;
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage->nbytes(),
      allocator->allocate(storage->nbytes()), allocator, storage->resizable());
}

bool relabel_storage(c10::StorageImpl* cpu, c10::DeviceIndex device) {
  auto& bytes = cpu->_mutable_data_ptr_no_checks();
  if (!is_unclaimed_result(bytes, device)) {
    return false;
  }
  void* data = bytes.release_context();
  bytes = {data, make_block(device_memory(device), device, {data}, cpu->nbytes()),
           &release_device_bytes, hologram_device(device)};
  cpu->set_allocator(device_allocator());
  return true;
}

c10::StorageImpl* twin(const c10::Storage& storage, const Loan* loan) {
  auto* impl = storage.unsafeGetStorageImpl();
  Block* block = C10_LIKELY(impl != nullptr) ? block_of(impl->data_ptr()) : nullptr;
  if (C10_UNLIKELY(block == nullptr)) {
    check_has_memory(impl);
    adopt(impl);
    block = block_of(impl->data_ptr());
  }
  if (C10_UNLIKELY(loan != nullptr)) {
    loan->channel->window.begin_use(*block, FlushReason::kernel);
    loan->channel->queue->lend(loan->stream);
  } else {
    Window::finish(*block);
  }
  auto* twin = block->twin.load(std::memory_order_acquire);
  if (twin == nullptr) {
    if (block->foreign) {
      // Another thread is inside adopt(); it publishes the twin before it unlocks.
      std::lock_guard<std::mutex> lock(adopt_mutex());
      return block->twin.load(std::memory_order_acquire);
    }
    twin = make_pool_twin(block, const_cast<void*>(impl->data()), impl->nbytes());
  }
  reconcile(impl, twin);
  return twin;
}

bool adopt_twin_bytes(const c10::Storage& storage) {
  auto* impl = storage.unsafeGetStorageImpl();
  Block* block = block_of(impl->data_ptr());
  auto* twin = block == nullptr ? nullptr : block->twin.load(std::memory_order_acquire);
  if (twin == nullptr || (twin->data() == impl->data() && twin->nbytes() == impl->nbytes())) {
    return false;
  }
  rebind_storage(impl, c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(twin));
  return true;
}

void rebind_storage(c10::StorageImpl* storage, c10::intrusive_ptr<c10::StorageImpl> theirs) {
  const size_t nbytes = theirs->nbytes();
  // Never refused: the tensor's sizes already say that it has these bytes.
  storage->set_data_ptr_noswap(
      bytes_over(std::move(theirs), storage->device().index(), Limit::waived));
  storage->set_nbytes(nbytes);
}

void resize_storage(c10::StorageImpl* storage, size_t nbytes) {
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  synchronize_storage(storage);
  const size_t old_bytes = storage->nbytes();
  const c10::Storage fresh = make_storage(nbytes, storage->device().index());
  copy_storage(fresh.unsafeGetStorageImpl(), 0, storage, 0, std::min(old_bytes, nbytes));
  storage->set_data_ptr_noswap(fresh.set_data_ptr(c10::DataPtr()));
  storage->set_nbytes(nbytes);
}

}  // namespace hologram::aten

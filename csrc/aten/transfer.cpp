#include "aten/precompiled.h"

#include "aten/transfer.h"

#include <ATen/EmptyTensor.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "aten/block.h"
#include "aten/memory_overlap.h"
#include "aten/operand.h"
#include "aten/pinned.h"
#include "aten/queue_order.h"
#include "aten/record_call.h"
#include "aten/runtime.h"
#include "atlas/device.h"

namespace hologram::aten {
namespace {

char* at_offset(c10::StorageImpl* storage, size_t offset) {
  return static_cast<char*>(storage->mutable_data()) + offset;
}

// Enqueues a copy that touches a block after all that is recorded and queued on it.
void transfer(Block& block, void* to, const void* from, size_t nbytes, Direction direction,
              Until until) {
  Channel& channel = current_channel(block.device);
  channel.window.begin_use(block);
  const Ticket ticket = channel.queue->copy(to, from, nbytes, direction);
  channel.window.end_use(block, ticket);
  if (until == Until::done) channel.queue->wait(ticket);
}

// Enqueues a copy from one device to another: it comes after all that is queued on either block,
// and before what comes later.
void copy_between(Block& written, void* to, Block& read, const void* from, size_t nbytes) {
  Channel& here = current_channel(written.device);
  Channel& there = current_channel(read.device);
  there.window.begin_use(read);
  here.window.begin_use(written);
  here.queue->wait_for({there.queue.get(), there.queue->record(nullptr)});
  const Ticket copied = here.queue->copy_from(*there.queue, to, from, nbytes);
  here.window.end_use(written, copied);
  there.queue->wait_for({here.queue.get(), copied});
  there.window.end_use(read, there.queue->record(nullptr));
}

bool is_host_addressable(const Block& block) {
  return block.pool->host_addressable();
}

// A copy between strides as an instruction: programs do not end before one.
class StridedCopyCall final : public KernelCall {
 public:
  StridedCopyCall(const at::Tensor& to, const at::Tensor& from)
      : KernelCall("copy_"), to_(to), from_(from) {}
  std::optional<StridedCopy> strided_copy(std::span<void* const> memory) const override {
    return StridedCopy{memory.back(), memory.front(), to_.dtype.itemsize(), to_.sizes, to_.strides,
                       from_.strides, false};
  }

 private:
  void compute(std::span<void* const> memory) override {
    to_.over(memory.back()).copy_(from_.over(memory.front()));
  }
  const TensorShape to_, from_;
};

}  // namespace

bool is_host_addressable(c10::DeviceIndex device) {
  return device_memory(device).host_addressable();
}

void read_storage(c10::StorageImpl* storage, size_t offset, size_t nbytes, void* host,
                  Until until) {
  Block* const block = settled_block(storage);
  if (block == nullptr || nbytes == 0) return;
  if (is_host_addressable(*block)) {
    Window::finish(*block);
    std::memcpy(host, at_offset(storage, offset), nbytes);
  } else {
    transfer(*block, host, at_offset(storage, offset), nbytes, Direction::to_host, until);
    // Raises where the values are missing.
    if (until == Until::done) Window::finish(*block);
  }
}

// Up to so many bytes the host copies to page-locked memory rather than wait for the queue.
constexpr size_t kMostStaged = size_t{1} << 20;

// Null where that is not wanted, or there is none.
static c10::DataPtr stage(size_t nbytes, Until until) {
  if (until != Until::done || nbytes > kMostStaged) return {};
  try {
    return own_pinned_allocator().allocate(nbytes);
  } catch (const c10::OutOfMemoryError&) {
    return {};
  }
}

void write_storage(c10::StorageImpl* storage, size_t offset, size_t nbytes, const void* host,
                   Until until) {
  Block* const block = settled_block(storage);
  if (block == nullptr || nbytes == 0) return;
  if (is_host_addressable(*block)) {
    Window::finish(*block);
    std::memcpy(at_offset(storage, offset), host, nbytes);
  } else if (const c10::DataPtr staged = stage(nbytes, until)) {
    std::memcpy(staged.get(), host, nbytes);
    transfer(*block, at_offset(storage, offset), staged.get(), nbytes, Direction::to_device,
             Until::enqueued);
    own_pinned_allocator().record_event(
        staged.get(), staged.get_context(),
        c10::Stream(c10::Stream::UNSAFE, storage->device(), current_stream(block->device)));
  } else {
    transfer(*block, at_offset(storage, offset), host, nbytes, Direction::to_device, until);
  }
}

void copy_storage(c10::StorageImpl* to, size_t to_offset, c10::StorageImpl* from,
                  size_t from_offset, size_t nbytes) {
  Block* const written = settled_block(to);
  Block* const read = settled_block(from);
  if (written == nullptr || read == nullptr || nbytes == 0) return;
  if (is_host_addressable(*read)) {
    Window::finish(*read);
    write_storage(to, to_offset, nbytes, at_offset(from, from_offset));
  } else if (is_host_addressable(*written)) {
    Window::finish(*written);
    read_storage(from, from_offset, nbytes, at_offset(to, to_offset));
  } else if (read->device == written->device) {
    Window& window = current_channel(read->device).window;
    window.begin_use(*read);
    transfer(*written, at_offset(to, to_offset), at_offset(from, from_offset), nbytes,
             Direction::on_device, Until::enqueued);
    window.end_use(*read, written->last_use.load().ticket);
  } else if (current_channel(written->device)
                 .queue->reaches(*current_channel(read->device).queue)) {
    copy_between(*written, at_offset(to, to_offset), *read, at_offset(from, from_offset), nbytes);
  } else {
    std::vector<char> staged(nbytes);
    read_storage(from, from_offset, nbytes, staged.data());
    write_storage(to, to_offset, nbytes, staged.data());
  }
}

bool copy_strided(const at::Tensor& to, const at::Tensor& from) {
  auto* const out = to.unsafeGetTensorImpl();
  const auto* const in = from.unsafeGetTensorImpl();
  const c10::DeviceIndex device = out->device().index();
  if (!is_plain_strided(out) || !is_plain_strided(in) || out->device() != in->device() ||
      is_host_addressable(device) || out->dtype() != in->dtype() || out->numel() == 0 ||
      out->sizes() != in->sizes() || overlaps_itself(out) ||
      overlap_status(out, in) != at::MemOverlapStatus::No) {
    return false;
  }
  void* const first = out->mutable_data();
  Block* const written = operand_block(out);
  Block* const read = operand_block(in);
  if (written == nullptr || read == nullptr) return false;
  Channel& channel = current_channel(device);
  const std::array<BlockState*, 2> used{read, written};
  const StridedCopy copy{first,
                         in->data(),
                         out->itemsize(),
                         out->sizes(),
                         out->strides(),
                         in->strides(),
                         Window::watcher() != nullptr};
  if (is_plain_operand(to, device) && channel.queue->copies_strided(copy)) {
    // What lies between the elements stays.
    const std::array<const at::Tensor*, 2> reads{&from, &to};
    const size_t count = out->is_non_overlapping_and_dense() ? 1 : 2;
    record_call("copy_", {reads.data(), count}, &to, std::make_shared<StridedCopyCall>(to, from));
    return true;
  }
  return run_in_queue_order(channel, used, *written,
                            [&](Queue& queue) { return queue.copy_strided(copy); });
}

at::Tensor element_on_host(const at::Tensor& tensor) {
  auto host = at::detail::empty_cpu({}, tensor.scalar_type());
  read_storage(tensor.storage().unsafeGetStorageImpl(), extent_of(tensor).begin,
               tensor.element_size(), host.mutable_data_ptr());
  return host;
}

Extent extent_of(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  if (tensor.is_nested()) return {0, impl->unsafe_storage().nbytes()};
  if (impl->numel() == 0) return {};
  int64_t last = impl->storage_offset();
  for (int64_t d = 0; d < impl->dim(); ++d) last += (impl->size(d) - 1) * impl->stride(d);
  const auto itemsize = impl->itemsize();
  return {static_cast<size_t>(impl->storage_offset()) * itemsize,
          static_cast<size_t>(last + 1) * itemsize};
}

}  // namespace hologram::aten

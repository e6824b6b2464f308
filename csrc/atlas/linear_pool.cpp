#include "atlas/linear_pool.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "atlas/backend.h"

namespace hologram {
namespace {

constexpr size_t kSmallSegment = kSegmentAlignment;
constexpr size_t kLargestSmall = kSmallSegment / 2;

// The inverse of LinearPool::index_of(): the largest request of a size class.
size_t capacity_of(size_t index) {
  if (index < 4) return (index + 1) * 64;
  const size_t k = 8 + (index - 4) / 4;
  return (5 + index % 4) << (k - 2);
}

// Puts the first of the topmost blocks on top that is suitable; false where none of `most` is.
template <class Suits>
bool raise(const FreeStack& free, ptrdiff_t most, Suits&& suits) noexcept {
  FreeBlock* const end = free.end();
  FreeBlock* const last = end - std::min(most, end - free.begin());
  for (FreeBlock* block = end; block != last;) {
    if (!suits(*--block)) continue;
    std::rotate(block, block + 1, end);
    return true;
  }
  return false;
}

}  // namespace

// Its own first, so that queues that take turns do not end up with one another's: then each would
// need new memory in the end.
bool SizeClass::find_ready(const Queue* queue) noexcept {
  return raise(free, 64, [&](const FreeBlock& block) { return block.queue == queue; }) ||
         raise(free, 16, [&](const FreeBlock& block) { return is_ready(block.fence(), queue); });
}

// The one with the lowest address if the queue used it last, or nobody uses it any more; else what
// find_ready() has. Whether a queue's own work was done when a block was freed makes no difference:
// otherwise it would depend on time which block is next.
bool SizeClass::find_first(const Queue* queue) noexcept {
  if (free.empty()) return false;
  const FreeBlock& first = *free.begin();
  if (fenced == 0 || queue == nullptr || first.ticket == 0 || first.queue == queue) {
    free.raise_first();
    return true;
  }
  const bool found = find_ready(queue);
  if (found) free.make_heap(1);
  return found;
}

LinearPool::LinearPool(BlockOrder order) {
  for (size_t i = 0; i < kSizeClasses; ++i) {
    SizeClass& size_class = size_classes_[i];
    size_class.by_address = order == BlockOrder::lowest;
    size_class.capacity = capacity_of(i);
    if (size_class.capacity <= kLargestSmall) {
      size_class.segment_bytes = kSmallSegment;
      size_class.blocks_per_segment = kSmallSegment / size_class.capacity;
      size_class.shift = std::bit_width(size_class.capacity) - 1;
    } else {
      size_class.segment_bytes = size_class.capacity;
      size_class.blocks_per_segment = 1;
      size_class.shift = 63;  // the only block has entry 0
    }
  }
}

size_t LinearPool::round_size(size_t nbytes) noexcept {
  if (nbytes == 0) return 0;
  return nbytes > kLargestRequest ? nbytes : capacity_of(index_of(nbytes));
}

bool LinearPool::take_larger(const SizeClass& size_class, int size_classes, size_t nbytes,
                             const Queue* queue, Allocation& block) noexcept {
  const auto own = static_cast<int>(&size_class - size_classes_.get());
  for (int i = own + 1; i <= std::min(own + size_classes, kSizeClasses - 1); ++i) {
    SizeClass& from = size_classes_[static_cast<size_t>(i)];
    if (take(from, nbytes, counted(size_class, from), queue, block)) return true;
  }
  return false;
}

bool LinearPool::carve(const SizeClass& size_class, int size_classes, size_t nbytes,
                       Allocation& block) noexcept {
  const auto own = static_cast<int>(&size_class - size_classes_.get());
  for (int i = own; i <= std::min(own + size_classes, kSizeClasses - 1); ++i) {
    SizeClass& from = size_classes_[static_cast<size_t>(i)];
    Segment* const segment = from.carving;
    if (segment == nullptr) continue;
    char* const data = segment->base + segment->carved * from.capacity;
    if (++segment->carved == from.blocks_per_segment) from.carving = nullptr;
    block = {data, counted(size_class, from), {}, true};
    hand_out(from, *segment, data, nbytes, block.capacity);
    return true;
  }
  return false;
}

bool LinearPool::contains(const void* pointer) const noexcept {
  const Segment* segment = map_->find(pointer);
  return segment != nullptr && segment->offset_of(pointer) < segment->bytes;
}

bool LinearPool::starts_block(const void* data) const noexcept {
  const Segment* segment = map_->find(data);
  return segment == nullptr || segment->size_class->starts_block(segment->offset_of(data));
}

size_t LinearPool::block_capacity(const void* data) const noexcept {
  const Segment* segment = map_->find(data);
  if (segment == nullptr) return 0;
  const bool starts = segment->size_class->starts_block(segment->offset_of(data));
  return starts && segment->requested_of(data) != 0 ? segment->counted : 0;
}

NewSegment LinearPool::make(SizeClass& size_class) {
  auto segment = std::make_unique<Segment>();
  const size_t entries = size_class.large() ? 1 : size_class.segment_bytes >> size_class.shift;
  if (entries > segment->few.size()) segment->many = std::make_unique<size_t[]>(entries);
  segment->requested = segment->many ? segment->many.get() : segment->few.data();
  segment->bytes = size_class.segment_bytes;
  segment->size_class = &size_class;
  return {std::move(segment), FreeStack(size_class.blocks + size_class.blocks_per_segment)};
}

void LinearPool::prepare(NewSegment& made, void* base) {
  made.segment->base = static_cast<char*>(base);
  map_->prepare(base, made.segment->bytes);
}

void LinearPool::add(NewSegment& made) noexcept {
  Segment* const segment = made.segment.release();
  SizeClass& size_class = *segment->size_class;
  made.free.copy_from(size_class.free);
  size_class.free.swap(made.free);
  size_class.blocks += size_class.blocks_per_segment;
  size_class.carving = segment;
  map_->set(segment->base, segment->bytes, segment);
  segment->next = segments_;
  if (segments_ != nullptr) segments_->previous = segment;
  segments_ = segment;
}

Segment* LinearPool::remove_idle(Fences& fences) noexcept {
  for (size_t i = 0; i < kSizeClasses; ++i) {
    SizeClass& size_class = size_classes_[i];
    size_class.free.erase_if([&](const FreeBlock& block) {
      if (block.segment->live != 0) return false;
      fences.add(block.fence());
      size_class.fenced -= block.ticket != 0;
      return true;
    });
    if (size_class.by_address) size_class.free.make_heap();
    if (size_class.carving != nullptr && size_class.carving->live == 0) {
      size_class.carving = nullptr;
    }
  }
  Segment* idle = nullptr;
  for (Segment *segment = segments_, *next; segment != nullptr; segment = next) {
    next = segment->next;
    if (segment->live != 0) continue;
    (segment->previous != nullptr ? segment->previous->next : segments_) = next;
    if (next != nullptr) next->previous = segment->previous;
    segment->size_class->blocks -= segment->size_class->blocks_per_segment;
    map_->set(segment->base, segment->bytes, nullptr);
    segment->next = idle;
    idle = segment;
  }
  return idle;
}

Segment* LinearPool::remove_all() noexcept {
  return std::exchange(segments_, nullptr);
}

}  // namespace hologram

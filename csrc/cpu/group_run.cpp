#include "cpu/group_run.h"
#include "cpu/row_run.h"

#include <algorithm>
#include <cstring>

#include "atlas/error.h"
#include "cpu/scalar.h"
#include "cpu/upper_registers.h"

namespace hologram::cpu {
namespace {

constexpr size_t kPrefetchOperands = 3;  // the processor fetches fewer ahead by itself
constexpr long kPrefetchDistance = 2048;
// Bytes that the caches may still hold: there, fetching ahead is only more work.
constexpr int64_t kPrefetchFrom = int64_t{4} << 20;
constexpr uint32_t kStackFrame = 32'768;

}  // namespace

Parallel& serial() {
  static auto& parallel = *new Parallel;
  return parallel;
}

void GroupRun::run(Parallel& parallel) {
  int64_t elements = 0;
  for (const Binding& binding : bindings_) elements += binding.count;
  streams_ = streams(elements);
  int threads = 1;
  if (elements >= kSerialElements) {
    for (const Binding& binding : bindings_) chunks_ += chunks_of(binding);
    threads = static_cast<int>(std::min<int64_t>(std::max(parallel.threads(), 1), chunks_));
  }
  if (group_.strided_) {
    if (bindings_.size() > 1) {
      more_spaces_.resize(bindings_.size());
      spaces_ = more_spaces_.data();
    }
    for (size_t i = 0; i < bindings_.size(); ++i) spaces_[i].collapse(bindings_[i], group_.uses_);
  }
  std::unique_ptr<char, Free> frames;
  if (group_.frame_size_ > kStackFrame) {
    frames.reset(allocate(group_.frame_size_ * static_cast<size_t>(threads)));
    frames_ = frames.get();
  }
  if (threads == 1) {
    if (frames_ != nullptr) {
      whole(frames_);
    } else {
      alignas(64) char frame[kStackFrame];
      whole(frame);
    }
    return;
  }
  // Few enough for the processor to see prefetches, enough for threads to finish together.
  mode_ = float_mode();
  claim_ = std::clamp<int64_t>(chunks_ / (threads * int64_t{16}), 1, 16);
  part_count_ = threads;
  parts_ = std::make_unique<Part[]>(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    parts_[static_cast<size_t>(i)].next = chunks_ * i / threads;
    parts_[static_cast<size_t>(i)].end = chunks_ * (i + 1) / threads;
  }
  parallel.run(
      threads, [](void* self, int thread) { static_cast<GroupRun*>(self)->work(thread); }, this);
}

char* GroupRun::allocate(size_t bytes) {
  void* p = operator new (bytes, std::align_val_t{64}, std::nothrow);
  if (p == nullptr) throw OutOfMemory(bytes, 0, 0, 0);
  return static_cast<char*>(p);
}

// Whether all members together are more than the caches may hold.
bool GroupRun::streams(int64_t elements) const {
  if (group_.strided_ || group_.uses_.size() < kPrefetchOperands) return false;
  int64_t bytes = 0;
  for (const auto& use : group_.uses_) bytes += use.size * elements;
  return bytes >= kPrefetchFrom;
}

int64_t GroupRun::chunks_of(const Binding& binding) const {
  return (binding.count + chunk_elements_ - 1) / chunk_elements_;
}

// All of it, by the calling thread.
void GroupRun::whole(char* frame) const {
  for (size_t i = 0; i < bindings_.size(); ++i) {
    const int64_t count = bindings_[i].count;
    if (count <= 0) continue;
    Member member = set_up(i, frame);
    int64_t last = 0;
    if (member.prefetch_count != 0 && i + 1 < bindings_.size()) {
      last =
          std::max<int64_t>(count - kPrefetchDistance / size_, 0) / kernels_.lanes * kernels_.lanes;
      range(member, 0, last);
      aim_prefetches(member, last, bindings_[i + 1]);
    }
    range(member, last, count);
  }
}

// Where a member's last elements, from `at` on, are computed, the first ones of the next are
// fetched.
void GroupRun::aim_prefetches(Member& member, int64_t at, const Binding& next) const {
  for (int i = 0; i < member.prefetch_count; ++i) {
    Prefetch& prefetch = member.prefetches[i];
    const auto here = reinterpret_cast<uintptr_t>(member.pointers()[prefetch.pointer]);
    const auto there = reinterpret_cast<uintptr_t>(next.operands[prefetch.pointer]);
    prefetch.distance = static_cast<long>(there - here) - at * prefetch.size;
  }
}

void GroupRun::work(int thread) {
  if (frames_ != nullptr) {
    const auto taken = static_cast<size_t>(next_frame_.fetch_add(1, std::memory_order_relaxed));
    share(thread, frames_ + taken * group_.frame_size_);
  } else {
    alignas(64) char frame[kStackFrame];
    share(thread, frame);
  }
}

void GroupRun::share(int thread, char* frame) {
  const FloatModeGuard mode(mode_);
  const UpperRegistersGuard upper;
  for (int i = 0; i < part_count_; ++i) {
    finish(parts_[static_cast<size_t>((thread + i) % part_count_)], frame);
  }
}

// Some chunks at a time as long as there are any.
void GroupRun::finish(Part& part, char* frame) {
  size_t member = 0;
  int64_t first = 0;  // chunk of the member
  while (true) {
    int64_t at = part.next.fetch_add(claim_, std::memory_order_relaxed);
    const int64_t end = std::min(at + claim_, part.end);
    if (at >= end) break;
    while (at < end) {
      int64_t beyond = first + chunks_of(bindings_[member]);
      for (; beyond <= at; beyond += chunks_of(bindings_[++member])) first = beyond;
      const int64_t stop = std::min(end, beyond);
      range(set_up(member, frame), (at - first) * chunk_elements_,
            std::min((stop - first) * chunk_elements_, bindings_[member].count));
      at = stop;
    }
  }
}

void CompiledGroup::set_up(char* frame, std::span<void* const> operands,
                           const uint64_t* immediates) const {
  char** bases = reinterpret_cast<char**>(frame);
  for (size_t i = 0; i < operands.size(); ++i) bases[i] = static_cast<char*>(operands[i]);
  const int n = operands_;
  bases[n] = frame + slots_;
  bases[n + 1] = reinterpret_cast<char*>(const_cast<uint64_t*>(immediates));
  bases[n + 2] = frame + scalars_at_;
  bases[n + 3] = nullptr;  // element 0
  for (size_t i = 0; i < scalars_.size(); ++i) {
    const auto& use = scalars_[i];
    const void* x = bases[use.operand];
    uint64_t bits = 0;
    switch (compute_type_) {
      case ComputeType::f32: bits = scalar_bits<float>(x, use.from, use.to); break;
      case ComputeType::f64: bits = scalar_bits<double>(x, use.from, use.to); break;
      case ComputeType::i64: bits = scalar_bits<int64_t>(x, use.from, use.to); break;
    }
    std::memcpy(bases[n + 2] + 8 * i, &bits, sizeof bits);
  }
}

GroupRun::Member GroupRun::set_up(size_t index, char* frame) const {
  const Binding& binding = bindings_[index];
  group_.set_up(frame, {binding.operands, static_cast<size_t>(group_.operands_)},
                binding.immediates);
  Member member(binding, group_.strided_ ? &spaces_[index] : nullptr, frame);
  choose_prefetches(member);
  return member;
}

// Elements [begin, end); begin is the first of a tile.
void GroupRun::range(const Member& member, int64_t begin, int64_t end) const {
  if (group_.strided_) {
    strided_range(member, begin, end);
    return;
  }
  const int64_t whole = begin + (end - begin) / kernels_.lanes * kernels_.lanes;
  if (whole > begin) {
    Extent extent{begin * size_, whole * size_};
    extent.prefetches = member.prefetches;
    extent.prefetch_count = member.prefetch_count;
    group_.run_(group_.code_.data(), member.pointers(), extent);
  }
  if (whole < end) tail(member.frame, whole, end - whole);
}

char** GroupRun::tile_pointers(char* frame) const {
  char** bases = reinterpret_cast<char**>(frame);
  char** tile = bases + group_.pointer_count();
  std::copy_n(bases, group_.pointer_count(), tile);
  return tile;
}

// Fewer elements than a tile, all operands dense: in scratch.
void GroupRun::tail(char* frame, int64_t at, int64_t n) const {
  char** tile = tile_pointers(frame);
  tile[group_.elements_pointer()] = place_of(at);
  for (const auto& use : group_.uses_) {
    char* scratch = frame + use.scratch;
    const char* data = tile[use.operand] + at * use.size;
    tile[use.operand] = scratch;
    if (!use.loaded) continue;
    const size_t bytes = static_cast<size_t>(n) * use.size;
    std::memcpy(scratch, data, bytes);
    std::memset(scratch + bytes, 0, static_cast<size_t>(kernels_.lanes) * use.size - bytes);
  }
  group_.run_(group_.code_.data(), tile, {0, kernels_.lanes * size_});
  char* const* bases = reinterpret_cast<char* const*>(frame);
  for (const auto& use : group_.uses_) {
    if (!use.stored) continue;
    std::memcpy(bases[use.operand] + at * use.size, frame + use.scratch,
                static_cast<size_t>(n) * use.size);
  }
}

void GroupRun::choose_prefetches(Member& member) const {
  if (!streams_) return;
  for (const auto& use : group_.uses_) {
    if (member.prefetch_count == kMostPrefetches) break;
    member.prefetches[member.prefetch_count++] = {use.operand, use.size, kPrefetchDistance};
  }
}

void run(const CompiledGroup& group, std::span<const Binding> bindings, Parallel& parallel) {
  const UpperRegistersGuard upper;
  if (group.rows_ != nullptr) {
    for (const Binding& binding : bindings) {
      RowRun(*group.rows_, binding).run(parallel);
    }
    return;
  }
  GroupRun(group, bindings).run(parallel);
}

}  // namespace hologram::cpu

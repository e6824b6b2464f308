// Groups with strided operands: tile by tile, in place where an operand's elements are
// contiguous, through a copy where they are not.
#include <algorithm>
#include <cstring>

#include "cpu/group_run.h"

namespace hologram::cpu {

void GroupRun::strided_range(const Member& member, int64_t begin, int64_t end) const {
  const StridedSpace& space = *member.space;
  char* frame = member.frame;
  int64_t position[kMaxRank];
  int64_t rest = begin;
  for (int d = space.rank() - 1; d >= 0; --d) {
    position[d] = rest % space.sizes()[d];
    rest /= space.sizes()[d];
  }
  char* const* bases = member.pointers();
  char** tile = tile_pointers(frame);
  const char* held[kHeld] = {};
  for (int64_t at = begin; at < end; at += kernels_.lanes) {
    const int64_t n = std::min<int64_t>(kernels_.lanes, end - at);
    for (size_t u = 0; u < group_.uses_.size(); ++u) {
      const auto& use = group_.uses_[u];
      tile[use.operand] = place_tile(member, u, at, n, position, held);
    }
    group_.run_(group_.code_.data(), tile, 0, 1, nullptr, 0);
    for (size_t u = 0; u < group_.uses_.size(); ++u) {
      const auto& use = group_.uses_[u];
      char* scratch = frame + use.scratch;
      if (!use.stored || tile[use.operand] != scratch) continue;
      if (use.strided) {
        space.walk(u, bases[use.operand], n, position,
                   [&](char* data, int64_t stride, int64_t done, int64_t run) {
                     copy_strided(data, stride, scratch + done * use.size, use.size, run, use.size);
                   });
      } else {
        std::memcpy(bases[use.operand] + at * use.size, scratch, static_cast<size_t>(n) * use.size);
      }
    }
    space.advance(position, n);
  }
}

// Where the code finds the tile of one operand: in its memory if that is contiguous, or a copy.
// held[u]: the element that fills the copy since an earlier tile, or null.
char* GroupRun::place_tile(const Member& member, size_t u, int64_t at, int64_t n,
                           const int64_t* position, const char** held) const {
  const auto& use = group_.uses_[u];
  const StridedSpace& space = *member.space;
  char* const* bases = member.pointers();
  char* scratch = member.frame + use.scratch;
  const bool full = n == kernels_.lanes;
  if (!use.strided) {
    char* data = bases[use.operand] + at * use.size;
    if (full) return data;
    if (use.loaded) std::memcpy(scratch, data, static_cast<size_t>(n) * use.size);
  } else {
    const int64_t left = space.sizes()[space.rank() - 1] - position[space.rank() - 1];
    const int64_t stride = space.strides(u)[space.rank() - 1];
    if (full && left >= n && stride == use.size) {
      return bases[use.operand] + space.offset(u, position);
    }
    if (use.loaded && !use.stored && u < kHeld) {
      const char* element = nullptr;
      if (full && left >= n && stride == 0) {
        element = bases[use.operand] + space.offset(u, position);
        if (element == held[u]) return scratch;
      }
      held[u] = element;
    }
    if (use.loaded) {
      space.walk(u, bases[use.operand], n, position,
                 [&](const char* data, int64_t step, int64_t done, int64_t run) {
                   copy_strided(scratch + done * use.size, use.size, data, step, run, use.size);
                 });
    }
  }
  if (use.loaded && !full) {
    std::memset(scratch + n * use.size, 0, static_cast<size_t>(kernels_.lanes - n) * use.size);
  }
  return scratch;
}

}  // namespace hologram::cpu

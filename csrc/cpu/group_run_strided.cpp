// Groups with strided operands: in place where an operand's elements are contiguous, through a copy
// where they are not.
//
// Where rows, the innermost dimension, are as long as a tile, they are run tiles at a time, each
// row with a tail of its own: a bias or a scale of rows costs as little as a dense operand. Shorter
// rows are run tile by tile, across their ends.
#include <algorithm>
#include <cstring>

#include "cpu/group_run.h"

namespace hologram::cpu {

void GroupRun::strided_range(const Member& member, int64_t begin, int64_t end) const {
  if (has_long_rows(*member.space)) {
    rows_range(member, begin, end);
  } else {
    tiles_range(member, begin, end);
  }
}

// Whether rows are run one by one: what is stored has to be contiguous in them.
bool GroupRun::has_long_rows(const StridedSpace& space) const {
  const int inner = space.rank() - 1;
  if (space.sizes()[inner] < kernels_.lanes) return false;
  for (size_t u = 0; u < group_.uses_.size(); ++u) {
    const auto& use = group_.uses_[u];
    if (use.strided && use.stored && space.strides(u)[inner] != use.size) return false;
  }
  return true;
}

void GroupRun::rows_range(const Member& member, int64_t begin, int64_t end) const {
  const StridedSpace& space = *member.space;
  const int inner = space.rank() - 1;
  const int64_t lanes = kernels_.lanes, row = space.sizes()[inner];
  // Elements of a row that a copy holds.
  const int64_t copied = std::min<int64_t>(kRowTiles * lanes, row);
  const auto stride_of = [&](size_t u) {
    const auto& use = group_.uses_[u];
    return use.strided ? space.strides(u)[inner] : int64_t{use.size};
  };
  bool copies = false;
  for (size_t u = 0; u < group_.uses_.size(); ++u) {
    copies = copies || stride_of(u) != group_.uses_[u].size;
  }
  int64_t position[kMaxRank];
  space.find(begin, position);
  char* const* bases = member.pointers();
  char** tile = tile_pointers(member.frame);
  const char* held[kHeld] = {};  // the element that fills a copy
  for (int64_t at = begin, n = 0; at < end; at += n, space.advance(position, n)) {
    const auto address = [&](size_t u) {
      const auto& use = group_.uses_[u];
      return bases[use.operand] + (use.strided ? space.offset(u, position) : at * use.size);
    };
    n = std::min(row - position[inner], end - at);
    const bool whole = n >= lanes;
    if (whole && copies) n = std::min(n, kRowTiles * lanes);
    if (whole) n -= n % lanes;
    for (size_t u = 0; u < group_.uses_.size(); ++u) {
      const auto& use = group_.uses_[u];
      const int64_t stride = stride_of(u);
      char* const data = address(u);
      if (whole && stride == use.size) {
        tile[use.operand] = data;
        continue;
      }
      char* const scratch = member.frame + use.scratch;
      tile[use.operand] = scratch;
      if (!use.loaded) continue;
      if (stride == 0 && u < kHeld) {
        if (held[u] == data) continue;
        held[u] = data;
        copy_strided(scratch, use.size, data, 0, copied, use.size);
        continue;
      }
      copy_strided(scratch, use.size, data, stride, n, use.size);
      if (!whole) std::memset(scratch + n * use.size, 0, static_cast<size_t>(lanes - n) * use.size);
    }
    tile[group_.elements_pointer()] = place_of(at);
    group_.run_(group_.code_.data(), tile, {0, (whole ? n : lanes) * size_});
    if (whole) continue;
    for (size_t u = 0; u < group_.uses_.size(); ++u) {
      const auto& use = group_.uses_[u];
      if (!use.stored) continue;
      std::memcpy(address(u), member.frame + use.scratch, static_cast<size_t>(n) * use.size);
    }
  }
}

void GroupRun::tiles_range(const Member& member, int64_t begin, int64_t end) const {
  const StridedSpace& space = *member.space;
  char* frame = member.frame;
  int64_t position[kMaxRank];
  space.find(begin, position);
  char* const* bases = member.pointers();
  char** tile = tile_pointers(frame);
  const char* held[kHeld] = {};
  for (int64_t at = begin; at < end; at += kernels_.lanes) {
    const int64_t n = std::min<int64_t>(kernels_.lanes, end - at);
    for (size_t u = 0; u < group_.uses_.size(); ++u) {
      const auto& use = group_.uses_[u];
      tile[use.operand] = place_tile(member, u, at, n, position, held);
    }
    tile[group_.elements_pointer()] = place_of(at);
    group_.run_(group_.code_.data(), tile, {0, kernels_.lanes * size_});
    for (size_t u = 0; u < group_.uses_.size(); ++u) {
      const auto& use = group_.uses_[u];
      char* scratch = frame + use.scratch;
      if (!use.stored || tile[use.operand] != scratch) continue;
      if (use.strided) {
        space.walk(u, bases[use.operand], n, position,
                   [&](char* data, int64_t stride, int64_t run) {
                     copy_strided(data, stride, scratch, use.size, run, use.size);
                     scratch += run * use.size;
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
      char* to = scratch;
      space.walk(u, bases[use.operand], n, position,
                 [&](const char* data, int64_t step, int64_t run) {
                   copy_strided(to, use.size, data, step, run, use.size);
                   to += run * use.size;
                 });
    }
  }
  if (use.loaded && !full) {
    std::memset(scratch + n * use.size, 0, static_cast<size_t>(kernels_.lanes - n) * use.size);
  }
  return scratch;
}

}  // namespace hologram::cpu

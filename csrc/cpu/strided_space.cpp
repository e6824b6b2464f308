#include "cpu/strided_space.h"

#include <cstring>

#include "atlas/error.h"

namespace hologram::cpu {

void StridedSpace::collapse(const Binding& binding, std::span<const OperandUse> uses) {
  const int rank = binding.rank;
  if (rank > kMaxRank) throw Error("more than 64 dimensions");
  rank_ = 0;
  step_ = static_cast<size_t>(std::max(rank, 1));
  numbers_.resize((uses.size() + 1) * step_);
  int64_t* const collapsed = numbers_.data();
  const auto row = [&](size_t use) { return collapsed + (use + 1) * step_; };
  const auto stride = [&](size_t use, int d) {
    return binding.strides[uses[use].operand * rank + d];
  };
  for (int d = 0; d < rank; ++d) {
    const int64_t size = binding.sizes[d];
    if (size == 1) continue;
    bool merge = rank_ > 0;
    for (size_t u = 0; merge && u < uses.size(); ++u) {
      if (!uses[u].strided) continue;
      merge = row(u)[rank_ - 1] == stride(u, d) * size;
    }
    if (!merge) collapsed[rank_++] = 1;
    collapsed[rank_ - 1] *= size;
    for (size_t u = 0; u < uses.size(); ++u) row(u)[rank_ - 1] = stride(u, d);
  }
  if (rank_ == 0) collapsed[rank_++] = 1;
}

namespace {

// Short rows are copied in line: a call of memcpy takes as long as they do.
void copy_bytes(char* to, const char* from, size_t bytes) {
  constexpr size_t kStep = 16, kInLine = 256;
  if (bytes > kInLine) {
    std::memcpy(to, from, bytes);
    return;
  }
  for (; bytes >= kStep; bytes -= kStep, to += kStep, from += kStep) std::memcpy(to, from, kStep);
  if (bytes != 0) std::memcpy(to, from, bytes);
}

}  // namespace

void copy_strided(char* to, int64_t to_step, const char* from, int64_t from_step, int64_t n,
                  size_t size) {
  const auto loop = [&]<class U>(U) {
    if (to_step == static_cast<int64_t>(sizeof(U)) && from_step == to_step) {
      copy_bytes(to, from, static_cast<size_t>(n) * sizeof(U));
      return;
    }
    if (from_step == 0 && to_step == static_cast<int64_t>(sizeof(U))) {
      char pattern[16];
      for (size_t i = 0; i < sizeof pattern; i += sizeof(U))
        std::memcpy(pattern + i, from, sizeof(U));
      constexpr auto each = static_cast<int64_t>(sizeof pattern / sizeof(U));
      for (; n >= each; n -= each, to += sizeof pattern) std::memcpy(to, pattern, sizeof pattern);
      std::memcpy(to, pattern, static_cast<size_t>(n) * sizeof(U));
      return;
    }
    for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * to_step, from + i * from_step, sizeof(U));
  };
  switch (size) {
    case 1: loop(uint8_t{}); break;
    case 2: loop(uint16_t{}); break;
    case 4: loop(uint32_t{}); break;
    default: loop(uint64_t{}); break;
  }
}

}  // namespace hologram::cpu

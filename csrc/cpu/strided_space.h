// The iteration space of a binding with strided operands.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu/compiled_group.h"

namespace hologram::cpu {

constexpr int kMaxRank = 64;

// With as few dimensions as the strides of the strided operands allow. A position is an index for
// each dimension.
class StridedSpace {
 public:
  // Throws Error for more than kMaxRank dimensions.
  void collapse(const Binding& binding, std::span<const OperandUse> uses);

  int rank() const { return rank_; }
  const int64_t* sizes() const { return numbers_.data(); }
  // In bytes, of the operand of a use.
  const int64_t* strides(size_t use) const { return numbers_.data() + (use + 1) * step_; }

  // The position of an element.
  void find(int64_t element, int64_t* position) const {
    for (int d = rank_ - 1; d >= 0; --d) {
      position[d] = element % sizes()[d];
      element /= sizes()[d];
    }
  }

  int64_t offset(size_t use, const int64_t* position) const {
    int64_t bytes = 0;
    for (int d = 0; d < rank_; ++d) bytes += position[d] * strides(use)[d];
    return bytes;
  }

  void advance(int64_t* position, int64_t n) const {
    for (int d = rank_ - 1; d >= 0; --d) {
      position[d] += n;
      if (position[d] < sizes()[d]) return;
      n = position[d] / sizes()[d];
      position[d] %= sizes()[d];
    }
  }

  // Calls body(address, stride, elements) for each piece of a row among the n elements, at least
  // one, from a position on.
  template <class Body>
  void walk(size_t use, char* base, int64_t n, const int64_t* position, Body&& body) const {
    int64_t here[kMaxRank];
    std::copy_n(position, rank_, here);
    const int inner = rank_ - 1;
    const int64_t* const step = strides(use);
    char* row = base + offset(use, position) - position[inner] * step[inner];
    while (true) {
      const int64_t run = std::min(sizes()[inner] - here[inner], n);
      body(row + here[inner] * step[inner], step[inner], run);
      n -= run;
      if (n == 0) return;
      // The next row: short ones are many, so its address is not computed anew.
      here[inner] = 0;
      for (int d = inner - 1; d >= 0; --d) {
        row += step[d];
        if (++here[d] < sizes()[d]) break;
        row -= here[d] * step[d];
        here[d] = 0;
      }
    }
  }

 private:
  int rank_ = 0;
  size_t step_ = 1;               // from one row of numbers to the next
  std::vector<int64_t> numbers_;  // sizes, then strides in bytes of each use
};

// `n` elements between strided memory and a tile. `step` is in bytes.
void copy_strided(char* to, int64_t to_step, const char* from, int64_t from_step, int64_t n,
                  size_t size);

}  // namespace hologram::cpu

// What moves.cpp and indices.cpp make launches with: the points that a kernel has a thread for, its
// parameters, and the launches that both need.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "gpu/dialect/moves_limits.h"
#include "gpu/launch.h"
#include "gpu/moves.h"

namespace hologram::gpu {

// Throws Error unless it holds.
void require(bool holds, const char* why);

int64_t count_of(const std::vector<int64_t>& sizes);

inline int64_t divided_up(int64_t n, int64_t by) {
  return (n + by - 1) / by;
}

// Of all addresses, at most 16.
size_t alignment_of(std::initializer_list<const void*> addresses);

// The name that kernels of elements of so many bytes have.
const char* element_type(size_t bytes);

// A dimension, and the stride of each operand along it.
constexpr size_t kIndexOperands = 4;  // after to, from, the position and the claim
constexpr size_t kMostOperands = kIndexOperands + HG_MOVE_INDICES;
struct Dimension {
  int64_t size;
  std::array<int64_t, kMostOperands> stride{};
};

// The points of a launch. Of its operands the first `data` ones hold what is moved, their elements
// having `bytes`; strides of others are in elements of their own.
struct Space {
  std::vector<Dimension> dimensions;
  size_t operands = 0, data = 0;
  size_t bytes = 0;

  int64_t count() const;
  // Dimensions with a stride for each operand.
  void add(int64_t size, std::initializer_list<int64_t> strides);
  bool joins(const Dimension& x, const Dimension& y) const;
  // Dimensions as few as can be, of which the first operand has the shortest steps last. Those
  // along which it stays where it is come first: what it writes there, an index says.
  void simplify();
  // Elements in parts, of which each is that of a new dimension.
  void divide(int64_t parts);
  // Whether `parts` neighbours can be one element.
  bool can_unite(int64_t parts) const;
  void unite(int64_t parts);

 private:
  void sort();
  void join();
};

Space space_of(size_t bytes, const Tensor& to);
Space space_of(size_t bytes, const Tensor& to, const Tensor& other, bool is_data);

// Of a tensor of indices: the size of the dimension that they are of, and the strides along it.
struct Along {
  int64_t size, to, from;
  bool wraps;
};

// The parameters of a launch, one after another.
class Fields {
 public:
  explicit Fields(bool wide) : bytes_(wide ? 8 : 4) {}
  void add(int64_t number);
  // Of each of `most` dimensions, where there are so many.
  template <class F>
  void add_each(size_t count, size_t most, int64_t rest, F&& f) {
    for (size_t i = 0; i < most; ++i) add(i < count ? f(i) : rest);
  }
  void add_pattern(std::span<const std::byte, 16> pattern);
  // With the strides of its first so many operands.
  void add_space(const Space& space, size_t operands);
  void add_strides(const Space& space, size_t operand);
  std::vector<std::byte> take() { return std::move(all_); }

 private:
  const size_t bytes_;
  std::vector<std::byte> all_;
};

// Adds launches one after another.
class MoveLaunches {
 public:
  explicit MoveLaunches(const Target& target) : target_(target) {}
  Launches take() { return std::move(result_); }

  // Of elements of different dtypes.
  void cast(Space space, const char* types, Argument to, Argument from);

  // "fill", or "masked_fill" with a mask behind what is filled.
  void fill(const char* name, Space space, std::vector<Argument> arguments, const void* element);

  Argument scratch(int64_t count, size_t bytes);

 protected:
  // Elements as wide as all addresses and strides allow, also those along which indices move, and
  // dimensions as few.
  static void prepare(Space& space, std::initializer_list<const void*> addresses);
  static void prepare(Space& space, std::initializer_list<const void*> addresses,
                      std::vector<Along>& along);
  // A pattern of 16 bytes, of which each element is one.
  static std::array<std::byte, 16> pattern_of(size_t bytes, const void* element);
  bool is_wide(const Space& space, const std::vector<Along>& along = {}) const;

  void add(const char* name, const char* types, bool wide, int64_t blocks, unsigned threads,
           std::vector<Argument> arguments, Fields& fields);
  unsigned block_of(int64_t threads) const;
  // A thread for HG_MOVE_EACH points.
  void spread(const char* name, const char* types, bool wide, int64_t count,
              std::vector<Argument> arguments, Fields& fields);
  void copy_as(const char* name, const char* types, const Space& space, Argument to, Argument from);

  const Target& target_;

 private:
  Launches result_;
};

}  // namespace hologram::gpu

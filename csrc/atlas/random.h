// The random numbers of a device: their state, in no backend's terms, and what of it a draw takes.
//
// What a draw gives is a function of the seed, of its place among all draws and of the number of
// each element in its space, so every backend computes the same numbers in any order.
#pragma once

#include <cstdint>
#include <mutex>

#include "atlas/op_info.h"

namespace hologram {

// What a generator is: a seed, the key of Philox (atlas/philox.h), and how many of its counters
// have been drawn from.
struct RandomState {
  uint64_t seed;
  uint64_t offset = 0;
};

// What elements are drawn from, equally distributed. Element i is made of word i % n of counter
// offset + i / n, where n is kWords; of those that take two words, of words 2 (i % 2) and
// 2 (i % 2) + 1, low word first, of counter offset + i / 2.
enum class Draw : uint8_t {
  // [0, 1): as many of a word's upper bits as the dtype has digits, of f64 of two words, times the
  // power of two that makes the next number 1.
  uniform,
  // The standard normal distribution by Box and Muller's transform: of words u and v the elements
  // sqrt(-2 log u) cos(2 pi v) and sqrt(-2 log u) sin(2 pi v), of f64 of two words each.
  normal,
  // The integers [0, range) with a range of at most 2^32: word * range / 2^32, rounded down.
  integer,
  // The same with a range of at most 2^64, which is 0, of two words.
  long_integer,
};
inline constexpr int kDrawCount = 4;

constexpr const char* draw_name(Draw draw) noexcept {
  constexpr const char* kNames[] = {"uniform", "normal", "integer", "long_integer"};
  return kNames[static_cast<size_t>(draw)];
}
// Of one counter.
constexpr int elements_per_counter(Draw draw, DType dtype) noexcept {
  return dtype == DType::f64 || draw == Draw::long_integer ? 2 : 4;
}
// Whether a draw has such a dtype.
constexpr bool is_drawn(Draw draw, DType dtype) noexcept {
  const bool whole = draw == Draw::integer || draw == Draw::long_integer;
  return whole ? dtype == DType::i64 : (dtype_bit(dtype) & kReal) != 0;
}
// The bits that a number of a uniform draw has.
constexpr int digits_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64: return 53;
    case DType::f16: return 11;
    case DType::bf16: return 8;
    default: return 24;
  }
}

// What a generator draws from. Thread-safe.
class RandomSource {
 public:
  explicit RandomSource(const RandomState& state) : state_(state) {}

  // Takes so many counters: the seed, and the first one.
  RandomState reserve(uint64_t counters) {
    const std::lock_guard guard(mutex_);
    const RandomState taken = state_;
    state_.offset += counters;
    return taken;
  }
  RandomState state() const {
    const std::lock_guard guard(mutex_);
    return state_;
  }
  void set_state(const RandomState& state) {
    const std::lock_guard guard(mutex_);
    state_ = state;
  }

 private:
  mutable std::mutex mutex_;
  RandomState state_;
};

// The seed of a generator that was never seeded: torch's.
inline constexpr uint64_t kDefaultSeed = 67280421310721;

}  // namespace hologram

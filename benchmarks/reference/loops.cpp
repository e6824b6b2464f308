// Chains of operations fused by hand, one loop each: how fast this machine can run them at all.
//
// Each loop computes in vector registers what torch computes operation by operation, and rounds to
// bf16 wherever that does: the bits are the same. The math functions are those of the project
// (csrc/cpu/math.h), so that a difference in time is one of fusion and memory, not of another tanh.
// Everything else is what the compiler makes of it with -O3 -march=native: registers, addressing,
// unrolling; the loads ahead of the loop are prefetched. Several threads take chunks in turn.
//
// Compiled by benchmarks/stream.py with the system's compiler.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "lanes.h"

namespace {

constexpr long kChunk = 16 * 1024;   // elements that a thread takes at a time
constexpr long kAhead = 2048;        // bytes
constexpr long kSerial = 32 * 1024;  // elements below which one thread is quicker than two

// One vector of a chain: reads and writes element i of the operands p. A number that is added is
// rounded too, as torch does it; a factor is not.

struct Copy {
  static constexpr int kOperands = 2;
  template <class T, class E>
  HOLOGRAM_INLINE static void step(E* const* p, const float*, long i) {
    T::store(p[1] + i, T::load(p[0] + i));
  }
};

// 0.5 * x * (1 + tanh(x * (b + a * x * x)))
struct Gelu {
  static constexpr int kOperands = 2;
  template <class T, class E>
  HOLOGRAM_INLINE static void step(E* const* p, const float* s, long i) {
    const V x = T::load(p[0] + i);
    V u = T::round(T::round(V(s[0]) * x) * x);
    u = T::round(T::round(T::round(V(s[1])) + u) * x);
    const V t = T::round(T::round(V(s[2])) + T::round(math_tanh(u)));
    T::store(p[1] + i, T::round(T::round(V(s[3]) * x) * t));
  }
};

struct Swiglu {
  static constexpr int kOperands = 3;
  template <class T, class E>
  HOLOGRAM_INLINE static void step(E* const* p, const float*, long i) {
    const V x = T::load(p[0] + i), g = T::load(p[1] + i);
    T::store(p[2] + i, T::round(T::round(x * T::round(math_sigmoid(x))) * g));
  }
};

struct Relu {
  static constexpr int kOperands = 4;
  template <class T, class E>
  HOLOGRAM_INLINE static void step(E* const* p, const float*, long i) {
    const V y = T::round(T::round(T::load(p[0] + i) * T::load(p[1] + i)) + T::load(p[2] + i));
    T::store(p[3] + i, select(y < V(0), V(0), y));
  }
};

// Operands: parameter, gradient, mean, mean of squares.
struct Adam {
  static constexpr int kOperands = 4;
  template <class T, class E>
  HOLOGRAM_INLINE static void step(E* const* p, const float* s, long i) {
    const V g = T::load(p[1] + i);
    const V m = T::round(T::round(T::load(p[2] + i) * V(s[0])) + T::round(g * V(s[1])));
    const V v =
        T::round(T::round(T::load(p[3] + i) * V(s[2])) + T::round(T::round(g * g) * V(s[3])));
    const V root = T::round(T::round(math_sqrt(v)) + T::round(V(s[5])));
    const V change = T::round(T::round(m * V(s[4])) / root);
    const V parameter = T::round(T::load(p[0] + i) - change);
    T::store(p[0] + i, parameter);
    T::store(p[2] + i, m);
    T::store(p[3] + i, v);
  }
};

template <class Chain, class T, class E>
void loop(E* const* operands, const float* s, long begin, long end) {
  E* p[Chain::kOperands];
  std::copy_n(operands, Chain::kOperands, p);
  float scalars[8];
  std::copy_n(s, 8, scalars);
  long i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    for (E* operand : p) {
      __builtin_prefetch(reinterpret_cast<const char*>(operand + i) + kAhead);
    }
    Chain::template step<T>(p, scalars, i);
  }
  if (i == end) return;
  alignas(64) E rest[Chain::kOperands][kLanes] = {};
  E* r[Chain::kOperands];
  const size_t bytes = static_cast<size_t>(end - i) * sizeof(E);
  for (int k = 0; k < Chain::kOperands; ++k) {
    r[k] = rest[k];
    std::memcpy(r[k], p[k] + i, bytes);
  }
  Chain::template step<T>(r, scalars, 0);
  for (int k = 0; k < Chain::kOperands; ++k) std::memcpy(p[k] + i, r[k], bytes);
}

template <class Chain, class T>
void run(void* const* operands, long tensors, long count, const float* s, int threads,
         long repetitions) {
  using E = typename T::Element;
  const long chunks = (count + kChunk - 1) / kChunk;
  const auto work = [&](long task) {
    E* p[Chain::kOperands];
    for (int i = 0; i < Chain::kOperands; ++i) {
      p[i] = static_cast<E*>(operands[task / chunks * Chain::kOperands + i]);
    }
    const long begin = task % chunks * kChunk;
    loop<Chain, T>(p, s, begin, std::min(begin + kChunk, count));
  };
  const long tasks = tensors * chunks;
  for (long k = 0; k < repetitions; ++k) {
    if (threads == 1 || tensors * count < kSerial) {
      for (long task = 0; task < tasks; ++task) work(task);
    } else {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
      for (long task = 0; task < tasks; ++task) work(task);
    }
  }
}

}  // namespace

// Runs a chain `repetitions` times over `tensors` sets of operands of `count` elements each.
// `scalars` are eight. Returns false if there is no chain of that name.
extern "C" [[gnu::visibility("default")]] bool hologram_reference(const char* chain, bool half,
                                                                  void* const* operands,
                                                                  long tensors, long count,
                                                                  const float* scalars, int threads,
                                                                  long repetitions) {
#define HOLOGRAM_CHAIN(name, Chain)                                                         \
  if (std::strcmp(chain, name) == 0) {                                                      \
    (half ? run<Chain, BF16> : run<Chain, F32>)(operands, tensors, count, scalars, threads, \
                                                repetitions);                               \
    return true;                                                                            \
  }
  HOLOGRAM_CHAIN("copy", Copy)
  HOLOGRAM_CHAIN("gelu", Gelu)
  HOLOGRAM_CHAIN("swiglu", Swiglu)
  HOLOGRAM_CHAIN("relu(a*x+b)", Relu)
  HOLOGRAM_CHAIN("adam", Adam)
#undef HOLOGRAM_CHAIN
  return false;
}

extern "C" [[gnu::visibility("default")]] int hologram_reference_width() {
  return kWidth;
}

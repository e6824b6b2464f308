#include "cpu/pointwise.h"

#include <array>
#include <cstdint>

#include "atlas/scalar.h"
#include "cpu/vectorize.h"

namespace hologram::cpu {
namespace {

// One functor per row of the op table; unary expressions ignore y.
#define HOLOGRAM_X(name, arity, dtypes, expression, flags, identity)                    \
  struct row_##name {                                                                   \
    static constexpr Op kOp = Op::name;                                                 \
    static constexpr int kArity = arity;                                                \
    static constexpr DTypeSet kDTypes = dtypes;                                         \
    template <class T>                                                                  \
    [[gnu::always_inline]] static T apply([[maybe_unused]] T x, [[maybe_unused]] T y) { \
      return expression;                                                                \
    }                                                                                   \
  };
HOLOGRAM_POINTWISE_OPS(HOLOGRAM_X)
#undef HOLOGRAM_X

// The loops. `out` may equal an input exactly, which carries no dependence between iterations.

template <class Row, class T>
[[gnu::always_inline]] inline void unary_loop(const T* x, T* out, size_t n) {
  HOLOGRAM_INDEPENDENT_ITERATIONS
  for (size_t i = 0; i < n; ++i) out[i] = Row::template apply<T>(x[i], T(0));
}

template <class Row, class T>
[[gnu::always_inline]] inline void binary_loop(const T* x, const T* y, T* out, size_t n) {
  HOLOGRAM_INDEPENDENT_ITERATIONS
  for (size_t i = 0; i < n; ++i) out[i] = Row::template apply<T>(x[i], y[i]);
}

template <class Row, class T>
[[gnu::always_inline]] inline void binary_scalar_loop(const T* x, T scalar, T* out, size_t n) {
  HOLOGRAM_INDEPENDENT_ITERATIONS
  for (size_t i = 0; i < n; ++i) out[i] = Row::template apply<T>(x[i], scalar);
}

template <class Row, class T>
[[gnu::always_inline]] inline void scalar_binary_loop(const T* x, T scalar, T* out, size_t n) {
  HOLOGRAM_INDEPENDENT_ITERATIONS
  for (size_t i = 0; i < n; ++i) out[i] = Row::template apply<T>(scalar, x[i]);
}

// The loops compiled for one instruction set: inlining takes them into the caller's target.
#define HOLOGRAM_INSTRUCTION_SET(name, target)                                                   \
  struct name {                                                                                  \
    template <class Row, class T>                                                                \
    target static void unary(const void* x, void* out, size_t n) {                               \
      unary_loop<Row>(static_cast<const T*>(x), static_cast<T*>(out), n);                        \
    }                                                                                            \
    template <class Row, class T>                                                                \
    target static void binary(const void* x, const void* y, void* out, size_t n) {               \
      binary_loop<Row>(static_cast<const T*>(x), static_cast<const T*>(y), static_cast<T*>(out), \
                       n);                                                                       \
    }                                                                                            \
    template <class Row, class T>                                                                \
    target static void binary_scalar(const void* x, const void* scalar, void* out, size_t n) {   \
      binary_scalar_loop<Row>(static_cast<const T*>(x), *static_cast<const T*>(scalar),          \
                              static_cast<T*>(out), n);                                          \
    }                                                                                            \
    template <class Row, class T>                                                                \
    target static void scalar_binary(const void* x, const void* scalar, void* out, size_t n) {   \
      scalar_binary_loop<Row>(static_cast<const T*>(x), *static_cast<const T*>(scalar),          \
                              static_cast<T*>(out), n);                                          \
    }                                                                                            \
  };

HOLOGRAM_INSTRUCTION_SET(Baseline, )
#if defined(__x86_64__)
HOLOGRAM_INSTRUCTION_SET(Avx2, [[gnu::target("avx2")]])
HOLOGRAM_INSTRUCTION_SET(Avx512, [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]])
#endif

template <class Kernel>
using Table = std::array<std::array<Kernel, kDTypeCount>, kOpCount>;

struct Tables {
  Table<UnaryKernel> unary{};
  Table<BinaryKernel> binary{};
  Table<ScalarKernel> binary_scalar{};
  Table<ScalarKernel> scalar_binary{};
};

template <class Set, class Row, DType dtype, class T>
constexpr void add_dtype(Tables& tables) {
  constexpr size_t op = static_cast<size_t>(Row::kOp);
  constexpr size_t type = static_cast<size_t>(dtype);
  if constexpr ((Row::kDTypes & dtype_bit(dtype)) == 0) {
    return;
  } else if constexpr (Row::kArity == 1) {
    tables.unary[op][type] = Set::template unary<Row, T>;
  } else {
    tables.binary[op][type] = Set::template binary<Row, T>;
    tables.binary_scalar[op][type] = Set::template binary_scalar<Row, T>;
    tables.scalar_binary[op][type] = Set::template scalar_binary<Row, T>;
  }
}

template <class Set, class Row>
constexpr void add_row(Tables& tables) {
  add_dtype<Set, Row, DType::f32, float>(tables);
  add_dtype<Set, Row, DType::f64, double>(tables);
  add_dtype<Set, Row, DType::i32, int32_t>(tables);
  add_dtype<Set, Row, DType::i64, int64_t>(tables);
}

template <class Set>
constexpr Tables make_tables() {
  Tables tables;
#define HOLOGRAM_X(name, arity, dtypes, expression, flags, identity) \
  add_row<Set, row_##name>(tables);
  HOLOGRAM_POINTWISE_OPS(HOLOGRAM_X)
#undef HOLOGRAM_X
  return tables;
}

template <class Set>
constexpr Tables kTables = make_tables<Set>();

const Tables& tables([[maybe_unused]] Isa isa) noexcept {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return kTables<Avx512>;
  if (isa == Isa::avx2) return kTables<Avx2>;
#endif
  return kTables<Baseline>;
}

}  // namespace

UnaryKernel unary(Op op, DType dtype, Isa isa) noexcept {
  return tables(isa).unary[static_cast<size_t>(op)][static_cast<size_t>(dtype)];
}

BinaryKernel binary(Op op, DType dtype, Isa isa) noexcept {
  return tables(isa).binary[static_cast<size_t>(op)][static_cast<size_t>(dtype)];
}

ScalarKernel binary_scalar(Op op, DType dtype, Isa isa) noexcept {
  return tables(isa).binary_scalar[static_cast<size_t>(op)][static_cast<size_t>(dtype)];
}

ScalarKernel scalar_binary(Op op, DType dtype, Isa isa) noexcept {
  return tables(isa).scalar_binary[static_cast<size_t>(op)][static_cast<size_t>(dtype)];
}

}  // namespace hologram::cpu

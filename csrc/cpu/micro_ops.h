// The micro-operations of threaded code (cpu/threaded_code.h), for one width of vector register.
//
// Included by one source file per instruction set, which includes the headers of others first and
// then selects the target: no code shared with other files may be compiled for the wider set.
//
// A micro-operation works on the accumulator - eight vector registers a0 .. a7, which are arguments
// - and ends with a call of the next one in tail position. `bases` is the frame's pointers, `off`
// how many bytes of T before the current tile have been worked on. W is the bytes of a register.
#pragma once

#include "cpu/draw.h"
#include "cpu/kernel_table.h"
#include "cpu/lanes.h"
#include "cpu/math.h"

namespace hologram::cpu {

#define HOLOGRAM_STATE \
  const MicroOp *ip, char *const *bases, long off, V a0, V a1, V a2, V a3, V a4, V a5, V a6, V a7
#if defined(__has_attribute)
#if __has_attribute(musttail)
#define HOLOGRAM_TAIL [[clang::musttail]] return
#endif
#endif
#if !defined(HOLOGRAM_TAIL)
#define HOLOGRAM_TAIL return
#endif
#define HOLOGRAM_NEXT                                                                              \
  HOLOGRAM_TAIL reinterpret_cast<Function>(ip[1].code)(ip + 1, bases, off, a0, a1, a2, a3, a4, a5, \
                                                       a6, a7)

// Rows of the op table as functors.
struct NoOperand {};
#define HOLOGRAM_X(name, arity, expression, ...)                               \
  struct group_row_##name {                                                    \
    static constexpr Op kOp = Op::name;                                        \
    static constexpr OpInfo kInfo = op_row(Op::name);                          \
    template <class T>                                                         \
    HOLOGRAM_INLINE static T apply([[maybe_unused]] T x, [[maybe_unused]] T y, \
                                   [[maybe_unused]] T z) {                     \
      return expression;                                                       \
    }                                                                          \
  };
HOLOGRAM_OPS(HOLOGRAM_X)
#undef HOLOGRAM_X

// Whether eight copies of the operation would be too much code.
template <class T, int W>
constexpr bool is_heavy(Op op) {
  switch (std::is_same_v<T, int64_t> ? op_row(op).integer_cost : op_row(op).cost) {
    case Cost::fused:
      return kIsBaseline<W>;  // which emulates it
    // With 32 registers of this size the constants stay in some of them.
    case Cost::short_function: return !std::is_same_v<T, float> || W != 64;
    case Cost::function: return true;
    default: return false;
  }
}
template <class T, int W>
struct MicroOps {
  using Vec = Simd<T, W>;
  using V = typename Vec::V;
  using Function = void (*)(HOLOGRAM_STATE);
  static constexpr int kLanes = 8 * Vec::kLanes;

  template <class D = T>
  HOLOGRAM_INLINE static char* address(const Reference& r, char* const* bases, long off) {
    long scaled = off;
    if constexpr (sizeof(D) < sizeof(T)) scaled /= static_cast<long>(sizeof(T) / sizeof(D));
    if constexpr (sizeof(D) > sizeof(T)) scaled *= static_cast<long>(sizeof(D) / sizeof(T));
    return bases[r.pointer] + r.offset + (scaled & r.mask);
  }

  static void end(HOLOGRAM_STATE) {
    (void)ip, (void)bases, (void)off;
    (void)a0, (void)a1, (void)a2, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7;
  }

  // One operand beside the accumulator.
  template <DType dtype>
  struct FromMemory {
    using D = Element<dtype>;
    HOLOGRAM_INLINE FromMemory(const Reference& r, char* const* bases, long off)
        : p(address<D>(r, bases, off)) {}
    HOLOGRAM_INLINE Vec get(long k, V) const { return Lanes<T, dtype, W>::load(p, k); }
    HOLOGRAM_INLINE void advance(long bytes) { p += bytes; }
    const char* p;
  };
  struct FromSplat {
    HOLOGRAM_INLINE FromSplat(const Reference& r, char* const* bases, long)
        : p(bases[r.pointer] + r.offset), v(number()) {}
    HOLOGRAM_INLINE Vec get(long, V) const { return v; }
    HOLOGRAM_INLINE void advance(long bytes) {
      p += bytes;
      v = Vec(number());
    }
    HOLOGRAM_INLINE T number() const {
      T x;
      __builtin_memcpy(&x, p, sizeof x);
      return x;
    }
    const char* p;
    Vec v;
  };
  struct FromSelf {  // the accumulator itself
    HOLOGRAM_INLINE FromSelf(const Reference&, char* const*, long) {}
    HOLOGRAM_INLINE Vec get(long, V a) const { return a; }
    HOLOGRAM_INLINE void advance(long) {}
  };

  // What a micro-operation does to a vector of the accumulator: Step(micro_op, bases, off).at(k, a)
  // is what vector `k`, which is `a`, becomes. kRolled: eight copies of it would be too much code.
  // advance(x, y) moves the memory that its references are to by so many bytes, to another row.
  template <DType dtype>
  struct Load {
    using L = Lanes<T, dtype, W>;
    static constexpr bool kRolled = L::kSlow;
    HOLOGRAM_INLINE Load(const MicroOp& i, char* const* bases, long off)
        : p(address<Element<dtype>>(i.x, bases, off)) {}
    HOLOGRAM_INLINE V at(long k, V) const { return L::load(p, k).v; }
    HOLOGRAM_INLINE void advance(long x, long) { p += x; }
    const char* p;
  };
  struct LoadSplat {
    static constexpr bool kRolled = false;
    HOLOGRAM_INLINE LoadSplat(const MicroOp& i, char* const* bases, long off)
        : from(i.x, bases, off) {}
    HOLOGRAM_INLINE V at(long, V) const { return from.v.v; }
    HOLOGRAM_INLINE void advance(long x, long) { from.advance(x); }
    FromSplat from;
  };
  // How many elements behind address 0 each element is.
  struct Position {
    static constexpr bool kRolled = false;
    HOLOGRAM_INLINE Position(const MicroOp& i, char* const* bases, long off)
        : first(static_cast<T>((reinterpret_cast<intptr_t>(bases[i.x.pointer]) + off) /
                               static_cast<long>(sizeof(T)))) {
      for (int lane = 0; lane < Vec::kLanes; ++lane) first.v[lane] += static_cast<T>(lane);
    }
    HOLOGRAM_INLINE V at(long k, V) const {
      return first.v + Vec(static_cast<T>(k * Vec::kLanes)).v;
    }
    HOLOGRAM_INLINE void advance(long x, long) {
      first = Vec(first.v + Vec(static_cast<T>(x / static_cast<long>(sizeof(T)))).v);
    }
    Vec first;
  };
  template <DType dtype>
  struct Store {
    using L = Lanes<T, dtype, W>;
    static constexpr bool kRolled = L::kSlow;
    HOLOGRAM_INLINE Store(const MicroOp& i, char* const* bases, long off)
        : p(address<Element<dtype>>(i.x, bases, off)) {}
    HOLOGRAM_INLINE V at(long k, V a) const {
      L::store(p, k, a);
      return a;
    }
    HOLOGRAM_INLINE void advance(long x, long) { p += x; }
    char* p;
  };
  template <DType dtype>
  struct Round {
    using L = Lanes<T, dtype, W>;
    static constexpr bool kRolled = L::kSlow;
    HOLOGRAM_INLINE Round(const MicroOp&, char* const*, long) {}
    HOLOGRAM_INLINE V at(long, V a) const { return L::round(a).v; }
    HOLOGRAM_INLINE void advance(long, long) {}
  };
  // To bf16, of clean lanes (cpu/convert.h).
  struct RoundClean {
    static constexpr bool kRolled = false;
    HOLOGRAM_INLINE RoundClean(const MicroOp&, char* const*, long) {}
    HOLOGRAM_INLINE V at(long, V a) const { return Lanes<float, DType::bf16, W>::round_clean(a).v; }
    HOLOGRAM_INLINE void advance(long, long) {}
  };
  // bf16 from clean lanes, or from values that bf16 can hold; two vectors at a time.
  template <bool exact>
  struct StorePairs {
    using L = Lanes<float, DType::bf16, W>;
    static constexpr bool kRolled = false;
    HOLOGRAM_INLINE StorePairs(const MicroOp& i, char* const* bases, long off)
        : p(address<Bf16>(i.x, bases, off)) {}
    HOLOGRAM_INLINE void pair(long k, V a, V b) const {
      if constexpr (exact) {
        L::store_exact(p, k, a, b);
      } else {
        L::store_clean(p, k, a, b);
      }
    }
    HOLOGRAM_INLINE void advance(long x, long) { p += x; }
    char* p;
  };
  using StoreClean = StorePairs<false>;
  using StoreExact = StorePairs<true>;

  // The accumulator as operand `place` of the row, y and z as the others in order.
  template <class Row, int place>
  HOLOGRAM_INLINE static V compute(V a, Vec y, Vec z) {
    if constexpr (place == 0) {
      return Row::template apply<Vec>(a, y, z).v;
    } else if constexpr (place == 1) {
      return Row::template apply<Vec>(y, a, z).v;
    } else {
      return Row::template apply<Vec>(y, z, a).v;
    }
  }
  // What becomes of the result of an operation.
  struct AsItIs {
    HOLOGRAM_INLINE static V apply(V x) { return x; }
  };
  struct ToBf16 {  // it is clean
    HOLOGRAM_INLINE static V apply(V x) { return Lanes<T, DType::bf16, W>::round_clean(x).v; }
  };

  template <class Row, int place, class Y, class Z, class Rounding>
  struct OperateAt {
    static constexpr bool kRolled = is_heavy<T, W>(Row::kOp);
    HOLOGRAM_INLINE OperateAt(const MicroOp& i, char* const* bases, long off)
        : y(i.x, bases, off), z(i.y, bases, off) {}
    HOLOGRAM_INLINE V at(long k, V a) const {
      return Rounding::apply(compute<Row, place>(a, y.get(k, a), z.get(k, a)));
    }
    HOLOGRAM_INLINE void advance(long of_x, long of_y) { y.advance(of_x), z.advance(of_y); }
    Y y;
    Z z;
  };

  // Both orders of a commutative row are one function.
  template <class Row>
  static constexpr int place_of(int place) {
    return place == 1 && Row::kInfo.arity == 2 && Row::kInfo.has(kCommutative) ? 0 : place;
  }
  template <class Row, int place, class Y, class Z, class Rounding = AsItIs>
  using Operate = OperateAt<Row, place_of<Row>(place), Y, Z, Rounding>;

  // Both operands beside the accumulator, which is overwritten.
  template <class Row, class X, class Y, class Rounding = AsItIs>
  struct Start {
    static constexpr bool kRolled = false;
    HOLOGRAM_INLINE Start(const MicroOp& i, char* const* bases, long off)
        : x(i.x, bases, off), y(i.y, bases, off) {}
    HOLOGRAM_INLINE V at(long k, V a) const {
      return Rounding::apply(compute<Row, 0>(x.get(k, a).v, y.get(k, a), Vec(a)));
    }
    HOLOGRAM_INLINE void advance(long of_x, long of_y) { x.advance(of_x), y.advance(of_y); }
    X x;
    Y y;
  };

  // A bf16 product is clean: the compiler sees to that.
  template <DType dtype>
  HOLOGRAM_INLINE static Vec round_product(Vec x) {
    if constexpr (dtype == DType::bf16) {
      return Lanes<T, dtype, W>::round_clean(x);
    } else {
      return Lanes<T, dtype, W>::round(x);
    }
  }

  // The row of the accumulator, as operand `place`, and the product of two others.
  template <class Row, int place, DType dtype, class X, class Y, class Rounding = AsItIs>
  struct MultiplyThen {
    static constexpr bool kRolled = false;
    HOLOGRAM_INLINE MultiplyThen(const MicroOp& i, char* const* bases, long off)
        : x(i.x, bases, off), y(i.y, bases, off) {}
    HOLOGRAM_INLINE V at(long k, V a) const {
      const Vec product =
          round_product<dtype>(group_row_mul::apply<Vec>(x.get(k, a), y.get(k, a), Vec(a)));
      return Rounding::apply(compute<Row, place>(a, product, Vec(a)));
    }
    HOLOGRAM_INLINE void advance(long of_x, long of_y) { x.advance(of_x), y.advance(of_y); }
    X x;
    Y y;
  };

  // ---- folds (atlas/group.h has their order) ----

  template <class Row>
  static constexpr T identity_of() {
    constexpr double identity = Row::kInfo.identity;
    if constexpr (!std::is_integral_v<T> || (identity > -kInfinity && identity < kInfinity)) {
      return static_cast<T>(identity);
    } else {
      return identity < 0 ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
    }
  }
  // The lanes of a register: the upper half joins the lower one until one is left.
  template <class Row>
  HOLOGRAM_INLINE static T fold_lanes(Vec x) {
#pragma GCC unroll 4
    for (int half = Vec::kLanes / 2; half > 0; half /= 2) {
#if defined(__GNUC__) && !defined(__clang__)
      Native<std::make_signed_t<UnsignedOf<sizeof(T)>>, W> upper;
      for (int i = 0; i < Vec::kLanes; ++i) upper[i] = (i + half) % Vec::kLanes;
      const Vec high(__builtin_shuffle(x.v, upper));
#else
      Vec high;
      for (int i = 0; i < Vec::kLanes; ++i) high.v[i] = x.v[(i + half) % Vec::kLanes];
#endif
      x = Row::template apply<Vec>(x, high, high);
    }
    return x.v[0];
  }
  // Registers, a power of two, and then their lanes.
  template <class Row, int count>
  HOLOGRAM_INLINE static T fold_registers(V (&a)[count]) {
#pragma GCC unroll 8
    for (int half = count / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
      for (int k = 0; k < half; ++k) {
        a[k] = Row::template apply<Vec>(Vec(a[k]), Vec(a[half + k]), Vec(a[k])).v;
      }
    }
    return fold_lanes<Row>(Vec(a[0]));
  }
  // A row in memory as registers; behind its end is the identity, which changes no bits.
  template <class Row, DType dtype>
  struct RowOf {
    using L = Lanes<T, dtype, W>;
    using D = Element<dtype>;
    const char* p;
    long whole, left;  // registers, and lanes of the last one
    Vec last;

    HOLOGRAM_INLINE RowOf(const char* row, long columns, typename Vec::Mask mask, const char* end)
        : p(row), whole(columns / Vec::kLanes), left(columns % Vec::kLanes) {
      last = Vec(identity_of<Row>());
      if (left == 0) return;
      constexpr long bytes = Vec::kLanes * static_cast<long>(sizeof(D));
      const char* from = p + whole * bytes;
      char copy[bytes];
      if (end - from < bytes) {
        __builtin_memset(copy, 0, sizeof copy);
        __builtin_memcpy(copy, from, static_cast<size_t>(left) * sizeof(D));
        from = copy;
      }
      last = select(mask, L::load(from, 0), last);
    }
    HOLOGRAM_INLINE V at(long k) const {
      return k < whole ? L::load(p, k).v : k == whole ? last.v : Vec(identity_of<Row>()).v;
    }
  };
  // A fold to the greatest or the least, of which an infinity is the identity: of numbers that are
  // not NaN one instruction, with NaN several.
  template <class Row>
  static constexpr bool kIsExtreme = Row::kInfo.has(kIdempotent) &&
                                     (Row::kInfo.identity == kInfinity ||
                                      Row::kInfo.identity == -kInfinity) &&
                                     std::is_floating_point_v<T>;
  // How registers of rows are joined.
  template <class Row>
  struct Exactly {
    using Of = Row;
    HOLOGRAM_INLINE void look(Vec, long) {}
  };
  // As if nothing were NaN. Whether something is shows in sums; those of infinities of both signs
  // are NaN too, and do no harm.
  template <class Row>
  struct LookingForNan {
    struct Of {
      template <class X>
      HOLOGRAM_INLINE static X apply(X x, X y, X) {
        return Row::kInfo.identity < 0 ? select(x > y, x, y) : select(x < y, x, y);
      }
    };
    HOLOGRAM_INLINE void look(Vec x, long k) { sums[k % 4] += x.v; }
    HOLOGRAM_INLINE bool found_nan() const {
      const V all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      T lanes[Vec::kLanes];
      __builtin_memcpy(lanes, &all, sizeof lanes);
      bool numbers = true;
      for (const T lane : lanes) numbers &= lane == lane;
      return !numbers;
    }
    V sums[4] = {};
  };
  // Of at most `registers`, a power of two.
  template <int registers, class Row, DType dtype, class How>
  HOLOGRAM_INLINE static T fold_short(const RowOf<Row, dtype>& row, How& how) {
    V a[registers];
#pragma GCC unroll 8
    for (int k = 0; k < registers; ++k) {
      // More than half of them are there.
      a[k] = k < registers / 2 ? Lanes<T, dtype, W>::load(row.p, k).v : row.at(k);
      how.look(Vec(a[k]), k);
    }
    return fold_registers<typename How::Of>(a);
  }
  // The last registers of a row from t on, so many whole ones and what is left.
  template <int whole, class Row, DType dtype, class How>
  HOLOGRAM_INLINE static void finish(const RowOf<Row, dtype>& row, long t, V (&a)[8], How& how) {
    const auto join = [&](long k, Vec x) HOLOGRAM_INLINED {
      a[k] = How::Of::template apply<Vec>(Vec(a[k]), x, x).v;
      how.look(x, k);
    };
#pragma GCC unroll 8
    for (long k = 0; k < whole; ++k) join(k, Lanes<T, dtype, W>::load(row.p, t + k));
    if (row.left != 0) join(whole, row.last);
  }
  template <class Row, DType dtype, class How>
  HOLOGRAM_INLINE static T fold_long(const RowOf<Row, dtype>& row, How& how) {
    constexpr int count = kFoldBytes / W;
    using L = Lanes<T, dtype, W>;
    V all[count];
    for (long first = 0; first < count; first += 8) {
      V a[8];
#pragma GCC unroll 8
      for (long k = 0; k < 8; ++k) {
        a[k] = row.at(first + k);
        how.look(Vec(a[k]), k);
      }
      long t = first + count;
      for (; t + 8 <= row.whole; t += count) {
#pragma GCC unroll 8
        for (long k = 0; k < 8; ++k) {
          const Vec x = L::load(row.p, t + k);
          a[k] = How::Of::template apply<Vec>(Vec(a[k]), x, x).v;
          how.look(x, k);
        }
      }
      switch (row.whole - t) {
        case 0: finish<0>(row, t, a, how); break;
        case 1: finish<1>(row, t, a, how); break;
        case 2: finish<2>(row, t, a, how); break;
        case 3: finish<3>(row, t, a, how); break;
        case 4: finish<4>(row, t, a, how); break;
        case 5: finish<5>(row, t, a, how); break;
        case 6: finish<6>(row, t, a, how); break;
        case 7: finish<7>(row, t, a, how); break;
        default: break;  // it ended before
      }
#pragma GCC unroll 8
      for (long k = 0; k < 8; ++k) all[first + k] = a[k];
    }
    return fold_registers<typename How::Of>(all);
  }
  template <class Row, DType dtype>
  static void fold_rows(void* to, const void* from, long rows, long columns, long stride,
                        const void* end) {
    T* const out = static_cast<T*>(to);
    const char* const p = static_cast<const char*>(from);
    const char* const stop = static_cast<const char*>(end);
    typename Vec::Mask mask;
    for (int i = 0; i < Vec::kLanes; ++i) mask.v[i] = i < columns % Vec::kLanes ? -1 : 0;
    const long registers = (columns + Vec::kLanes - 1) / Vec::kLanes;
    using R = RowOf<Row, dtype>;
    const auto each = [&](auto fold) {
      const auto range = [&](long first, long last, auto& how) HOLOGRAM_INLINED {
        for (long r = first; r < last; ++r) {
          out[r] = fold(R(p + r * stride, columns, mask, stop), how);
        }
      };
      if constexpr (kIsExtreme<Row>) {
        constexpr long some = 16;
        for (long r = 0; r < rows; r += some) {
          const long last = std::min(r + some, rows);
          LookingForNan<Row> looking;
          range(r, last, looking);
          if (!looking.found_nan()) continue;
          Exactly<Row> exactly;
          range(r, last, exactly);
        }
      } else {
        Exactly<Row> exactly;
        range(0, rows, exactly);
      }
    };
    if (registers == 1) {
      each([](const R& row, auto& how) { return fold_short<1>(row, how); });
    } else if (registers == 2) {
      each([](const R& row, auto& how) { return fold_short<2>(row, how); });
    } else if (registers <= 4) {
      each([](const R& row, auto& how) { return fold_short<4>(row, how); });
    } else if (registers <= 8) {
      each([](const R& row, auto& how) { return fold_short<8>(row, how); });
    } else {
      each([](const R& row, auto& how) { return fold_long(row, how); });
    }
  }
  // Some registers of columns.
  template <class Row, DType dtype, int registers>
  HOLOGRAM_INLINE static void fold_down(T* to, const char* from, long rows, long stride,
                                        bool continues) {
    using L = Lanes<T, dtype, W>;
    V a[registers];
    char* const out = reinterpret_cast<char*>(to);
#pragma GCC unroll 8
    for (long k = 0; k < registers; ++k) {
      a[k] = continues ? load_lanes<T, W>(out + k * W).v : L::load(from, k).v;
    }
    for (long r = continues ? 0 : 1; r < rows; ++r) {
      const char* const row = from + r * stride;
#pragma GCC unroll 8
      for (long k = 0; k < registers; ++k) {
        const Vec x = L::load(row, k);
        a[k] = Row::template apply<Vec>(Vec(a[k]), x, x).v;
      }
    }
#pragma GCC unroll 8
    for (long k = 0; k < registers; ++k) store_lanes<T, W>(out + k * W, Vec(a[k]));
  }
  template <class Row, DType dtype>
  static void fold_columns(void* to, const void* from, long rows, long columns, long stride,
                           bool continues) {
    using D = Element<dtype>;
    T* const out = static_cast<T*>(to);
    const char* const p = static_cast<const char*>(from);
    const auto at = [&](long c) { return p + c * static_cast<long>(sizeof(D)); };
    long c = 0;
    for (; c + 8 * Vec::kLanes <= columns; c += 8 * Vec::kLanes) {
      fold_down<Row, dtype, 8>(out + c, at(c), rows, stride, continues);
    }
    for (; c + Vec::kLanes <= columns; c += Vec::kLanes) {
      fold_down<Row, dtype, 1>(out + c, at(c), rows, stride, continues);
    }
    for (; c < columns; ++c) {
      const auto element = [&](long r) {
        D x;
        __builtin_memcpy(&x, at(c) + r * stride, sizeof x);
        return convert<T>(x);
      };
      T sum = continues ? out[c] : element(0);
      for (long r = continues ? 0 : 1; r < rows; ++r) {
        const T x = element(r);
        sum = Row::template apply<T>(sum, x, x);
      }
      out[c] = sum;
    }
  }
  static void spread(void* to, const void* from, long rows, long columns) {
    char* out = static_cast<char*>(to);
    const T* const values = static_cast<const T*>(from);
    for (long r = 0; r < rows; ++r) {
      const Vec x(values[r]);
      for (long c = 0; c < columns; c += Vec::kLanes) {
        store_lanes<T, W>(out + c * static_cast<long>(sizeof(T)), x);
      }
      out += columns * static_cast<long>(sizeof(T));
    }
  }
  template <class Row>
  static void join(void* to, const void* a, const void* b, long count) {
    T* const out = static_cast<T*>(to);
    const T *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
    long i = 0;
    for (; i + Vec::kLanes <= count; i += Vec::kLanes) {
      const Vec low = load_lanes<T, W>(x + i), high = load_lanes<T, W>(y + i);
      store_lanes<T, W>(out + i, Row::template apply<Vec>(low, high, high));
    }
    for (; i < count; ++i) out[i] = Row::template apply<T>(x[i], y[i], x[i]);
  }
  template <class Row>
  static void add_fold(TypeKernels& kernels) {
    if constexpr (Row::kInfo.fold != nullptr && !std::is_same_v<T, uint8_t> &&
                  Row::kInfo.supports(kOwn)) {
      FoldKernels& fold = kernels.folds[static_cast<size_t>(Row::kOp)];
      fold.join = join<Row>;
      add_fold_of<Row, kOwn>(fold);
      if constexpr (std::is_same_v<T, float>) {
        add_fold_of<Row, DType::bf16>(fold);
        add_fold_of<Row, DType::f16>(fold);
      }
    }
  }
  template <class Row, DType dtype>
  static void add_fold_of(FoldKernels& fold) {
    fold.rows[static_cast<size_t>(dtype)] = fold_rows<Row, dtype>;
    fold.columns[static_cast<size_t>(dtype)] = fold_columns<Row, dtype>;
  }

  // A draw as a micro-operation, for the whole tile.
  template <class Of>
  static void draw_op(HOLOGRAM_STATE) {
    V a[8];
    draw_tile<Of>(
        bases[ip->y.pointer] + ip->y.offset,
        static_cast<uint64_t>(reinterpret_cast<intptr_t>(bases[ip->x.pointer]) + off) / sizeof(T),
        a);
    a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3], a4 = a[4], a5 = a[5], a6 = a[6], a7 = a[7];
    HOLOGRAM_NEXT;
  }
  template <class Of>
  static void add_draw(TypeKernels& kernels, Draw draw, DType dtype) {
    kernels.draws[static_cast<size_t>(draw)][static_cast<size_t>(dtype)] =
        reinterpret_cast<AnyCode>(draw_op<Of>);
  }
  static void add_draws(TypeKernels& kernels) {
    if constexpr (std::is_same_v<T, float>) {
      add_draw<UniformFloats<W, digits_of(DType::f32)>>(kernels, Draw::uniform, DType::f32);
      add_draw<UniformFloats<W, digits_of(DType::f16)>>(kernels, Draw::uniform, DType::f16);
      add_draw<UniformFloats<W, digits_of(DType::bf16)>>(kernels, Draw::uniform, DType::bf16);
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        add_draw<NormalFloats<W>>(kernels, Draw::normal, dtype);  // is rounded afterwards
      }
    } else if constexpr (std::is_same_v<T, double>) {
      add_draw<UniformDoubles<W>>(kernels, Draw::uniform, DType::f64);
      add_draw<NormalDoubles<W>>(kernels, Draw::normal, DType::f64);
    } else if constexpr (std::is_same_v<T, int64_t>) {
      add_draw<Integers<W>>(kernels, Draw::integer, DType::i64);
      add_draw<LongIntegers<W>>(kernels, Draw::long_integer, DType::i64);
    }
  }

  // A step as a micro-operation.
  template <class Step>
  static void micro_op(HOLOGRAM_STATE) {
    const Step step(*ip, bases, off);
    if constexpr (requires { &Step::pair; }) {
      step.pair(0, a0, a1);
      step.pair(2, a2, a3);
      step.pair(4, a4, a5);
      step.pair(6, a6, a7);
    } else if constexpr (Step::kRolled) {
      V a[8] = {a0, a1, a2, a3, a4, a5, a6, a7};
      for (int k = 0; k < 8; ++k) a[k] = step.at(k, a[k]);
      a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3], a4 = a[4], a5 = a[5], a6 = a[6], a7 = a[7];
    } else {
      a0 = step.at(0, a0), a1 = step.at(1, a1), a2 = step.at(2, a2), a3 = step.at(3, a3);
      a4 = step.at(4, a4), a5 = step.at(5, a5), a6 = step.at(6, a6), a7 = step.at(7, a7);
    }
    HOLOGRAM_NEXT;
  }
  template <class Step>
  static AnyCode code_of() {
    return reinterpret_cast<AnyCode>(micro_op<Step>);
  }

  static constexpr DType kOwn = std::is_same_v<T, float>     ? DType::f32
                                : std::is_same_v<T, double>  ? DType::f64
                                : std::is_same_v<T, int64_t> ? DType::i64
                                                             : DType::b8;
  using Memory = FromMemory<kOwn>;

  template <class Row>
  static void add_row(TypeKernels& kernels) {
    constexpr size_t op = static_cast<size_t>(Row::kOp);
    if constexpr ((Row::kInfo.dtypes & (dtype_bit(kOwn) | dtype_bit(DType::b8))) == 0) {
      return;
    } else if constexpr (Row::kInfo.arity == 1) {
      kernels.unary[op] = code_of<Operate<Row, 0, FromSelf, FromSelf>>();
    } else if constexpr (Row::kInfo.arity == 2) {
      add_forms<Row, AsItIs>(kernels.binary[op]);
    } else {
      auto& row = kernels.ternary[op];
      add_places<Row, 0>(row);
      add_places<Row, 1>(row);
      add_places<Row, 2>(row);
    }
  }
  template <class Row, int place, class Table>
  static void add_places(Table& row) {
    add_third<Row, place, Memory>(row[place], kFromMemory);
    add_third<Row, place, FromSplat>(row[place], kFromSplat);
    if constexpr (std::is_same_v<T, float>) {
      add_third<Row, place, FromMemory<DType::bf16>>(row[place], kFromBf16);
    }
  }
  template <class Row, int place, class Y>
  static void add_third(AnyCode (&row)[kOtherCount][kOtherCount], Other y) {
    row[y][kFromMemory] = code_of<Operate<Row, place, Y, Memory>>();
    row[y][kFromSplat] = code_of<Operate<Row, place, Y, FromSplat>>();
    if constexpr (std::is_same_v<T, float>) {
      row[y][kFromBf16] = code_of<Operate<Row, place, Y, FromMemory<DType::bf16>>>();
    }
  }
  template <class Row, class Rounding>
  static void add_forms(AnyCode* row) {
    row[kMemory] = code_of<Operate<Row, 0, Memory, FromSelf, Rounding>>();
    row[kSplat] = code_of<Operate<Row, 0, FromSplat, FromSelf, Rounding>>();
    row[kSelf] = code_of<Operate<Row, 0, FromSelf, FromSelf, Rounding>>();
    row[kSwapped + kMemory] = code_of<Operate<Row, 1, Memory, FromSelf, Rounding>>();
    row[kSwapped + kSplat] = code_of<Operate<Row, 1, FromSplat, FromSelf, Rounding>>();
    if constexpr (std::is_same_v<T, float>) {
      using MemoryBf16 = FromMemory<DType::bf16>;
      using MemoryF16 = FromMemory<DType::f16>;
      row[kMemoryBf16] = code_of<Operate<Row, 0, MemoryBf16, FromSelf, Rounding>>();
      row[kMemoryF16] = code_of<Operate<Row, 0, MemoryF16, FromSelf, Rounding>>();
      row[kSwapped + kMemoryBf16] = code_of<Operate<Row, 1, MemoryBf16, FromSelf, Rounding>>();
      row[kSwapped + kMemoryF16] = code_of<Operate<Row, 1, MemoryF16, FromSelf, Rounding>>();
    }
  }
  template <class Row, class M, DType dtype, class Rounding>
  static void add_pairs(Arithmetic& table, Pair first) {
    constexpr int op = arithmetic_index(Row::kOp);
    AnyCode* start_row = table.start[op] + first;
    start_row[0] = code_of<Start<Row, M, M, Rounding>>();
    start_row[1] = code_of<Start<Row, M, FromSplat, Rounding>>();
    start_row[2] = code_of<Start<Row, FromSplat, M, Rounding>>();
    AnyCode* product_row = table.with_product[op] + first;
    product_row[0] = code_of<MultiplyThen<Row, 0, dtype, M, M, Rounding>>();
    product_row[1] = code_of<MultiplyThen<Row, 0, dtype, M, FromSplat, Rounding>>();
    product_row = table.with_product[kArithmeticCount + op] + first;
    product_row[0] = code_of<MultiplyThen<Row, place_of<Row>(1), dtype, M, M, Rounding>>();
    product_row[1] = code_of<MultiplyThen<Row, place_of<Row>(1), dtype, M, FromSplat, Rounding>>();
  }
  // What takes more than one operand from memory, or rounds to bf16.
  template <class Row>
  static void add_arithmetic(TypeKernels& kernels) {
    constexpr bool arithmetic = Row::kInfo.cost == Cost::arithmetic && !std::is_same_v<T, uint8_t>;
    if constexpr (arithmetic && Row::kInfo.supports(kOwn)) {
      add_pairs<Row, Memory, kOwn, AsItIs>(kernels.plain, kMM);
    }
    if constexpr (arithmetic && std::is_same_v<T, float>) {
      using MemoryBf16 = FromMemory<DType::bf16>;
      using MemoryF16 = FromMemory<DType::f16>;
      add_pairs<Row, MemoryBf16, DType::bf16, AsItIs>(kernels.plain, kBB);
      add_pairs<Row, MemoryF16, DType::f16, AsItIs>(kernels.plain, kHH);
      add_pairs<Row, MemoryBf16, DType::bf16, ToBf16>(kernels.to_bf16, kBB);
      add_forms<Row, ToBf16>(kernels.binary_to_bf16[arithmetic_index(Row::kOp)]);
    }
  }
  template <DType dtype>
  static void add_dtype(TypeKernels& kernels) {
    kernels.load[static_cast<size_t>(dtype)] = code_of<Load<dtype>>();
    kernels.store[static_cast<size_t>(dtype)] = code_of<Store<dtype>>();
    kernels.round[static_cast<size_t>(dtype)] = code_of<Round<dtype>>();
  }

  // Calls run_row() with the pointers at each row.
  template <class Do>
  HOLOGRAM_INLINE static void each_row(char** bases, const Extent& extent, Do&& run_row) {
    for (long row = 0; row < extent.rows; ++row) {
      if (row > 0) {
        for (int i = 0; i < extent.step_count; ++i) {
          char*& base = bases[extent.steps[i].pointer];
          base = moved(base, extent.steps[i].bytes);
        }
      }
      run_row();
    }
  }
  // Tile by tile, with the prefetches' fetched ahead.
  static void run(const MicroOp* code, char** bases, const Extent& extent) {
    const V zero{};
    const auto tile = [&](long off) {
      reinterpret_cast<Function>(code->code)(code, bases, off, zero, zero, zero, zero, zero, zero,
                                             zero, zero);
    };
    each_row(bases, extent, [&]() HOLOGRAM_INLINED {
      long off = extent.begin;
      for (; off + 8 * W <= extent.end; off += 8 * W) {
        for (int i = 0; i < extent.prefetch_count; ++i) {
          const Prefetch& s = extent.prefetches[i];
          const char* p =
              bases[s.pointer] + off * s.size / static_cast<long>(sizeof(T)) + s.distance;
          const char* stop = p + kLanes * s.size;
          for (; p < stop; p += 64) __builtin_prefetch(p);
        }
        tile(off);
      }
      if (off < extent.end) tile(extent.end - 8 * W);
    });
  }

  static TypeKernels make() {
    TypeKernels kernels{};
    kernels.lanes = kLanes;
    kernels.own = kOwn;
    kernels.load_splat = code_of<LoadSplat>();
    kernels.end = reinterpret_cast<AnyCode>(end);
    kernels.run = run;
    kernels.spread = spread;
    add_dtype<DType::b8>(kernels);
    if constexpr (!std::is_same_v<T, uint8_t>) {
      add_dtype<DType::u8>(kernels);
      add_dtype<DType::i8>(kernels);
      add_dtype<DType::i16>(kernels);
      add_dtype<DType::i32>(kernels);
      add_dtype<DType::i64>(kernels);
      add_dtype<DType::f16>(kernels);
      add_dtype<DType::bf16>(kernels);
      add_dtype<DType::f32>(kernels);
      add_dtype<DType::f64>(kernels);
    }
    if constexpr (!std::is_same_v<T, uint8_t>) kernels.position = code_of<Position>();
    add_draws(kernels);
    if constexpr (std::is_same_v<T, float>) {
      kernels.round_clean = code_of<RoundClean>();
      kernels.store_clean = code_of<StoreClean>();
      kernels.store_exact = code_of<StoreExact>();
    }
#define HOLOGRAM_X(name, ...)                \
  add_row<group_row_##name>(kernels);        \
  add_arithmetic<group_row_##name>(kernels); \
  add_fold<group_row_##name>(kernels);
    HOLOGRAM_OPS(HOLOGRAM_X)
#undef HOLOGRAM_X
    return kernels;
  }
};

}  // namespace hologram::cpu

// The instructions of the group executor, for one width of vector register.
//
// Included by one source file per instruction set, which includes the headers of others first and
// then selects the target: no code shared with other files may be compiled for the wider set.
//
// Code is threaded: an instruction works on the accumulator - eight vector registers, which are
// arguments - and ends with a call of the next one in tail position. R is the frame's pointers,
// `off` how many bytes of T before the current block have been worked on.

#include "cpu/convert.h"
#include "cpu/math.h"

namespace hologram::cpu {

#define HOLOGRAM_STATE \
  const Instruction *ip, char *const *R, long off, V a0, V a1, V a2, V a3, V a4, V a5, V a6, V a7
#if defined(__has_attribute)
#if __has_attribute(musttail)
#define HOLOGRAM_TAIL [[clang::musttail]] return
#endif
#endif
#if !defined(HOLOGRAM_TAIL)
#define HOLOGRAM_TAIL return
#endif
#define HOLOGRAM_NEXT \
  HOLOGRAM_TAIL reinterpret_cast<Code>(ip[1].code)(ip + 1, R, off, a0, a1, a2, a3, a4, a5, a6, a7)

// Lanes of the class T in memory as elements of D.
template <class T, DType dtype, int W>
struct Lanes {
  using Vec = Simd<T, W>;
  using D = Element<dtype>;
  static constexpr int kLanes = Vec::kLanes;
  static constexpr bool kSlow = true;  // lane by lane

  // The vector `k` of the block at p.
  HOLOGRAM_INLINE static Vec load(const char* p, int k) {
    p += k * kLanes * static_cast<int>(sizeof(D));
    Vec r;
    for (int i = 0; i < kLanes; ++i) {
      D x;
      __builtin_memcpy(&x, p + i * static_cast<int>(sizeof(D)), sizeof x);
      r.v[i] = convert<T>(x);
    }
    return r;
  }
  HOLOGRAM_INLINE static void store(char* p, int k, Vec x) {
    p += k * kLanes * static_cast<int>(sizeof(D));
    for (int i = 0; i < kLanes; ++i) {
      const D y = convert<D>(static_cast<T>(x.v[i]));
      __builtin_memcpy(p + i * static_cast<int>(sizeof(D)), &y, sizeof y);
    }
  }
  // The value that storing and loading leaves.
  HOLOGRAM_INLINE static Vec round(Vec x) {
    for (int i = 0; i < kLanes; ++i) x.v[i] = convert<T>(convert<D>(static_cast<T>(x.v[i])));
    return x;
  }
};

// The class's own dtype.
template <class T, int W>
struct SameLanes {
  using Vec = Simd<T, W>;
  static constexpr bool kSlow = false;
  HOLOGRAM_INLINE static Vec load(const char* p, int k) { return load_lanes<T, W>(p + k * W); }
  HOLOGRAM_INLINE static void store(char* p, int k, Vec x) { store_lanes(p + k * W, x); }
  HOLOGRAM_INLINE static Vec round(Vec x) { return x; }
};
template <int W>
struct Lanes<float, DType::f32, W> : SameLanes<float, W> {};
template <int W>
struct Lanes<double, DType::f64, W> : SameLanes<double, W> {};
template <int W>
struct Lanes<int64_t, DType::i64, W> : SameLanes<int64_t, W> {};

// 16-bit words, one in each lane of 32 bits. (GCC 12 makes six instructions of a conversion.)
template <int W>
HOLOGRAM_INLINE Simd<uint32_t, W> load_words(const char* p, int k) {
  using V = Native<uint32_t, W>;
  typedef uint16_t Words __attribute__((vector_size(W / 2)));
  Words words;
  __builtin_memcpy(&words, p + k * (W / 2), sizeof words);
#if defined(__x86_64__)
  if constexpr (W == 64) {
    return (V)_mm512_cvtepu16_epi32((__m256i)words);
  } else if constexpr (W == 32) {
    return (V)_mm256_cvtepu16_epi32((__m128i)words);
  }
#endif
  return __builtin_convertvector(words, V);
}
template <int W>
HOLOGRAM_INLINE void store_words(char* p, int k, Simd<uint32_t, W> x) {
  typedef uint16_t Words __attribute__((vector_size(W / 2)));
  Words words;
#if defined(__x86_64__)
  if constexpr (W == 64) {
    words = (Words)_mm512_cvtepi32_epi16((__m512i)x.v);
  } else {
    words = __builtin_convertvector(x.v, Words);
  }
#else
  words = __builtin_convertvector(x.v, Words);
#endif
  __builtin_memcpy(p + k * (W / 2), &words, sizeof words);
}

// The high words of the lanes of x, then those of y.
template <int W>
HOLOGRAM_INLINE void store_word_pairs(char* p, Simd<uint32_t, W> x, Simd<uint32_t, W> y) {
#if defined(__x86_64__)
  if constexpr (W == 64) {
    alignas(64) static constexpr uint16_t kOdd[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                      23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                      45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    const __m512i words =
        _mm512_permutex2var_epi16((__m512i)x.v, _mm512_load_si512(kOdd), (__m512i)y.v);
    __builtin_memcpy(p, &words, sizeof words);
    return;
  } else if constexpr (W == 32) {
    const __m256i words = _mm256_packus_epi32(_mm256_srli_epi32((__m256i)x.v, 16),
                                              _mm256_srli_epi32((__m256i)y.v, 16));
    const __m256i in_order = _mm256_permute4x64_epi64(words, _MM_SHUFFLE(3, 1, 2, 0));
    __builtin_memcpy(p, &in_order, sizeof in_order);
    return;
  }
#endif
  store_words(p, 0, x >> 16);
  store_words(p, 1, y >> 16);
}

template <int W>
struct Lanes<float, DType::bf16, W> {
  using Vec = Simd<float, W>;
  static constexpr bool kSlow = false;
  HOLOGRAM_INLINE static Vec load(const char* p, int k) {
    return from_bf16_bits(load_words<W>(p, k));
  }
  HOLOGRAM_INLINE static void store(char* p, int k, Vec x) {
    store_words(p, k, bf16_bits(round_to_bf16(x)));
  }
  HOLOGRAM_INLINE static Vec round(Vec x) { return round_to_bf16(x); }
  HOLOGRAM_INLINE static Vec round_clean(Vec x) { return round_clean_to_bf16(x); }
  // Two vectors, `k` and the one after it; store_exact: of lanes that bf16 can hold.
  HOLOGRAM_INLINE static void store_clean(char* p, int k, Vec x, Vec y) {
    store_word_pairs<W>(p + k * (W / 2), round_clean_bits(x), round_clean_bits(y));
  }
  HOLOGRAM_INLINE static void store_exact(char* p, int k, Vec x, Vec y) {
    store_word_pairs<W>(p + k * (W / 2), x.bits(), y.bits());
  }
};

template <int W>
struct Lanes<float, DType::f16, W> {
  using Vec = Simd<float, W>;
  static constexpr bool kSlow = false;
  HOLOGRAM_INLINE static Vec load(const char* p, int k) {
#if defined(__x86_64__)
    if constexpr (W == 64) {
      return Vec(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + k)));
    } else if constexpr (W == 32) {
      return Vec(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + k)));
    }
#endif
    return from_f16_bits(load_words<W>(p, k));
  }
  HOLOGRAM_INLINE static void store(char* p, int k, Vec x) {
#if defined(__x86_64__)
    if constexpr (W == 64) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(p) + k, _mm512_cvtps_ph(x.v, kNearest));
      return;
    } else if constexpr (W == 32) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p) + k, _mm256_cvtps_ph(x.v, kNearest));
      return;
    }
#endif
    store_words(p, k, f16_bits(round_to_f16(x)));
  }
  HOLOGRAM_INLINE static Vec round(Vec x) {
#if defined(__x86_64__)
    if constexpr (W == 64) {
      return Vec(_mm512_cvtph_ps(_mm512_cvtps_ph(x.v, kNearest)));
    } else if constexpr (W == 32) {
      return Vec(_mm256_cvtph_ps(_mm256_cvtps_ph(x.v, kNearest)));
    }
#endif
    return round_to_f16(x);
  }

#if defined(__x86_64__)
 private:
  static constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
#endif
};

// Bytes that are zero or not.
template <class T, int W>
struct BoolLanes {
  using Vec = Simd<T, W>;
  static constexpr bool kSlow = false;
  static constexpr int kLanes = Vec::kLanes;
  using Wide = Native<std::make_signed_t<UnsignedOf<sizeof(T)>>, W>;
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  static constexpr bool kQuick = W == 32 && sizeof(T) == 4;
  HOLOGRAM_INLINE static Vec load(const char* p, int k) {
    Bytes bytes;
    __builtin_memcpy(&bytes, p + k * kLanes, sizeof bytes);
#if defined(__x86_64__)
    if constexpr (kQuick) {  // GCC 12 converts byte by byte
      const __m256i wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes));
      return select({(Wide)_mm256_cmpeq_epi32(wide, _mm256_setzero_si256())}, Vec(0), Vec(1));
    }
#endif
    const Wide wide = __builtin_convertvector(bytes, Wide);
    return wide != 0 ? Vec(1).v : Vec(0).v;
  }
  HOLOGRAM_INLINE static void store(char* p, int k, Vec x) {
#if defined(__x86_64__)
    if constexpr (kQuick) {
      const __m256i wide = (__m256i)(x != Vec(0)).v;
      const __m128i words =
          _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
      const __m128i ones = _mm_and_si128(_mm_packs_epi16(words, words), _mm_set1_epi8(1));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(p + k * kLanes), ones);
      return;
    }
#endif
    const Wide wide = x.v != Vec(0).v ? Wide{} + 1 : Wide{};
    const Bytes bytes = __builtin_convertvector(wide, Bytes);
    __builtin_memcpy(p + k * kLanes, &bytes, sizeof bytes);
  }
  HOLOGRAM_INLINE static Vec round(Vec x) {
    return select(x != Vec(0), Vec(1), Vec(0));
  }
};
template <int W>
struct Lanes<float, DType::b8, W> : BoolLanes<float, W> {};
template <int W>
struct Lanes<double, DType::b8, W> : BoolLanes<double, W> {};
template <int W>
struct Lanes<int64_t, DType::b8, W> : BoolLanes<int64_t, W> {};

// Types of half a lane's size.
template <class T, class D, int W>
struct HalfLanes {
  using Vec = Simd<T, W>;
  static constexpr bool kSlow = false;
  typedef D Half __attribute__((vector_size(W / 2)));
  HOLOGRAM_INLINE static Vec load(const char* p, int k) {
    Half half;
    __builtin_memcpy(&half, p + k * (W / 2), sizeof half);
    return Vec(__builtin_convertvector(half, typename Vec::V));
  }
  HOLOGRAM_INLINE static void store(char* p, int k, Vec x) {
    const Half half = __builtin_convertvector(x.v, Half);
    __builtin_memcpy(p + k * (W / 2), &half, sizeof half);
  }
  HOLOGRAM_INLINE static Vec round(Vec x) {
    const Half half = __builtin_convertvector(x.v, Half);
    return Vec(__builtin_convertvector(half, typename Vec::V));
  }
};
template <int W>
struct Lanes<double, DType::f32, W> : HalfLanes<double, float, W> {};
template <int W>
struct Lanes<int64_t, DType::i32, W> : HalfLanes<int64_t, int32_t, W> {};

// Rows of the op table as functors.
struct NoOperand {};
#define HOLOGRAM_X(name, arity, dtypes, expression, flags, identity)           \
  struct group_row_##name {                                                    \
    static constexpr Op kOp = Op::name;                                        \
    static constexpr int kArity = arity;                                       \
    static constexpr DTypeSet kDTypes = dtypes;                                \
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
  // With 32 registers the constants stay in some of them.
  if (std::is_same_v<T, float> && W == 64 &&
      (op == Op::exp || op == Op::log || op == Op::tanh || op == Op::sigmoid)) {
    return false;
  }
  if (op == Op::fma) return W == 16;  // the baseline emulates it
  if (std::is_same_v<T, int64_t>) return op == Op::mul || op == Op::clamp;
  return op >= Op::exp && op <= Op::pow;
}

template <class T, int W>
struct Instructions {
  using Vec = Simd<T, W>;
  using V = typename Vec::V;
  using Code = void (*)(HOLOGRAM_STATE);
  static constexpr int kLanes = 8 * Vec::kLanes;

  template <class D = T>
  HOLOGRAM_INLINE static char* address(const Reference& r, char* const* R, long off) {
    long scaled = off;
    if constexpr (sizeof(D) < sizeof(T)) scaled /= static_cast<long>(sizeof(T) / sizeof(D));
    if constexpr (sizeof(D) > sizeof(T)) scaled *= static_cast<long>(sizeof(D) / sizeof(T));
    return R[r.pointer] + r.offset + (scaled & r.mask);
  }
  HOLOGRAM_INLINE static Vec splat(const Reference& r, char* const* R) {
    T x;
    __builtin_memcpy(&x, R[r.pointer] + r.offset, sizeof x);
    return Vec(x);
  }

  static void end(HOLOGRAM_STATE) {
    (void)ip, (void)R, (void)off;
    (void)a0, (void)a1, (void)a2, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7;
  }

  // a0..a7 = f(k, a) for each k: as a loop where eight copies would be too much code.
#define HOLOGRAM_FOR_ALL(loop, f)                                                           \
  if constexpr (loop) {                                                                     \
    V a[8] = {a0, a1, a2, a3, a4, a5, a6, a7};                                              \
    for (int k = 0; k < 8; ++k) a[k] = f(k, a[k]);                                          \
    a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3], a4 = a[4], a5 = a[5], a6 = a[6], a7 = a[7]; \
  } else {                                                                                  \
    a0 = f(0, a0), a1 = f(1, a1), a2 = f(2, a2), a3 = f(3, a3);                             \
    a4 = f(4, a4), a5 = f(5, a5), a6 = f(6, a6), a7 = f(7, a7);                             \
  }

  template <DType dtype>
  static void load(HOLOGRAM_STATE) {
    using L = Lanes<T, dtype, W>;
    const char* p = address<Element<dtype>>(ip->x, R, off);
#define HOLOGRAM_Y(k, a) L::load(p, k).v
    HOLOGRAM_FOR_ALL(L::kSlow, HOLOGRAM_Y)
#undef HOLOGRAM_Y
    HOLOGRAM_NEXT;
  }
  static void load_splat(HOLOGRAM_STATE) {
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = splat(ip->x, R).v;
    HOLOGRAM_NEXT;
  }
  template <DType dtype>
  static void store(HOLOGRAM_STATE) {
    using L = Lanes<T, dtype, W>;
    char* p = address<Element<dtype>>(ip->x, R, off);
#define HOLOGRAM_Y(k, a) (L::store(p, k, a), a)
    HOLOGRAM_FOR_ALL(L::kSlow, HOLOGRAM_Y)
#undef HOLOGRAM_Y
    HOLOGRAM_NEXT;
  }
  template <DType dtype>
  static void round(HOLOGRAM_STATE) {
    using L = Lanes<T, dtype, W>;
#define HOLOGRAM_Y(k, a) L::round(a).v
    HOLOGRAM_FOR_ALL(L::kSlow, HOLOGRAM_Y)
#undef HOLOGRAM_Y
    HOLOGRAM_NEXT;
  }

  // bf16 from clean lanes (cpu/convert.h).
  static void store_clean(HOLOGRAM_STATE) {
    using L = Lanes<float, DType::bf16, W>;
    char* p = address<Bf16>(ip->x, R, off);
    L::store_clean(p, 0, a0, a1);
    L::store_clean(p, 2, a2, a3);
    L::store_clean(p, 4, a4, a5);
    L::store_clean(p, 6, a6, a7);
    HOLOGRAM_NEXT;
  }
  // From values that bf16 can hold.
  static void store_exact(HOLOGRAM_STATE) {
    using L = Lanes<float, DType::bf16, W>;
    char* p = address<Bf16>(ip->x, R, off);
    L::store_exact(p, 0, a0, a1);
    L::store_exact(p, 2, a2, a3);
    L::store_exact(p, 4, a4, a5);
    L::store_exact(p, 6, a6, a7);
    HOLOGRAM_NEXT;
  }
  static void round_clean(HOLOGRAM_STATE) {
    using L = Lanes<float, DType::bf16, W>;
#define HOLOGRAM_Y(k, a) L::round_clean(a).v
    HOLOGRAM_FOR_ALL(false, HOLOGRAM_Y)
#undef HOLOGRAM_Y
    HOLOGRAM_NEXT;
  }

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
  // One operand beside the accumulator.
  template <DType dtype>
  struct FromMemory {
    using D = Element<dtype>;
    HOLOGRAM_INLINE FromMemory(const Reference& r, char* const* R, long off)
        : p(address<D>(r, R, off)) {}
    HOLOGRAM_INLINE Vec get(int k, V) const { return Lanes<T, dtype, W>::load(p, k); }
    const char* p;
  };
  struct FromSplat {
    HOLOGRAM_INLINE FromSplat(const Reference& r, char* const* R, long) : v(splat(r, R)) {}
    HOLOGRAM_INLINE Vec get(int, V) const { return v; }
    Vec v;
  };
  struct FromSelf {  // the accumulator itself
    HOLOGRAM_INLINE FromSelf(const Reference&, char* const*, long) {}
    HOLOGRAM_INLINE Vec get(int, V a) const { return a; }
  };

  // What becomes of the result of an operation.
  struct AsItIs {
    HOLOGRAM_INLINE static V apply(V x) { return x; }
  };
  struct ToBf16 {  // it is clean
    HOLOGRAM_INLINE static V apply(V x) { return Lanes<T, DType::bf16, W>::round_clean(x).v; }
  };

  template <class Row, int place, class Y, class Z, class Rounding = AsItIs>
  static void operate(HOLOGRAM_STATE) {
    const Y y(ip->x, R, off);
    const Z z(ip->y, R, off);
#define HOLOGRAM_Y(k, a) Rounding::apply(compute<Row, place>(a, y.get(k, a), z.get(k, a)))
    HOLOGRAM_FOR_ALL((is_heavy<T, W>(Row::kOp)), HOLOGRAM_Y)
#undef HOLOGRAM_Y
    HOLOGRAM_NEXT;
  }

  // Both operands beside the accumulator, which is overwritten.
  template <class Row, class X, class Y, class Rounding = AsItIs>
  static void start(HOLOGRAM_STATE) {
    const X x(ip->x, R, off);
    const Y y(ip->y, R, off);
#define HOLOGRAM_Y(k, a) Rounding::apply(compute<Row, 0>(x.get(k, a).v, y.get(k, a), Vec(a)))
    HOLOGRAM_FOR_ALL(false, HOLOGRAM_Y)
#undef HOLOGRAM_Y
    HOLOGRAM_NEXT;
  }

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
  static void multiply_then(HOLOGRAM_STATE) {
    const X x(ip->x, R, off);
    const Y y(ip->y, R, off);
    const auto product = [&](int k, V a) __attribute__((always_inline)) {
      return round_product<dtype>(group_row_mul::apply<Vec>(x.get(k, a), y.get(k, a), Vec(a)));
    };
#define HOLOGRAM_Y(k, a) Rounding::apply(compute<Row, place>(a, product(k, a), Vec(a)))
    HOLOGRAM_FOR_ALL(false, HOLOGRAM_Y)
#undef HOLOGRAM_Y
    HOLOGRAM_NEXT;
  }

  static constexpr DType kOwn = std::is_same_v<T, float>    ? DType::f32
                                : std::is_same_v<T, double> ? DType::f64
                                                            : DType::i64;
  using Memory = FromMemory<kOwn>;

  template <class Function>
  static AnyCode any(Function* function) {
    return reinterpret_cast<AnyCode>(function);
  }

  template <class Row>
  static void add_row(ClassKernels& kernels) {
    constexpr size_t op = static_cast<size_t>(Row::kOp);
    if constexpr ((Row::kDTypes & (dtype_bit(kOwn) | dtype_bit(DType::b8))) == 0) {
      return;
    } else if constexpr (Row::kArity == 1) {
      kernels.unary[op] = any(operate<Row, 0, FromSelf, FromSelf>);
    } else if constexpr (Row::kArity == 2) {
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
    row[place][0] = any(operate<Row, place, Memory, Memory>);
    row[place][1] = any(operate<Row, place, FromSplat, Memory>);
    row[place][2] = any(operate<Row, place, Memory, FromSplat>);
    row[place][3] = any(operate<Row, place, FromSplat, FromSplat>);
  }
  template <class Row, class Rounding>
  static void add_forms(AnyCode* row) {
    row[kMemory] = any(operate<Row, 0, Memory, FromSelf, Rounding>);
    row[kSplat] = any(operate<Row, 0, FromSplat, FromSelf, Rounding>);
    row[kSelf] = any(operate<Row, 0, FromSelf, FromSelf, Rounding>);
    row[kSwapped + kMemory] = any(operate<Row, 1, Memory, FromSelf, Rounding>);
    row[kSwapped + kSplat] = any(operate<Row, 1, FromSplat, FromSelf, Rounding>);
    if constexpr (std::is_same_v<T, float>) {
      using MemoryBf16 = FromMemory<DType::bf16>;
      using MemoryF16 = FromMemory<DType::f16>;
      row[kMemoryBf16] = any(operate<Row, 0, MemoryBf16, FromSelf, Rounding>);
      row[kMemoryF16] = any(operate<Row, 0, MemoryF16, FromSelf, Rounding>);
      row[kSwapped + kMemoryBf16] = any(operate<Row, 1, MemoryBf16, FromSelf, Rounding>);
      row[kSwapped + kMemoryF16] = any(operate<Row, 1, MemoryF16, FromSelf, Rounding>);
    }
  }
  template <class Row, class M, DType dtype, class Rounding>
  static void add_pairs(Arithmetic& table, Pair first) {
    constexpr size_t op = static_cast<size_t>(Row::kOp);
    AnyCode* start_row = table.start[op] + first;
    start_row[0] = any(start<Row, M, M, Rounding>);
    start_row[1] = any(start<Row, M, FromSplat, Rounding>);
    start_row[2] = any(start<Row, FromSplat, M, Rounding>);
    AnyCode* product_row = table.with_product[op] + first;
    product_row[0] = any(multiply_then<Row, 0, dtype, M, M, Rounding>);
    product_row[1] = any(multiply_then<Row, 0, dtype, M, FromSplat, Rounding>);
    product_row = table.with_product[4 + op] + first;
    product_row[0] = any(multiply_then<Row, 1, dtype, M, M, Rounding>);
    product_row[1] = any(multiply_then<Row, 1, dtype, M, FromSplat, Rounding>);
  }
  // Of add, sub, mul and div: what takes more than one operand from memory, or rounds to bf16.
  template <class Row>
  static void add_arithmetic(ClassKernels& kernels) {
    if constexpr (!std::is_same_v<T, int64_t> || Row::kOp != Op::div) {
      add_pairs<Row, Memory, kOwn, AsItIs>(kernels.plain, kMM);
    }
    if constexpr (std::is_same_v<T, float>) {
      using MemoryBf16 = FromMemory<DType::bf16>;
      using MemoryF16 = FromMemory<DType::f16>;
      add_pairs<Row, MemoryBf16, DType::bf16, AsItIs>(kernels.plain, kBB);
      add_pairs<Row, MemoryF16, DType::f16, AsItIs>(kernels.plain, kHH);
      add_pairs<Row, MemoryBf16, DType::bf16, ToBf16>(kernels.to_bf16, kBB);
      add_forms<Row, ToBf16>(kernels.binary_to_bf16[static_cast<size_t>(Row::kOp)]);
    }
  }
  template <DType dtype>
  static void add_dtype(ClassKernels& kernels) {
    kernels.load[static_cast<size_t>(dtype)] = any(load<dtype>);
    kernels.store[static_cast<size_t>(dtype)] = any(store<dtype>);
    kernels.round[static_cast<size_t>(dtype)] = any(round<dtype>);
  }

  // Blocks from byte `begin` of T to `end`, with the streams' memory fetched ahead.
  static void run(const Instruction* code, char* const* R, long begin, long end,
                  const Stream* streams, int stream_count) {
    const V zero{};
    for (long off = begin; off < end; off += 8 * W) {
      for (int i = 0; i < stream_count; ++i) {
        const Stream& s = streams[i];
        const char* p = R[s.pointer] + off * s.size / static_cast<long>(sizeof(T)) + s.distance;
        const char* stop = p + kLanes * s.size;
        for (; p < stop; p += 64) __builtin_prefetch(p);
      }
      reinterpret_cast<Code>(code->code)(code, R, off, zero, zero, zero, zero, zero, zero, zero,
                                         zero);
    }
  }

  static ClassKernels make() {
    ClassKernels kernels{};
    kernels.lanes = kLanes;
    kernels.own = kOwn;
    kernels.load_splat = any(load_splat);
    kernels.end = any(end);
    kernels.run = run;
    add_dtype<DType::b8>(kernels);
    add_dtype<DType::u8>(kernels);
    add_dtype<DType::i8>(kernels);
    add_dtype<DType::i16>(kernels);
    add_dtype<DType::i32>(kernels);
    add_dtype<DType::i64>(kernels);
    add_dtype<DType::f16>(kernels);
    add_dtype<DType::bf16>(kernels);
    add_dtype<DType::f32>(kernels);
    add_dtype<DType::f64>(kernels);
    if constexpr (std::is_same_v<T, float>) {
      kernels.round_clean = any(round_clean);
      kernels.store_clean = any(store_clean);
      kernels.store_exact = any(store_exact);
    }
#define HOLOGRAM_X(name, arity, dtypes, expression, flags, identity) \
  add_row<group_row_##name>(kernels);
    HOLOGRAM_OPS(HOLOGRAM_X)
#undef HOLOGRAM_X
    add_arithmetic<group_row_add>(kernels);
    add_arithmetic<group_row_sub>(kernels);
    add_arithmetic<group_row_mul>(kernels);
    add_arithmetic<group_row_div>(kernels);
    return kernels;
  }
};

template <int W>
void make_kernels(GroupKernels& kernels) {
  kernels.classes[static_cast<size_t>(ComputeClass::f32)] = Instructions<float, W>::make();
  kernels.classes[static_cast<size_t>(ComputeClass::f64)] = Instructions<double, W>::make();
  kernels.classes[static_cast<size_t>(ComputeClass::i64)] = Instructions<int64_t, W>::make();
}

}  // namespace hologram::cpu

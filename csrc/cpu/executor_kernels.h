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
  HOLOGRAM_INLINE static Vec load(const char* p, long k) {
    p += k * kLanes * static_cast<long>(sizeof(D));
    Vec r;
    for (int i = 0; i < kLanes; ++i) {
      D x;
      __builtin_memcpy(&x, p + i * static_cast<int>(sizeof(D)), sizeof x);
      r.v[i] = convert<T>(x);
    }
    return r;
  }
  HOLOGRAM_INLINE static void store(char* p, long k, Vec x) {
    p += k * kLanes * static_cast<long>(sizeof(D));
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
  HOLOGRAM_INLINE static Vec load(const char* p, long k) { return load_lanes<T, W>(p + k * W); }
  HOLOGRAM_INLINE static void store(char* p, long k, Vec x) { store_lanes(p + k * W, x); }
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
HOLOGRAM_INLINE Simd<uint32_t, W> load_words(const char* p, long k) {
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
HOLOGRAM_INLINE void store_words(char* p, long k, Simd<uint32_t, W> x) {
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
  HOLOGRAM_INLINE static Vec load(const char* p, long k) {
    return from_bf16_bits(load_words<W>(p, k));
  }
  HOLOGRAM_INLINE static void store(char* p, long k, Vec x) {
    store_words(p, k, bf16_bits(round_to_bf16(x)));
  }
  HOLOGRAM_INLINE static Vec round(Vec x) { return round_to_bf16(x); }
  HOLOGRAM_INLINE static Vec round_clean(Vec x) { return round_clean_to_bf16(x); }
  // Two vectors, `k` and the one after it; store_exact: of lanes that bf16 can hold.
  HOLOGRAM_INLINE static void store_clean(char* p, long k, Vec x, Vec y) {
    store_word_pairs<W>(p + k * (W / 2), round_clean_bits(x), round_clean_bits(y));
  }
  HOLOGRAM_INLINE static void store_exact(char* p, long k, Vec x, Vec y) {
    store_word_pairs<W>(p + k * (W / 2), x.bits(), y.bits());
  }
};

template <int W>
struct Lanes<float, DType::f16, W> {
  using Vec = Simd<float, W>;
  static constexpr bool kSlow = false;
  HOLOGRAM_INLINE static Vec load(const char* p, long k) {
#if defined(__x86_64__)
    if constexpr (W == 64) {
      return Vec(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + k)));
    } else if constexpr (W == 32) {
      return Vec(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + k)));
    }
#endif
    return from_f16_bits(load_words<W>(p, k));
  }
  HOLOGRAM_INLINE static void store(char* p, long k, Vec x) {
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
  HOLOGRAM_INLINE static Vec load(const char* p, long k) {
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
  HOLOGRAM_INLINE static void store(char* p, long k, Vec x) {
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
template <int W>
struct Lanes<uint8_t, DType::b8, W> : SameLanes<uint8_t, W> {
  using Vec = Simd<uint8_t, W>;
  HOLOGRAM_INLINE static Vec load(const char* p, long k) {
    return select(load_lanes<uint8_t, W>(p + k * W) == Vec(0), Vec(0), Vec(1));
  }
};

// Types of half a lane's size.
template <class T, class D, int W>
struct HalfLanes {
  using Vec = Simd<T, W>;
  static constexpr bool kSlow = false;
  typedef D Half __attribute__((vector_size(W / 2)));
  HOLOGRAM_INLINE static Vec load(const char* p, long k) {
    Half half;
    __builtin_memcpy(&half, p + k * (W / 2), sizeof half);
    return Vec(__builtin_convertvector(half, typename Vec::V));
  }
  HOLOGRAM_INLINE static void store(char* p, long k, Vec x) {
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
#define HOLOGRAM_X(name, arity, expression, ...)                               \
  struct group_row_##name {                                                    \
    static constexpr Op kOp = Op::name;                                        \
    static constexpr OpInfo kInfo = op_info(Op::name);                         \
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
  switch (std::is_same_v<T, int64_t> ? op_info(op).integer_cost : op_info(op).cost) {
    case Cost::fused:
      return W == 16;  // the baseline emulates it
    // With 32 registers the constants stay in some of them.
    case Cost::short_function: return !std::is_same_v<T, float> || W != 64;
    case Cost::function: return true;
    default: return false;
  }
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

  // What an instruction does to a vector of the accumulator: Step(instruction, R, off).at(k, a) is
  // what vector `k`, which is `a`, becomes. kRolled: eight copies of it would be too much code.
  template <DType dtype>
  struct Load {
    using L = Lanes<T, dtype, W>;
    static constexpr bool kRolled = L::kSlow;
    HOLOGRAM_INLINE Load(const Instruction& i, char* const* R, long off)
        : p(address<Element<dtype>>(i.x, R, off)) {}
    HOLOGRAM_INLINE V at(long k, V) const { return L::load(p, k).v; }
    const char* p;
  };
  struct LoadSplat {
    static constexpr bool kRolled = false;
    HOLOGRAM_INLINE LoadSplat(const Instruction& i, char* const* R, long) : v(splat(i.x, R)) {}
    HOLOGRAM_INLINE V at(long, V) const { return v.v; }
    Vec v;
  };
  template <DType dtype>
  struct Store {
    using L = Lanes<T, dtype, W>;
    static constexpr bool kRolled = L::kSlow;
    HOLOGRAM_INLINE Store(const Instruction& i, char* const* R, long off)
        : p(address<Element<dtype>>(i.x, R, off)) {}
    HOLOGRAM_INLINE V at(long k, V a) const {
      L::store(p, k, a);
      return a;
    }
    char* p;
  };
  template <DType dtype>
  struct Round {
    using L = Lanes<T, dtype, W>;
    static constexpr bool kRolled = L::kSlow;
    HOLOGRAM_INLINE Round(const Instruction&, char* const*, long) {}
    HOLOGRAM_INLINE V at(long, V a) const { return L::round(a).v; }
  };
  // To bf16, of clean lanes (cpu/convert.h).
  struct RoundClean {
    static constexpr bool kRolled = false;
    HOLOGRAM_INLINE RoundClean(const Instruction&, char* const*, long) {}
    HOLOGRAM_INLINE V at(long, V a) const { return Lanes<float, DType::bf16, W>::round_clean(a).v; }
  };
  // bf16 from clean lanes, or from values that bf16 can hold; two vectors at a time.
  template <bool exact>
  struct StorePairs {
    using L = Lanes<float, DType::bf16, W>;
    static constexpr bool kRolled = false;
    HOLOGRAM_INLINE StorePairs(const Instruction& i, char* const* R, long off)
        : p(address<Bf16>(i.x, R, off)) {}
    HOLOGRAM_INLINE void pair(long k, V a, V b) const {
      if constexpr (exact) {
        L::store_exact(p, k, a, b);
      } else {
        L::store_clean(p, k, a, b);
      }
    }
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
  // One operand beside the accumulator.
  template <DType dtype>
  struct FromMemory {
    using D = Element<dtype>;
    HOLOGRAM_INLINE FromMemory(const Reference& r, char* const* R, long off)
        : p(address<D>(r, R, off)) {}
    HOLOGRAM_INLINE Vec get(long k, V) const { return Lanes<T, dtype, W>::load(p, k); }
    const char* p;
  };
  struct FromSplat {
    HOLOGRAM_INLINE FromSplat(const Reference& r, char* const* R, long) : v(splat(r, R)) {}
    HOLOGRAM_INLINE Vec get(long, V) const { return v; }
    Vec v;
  };
  struct FromSelf {  // the accumulator itself
    HOLOGRAM_INLINE FromSelf(const Reference&, char* const*, long) {}
    HOLOGRAM_INLINE Vec get(long, V a) const { return a; }
  };

  // What becomes of the result of an operation.
  struct AsItIs {
    HOLOGRAM_INLINE static V apply(V x) { return x; }
  };
  struct ToBf16 {  // it is clean
    HOLOGRAM_INLINE static V apply(V x) { return Lanes<T, DType::bf16, W>::round_clean(x).v; }
  };

  template <class Row, int place, class Y, class Z, class Rounding = AsItIs>
  struct Operate {
    static constexpr bool kRolled = is_heavy<T, W>(Row::kOp);
    HOLOGRAM_INLINE Operate(const Instruction& i, char* const* R, long off)
        : y(i.x, R, off), z(i.y, R, off) {}
    HOLOGRAM_INLINE V at(long k, V a) const {
      return Rounding::apply(compute<Row, place>(a, y.get(k, a), z.get(k, a)));
    }
    Y y;
    Z z;
  };

  // Both operands beside the accumulator, which is overwritten.
  template <class Row, class X, class Y, class Rounding = AsItIs>
  struct Start {
    static constexpr bool kRolled = false;
    HOLOGRAM_INLINE Start(const Instruction& i, char* const* R, long off)
        : x(i.x, R, off), y(i.y, R, off) {}
    HOLOGRAM_INLINE V at(long k, V a) const {
      return Rounding::apply(compute<Row, 0>(x.get(k, a).v, y.get(k, a), Vec(a)));
    }
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
    HOLOGRAM_INLINE MultiplyThen(const Instruction& i, char* const* R, long off)
        : x(i.x, R, off), y(i.y, R, off) {}
    HOLOGRAM_INLINE V at(long k, V a) const {
      const Vec product =
          round_product<dtype>(group_row_mul::apply<Vec>(x.get(k, a), y.get(k, a), Vec(a)));
      return Rounding::apply(compute<Row, place>(a, product, Vec(a)));
    }
    X x;
    Y y;
  };

  // A step as an instruction.
  template <class Step>
  static void instruction(HOLOGRAM_STATE) {
    const Step step(*ip, R, off);
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
    return reinterpret_cast<AnyCode>(instruction<Step>);
  }

  static constexpr DType kOwn = std::is_same_v<T, float>     ? DType::f32
                                : std::is_same_v<T, double>  ? DType::f64
                                : std::is_same_v<T, int64_t> ? DType::i64
                                                             : DType::b8;
  using Memory = FromMemory<kOwn>;

  template <class Row>
  static void add_row(ClassKernels& kernels) {
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
    product_row[0] = code_of<MultiplyThen<Row, 1, dtype, M, M, Rounding>>();
    product_row[1] = code_of<MultiplyThen<Row, 1, dtype, M, FromSplat, Rounding>>();
  }
  // What takes more than one operand from memory, or rounds to bf16.
  template <class Row>
  static void add_arithmetic(ClassKernels& kernels) {
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
  static void add_dtype(ClassKernels& kernels) {
    kernels.load[static_cast<size_t>(dtype)] = code_of<Load<dtype>>();
    kernels.store[static_cast<size_t>(dtype)] = code_of<Store<dtype>>();
    kernels.round[static_cast<size_t>(dtype)] = code_of<Round<dtype>>();
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

  // ---- sequences of instructions as loops ----

  // Steps that follow one another, on four vectors.
  template <class... Steps>
  struct Chain {
    HOLOGRAM_INLINE Chain(const Instruction*, char* const*, long) {}
    HOLOGRAM_INLINE void at(long, V (&)[4]) const {}
  };
  template <class First, class... Rest>
  struct Chain<First, Rest...> {
    HOLOGRAM_INLINE Chain(const Instruction* code, char* const* R, long off)
        : first(*code, R, off), rest(code + 1, R, off) {}
    HOLOGRAM_INLINE void at(long k, V (&a)[4]) const {
      if constexpr (requires { &First::pair; }) {
        first.pair(k, a[0], a[1]);
        first.pair(k + 2, a[2], a[3]);
      } else {
        a[0] = first.at(k, a[0]), a[1] = first.at(k + 1, a[1]);
        a[2] = first.at(k + 2, a[2]), a[3] = first.at(k + 3, a[3]);
      }
      rest.at(k, a);
    }
    First first;
    Chain<Rest...> rest;
  };

  // Vectors of the blocks from byte `begin` to `end`.
  HOLOGRAM_INLINE static long vectors(long begin, long end) {
    return (end - begin + 8 * W - 1) / (8 * W) * 8;
  }
  template <class... Steps>
  static void loop(const Instruction* code, char* const* R, long begin, long end, const Stream*,
                   int) {
    const Chain<Steps...> chain(code, R, begin);
    const long count = vectors(begin, end);
    for (long k = 0; k < count; k += 4) {
      V a[4] = {};
      chain.at(k, a);
    }
  }
  // A splat, stored: what the first vector has become is the pattern of the rest.
  template <DType dtype>
  static void fill(const Instruction* code, char* const* R, long begin, long end, const Stream*,
                   int) {
    const LoadSplat splat(code[0], R, begin);
    const Store<dtype> store(code[1], R, begin);
    char block[8 * W * sizeof(Element<dtype>) / sizeof(T)];
    for (long k = 0; k < 8; ++k) Lanes<T, dtype, W>::store(block, k, splat.v);
    const auto pattern = load_lanes<uint8_t, W>(block);
    const long count = vectors(begin, end) * W * static_cast<long>(sizeof(Element<dtype>)) /
                       static_cast<long>(sizeof(T));
    long i = 0;
    for (; i + 4 * W <= count; i += 4 * W) {
      // Nothing is read here that would make the processor fetch lines before they are written.
      for (int at = 0; at < 4 * W; at += 64) __builtin_prefetch(store.p + i + 2048 + at, 1);
      store_lanes(store.p + i, pattern);
      store_lanes(store.p + i + W, pattern);
      store_lanes(store.p + i + 2 * W, pattern);
      store_lanes(store.p + i + 3 * W, pattern);
    }
    for (; i + W <= count; i += W) store_lanes(store.p + i, pattern);
    if (i < count) __builtin_memcpy(store.p + i, block, static_cast<size_t>(count - i));
  }
  // Operations on the bits of half types: what is kept of them, and what is turned over.
  // `stored`: the place of the store in the code.
  template <uint16_t kept, uint16_t turned, int stored>
  static void change_bits(const Instruction* code, char* const* R, long begin, long end,
                          const Stream*, int) {
    using Words = Simd<uint16_t, W>;
    const char* from = address<Bf16>(code[0].x, R, begin);
    char* to = address<Bf16>(code[stored].x, R, begin);
    const long count = vectors(begin, end) * (W / 2);
#pragma GCC unroll 4
    for (long i = 0; i < count; i += W) {
      const auto words = load_lanes<uint16_t, W>(from + i);
      store_lanes(to + i, (words & Words(kept)) ^ Words(turned));
    }
  }

  template <class... Steps>
  static void add_run(ClassKernels& kernels, RunCode run) {
    static_assert(sizeof...(Steps) <= Loop::kMost);
    if (kernels.loop_count == ClassKernels::kMostLoops) __builtin_trap();
    Loop& added = kernels.loops[kernels.loop_count++];
    ((added.code[added.length++] = code_of<Steps>()), ...);
    added.run = run;
  }
  template <class... Steps>
  static void add_loop(ClassKernels& kernels) {
    if constexpr (!(Steps::kRolled || ...)) add_run<Steps...>(kernels, loop<Steps...>);
  }
  // A row on memory of `dtype`, which is M to an operation.
  template <class Row, DType dtype, class M, class Stored>
  static void add_unary_or_pair(ClassKernels& kernels) {
    if constexpr (Row::kInfo.arity == 1) {
      add_loop<Load<dtype>, Operate<Row, 0, FromSelf, FromSelf>, Stored>(kernels);
    } else if constexpr (Row::kInfo.cost == Cost::arithmetic) {
      add_loop<Start<Row, M, M>, Stored>(kernels);
    } else if constexpr (Row::kInfo.arity == 2) {
      add_loop<Load<dtype>, Operate<Row, 0, M, FromSelf>, Stored>(kernels);
    }
  }
  // The same beside numbers.
  template <class Row, DType dtype, class M, class Stored>
  static void add_with_splat(ClassKernels& kernels) {
    if constexpr (Row::kInfo.cost == Cost::arithmetic) {
      add_loop<Start<Row, M, FromSplat>, Stored>(kernels);
      add_loop<Start<Row, FromSplat, M>, Stored>(kernels);
    } else if constexpr (Row::kInfo.arity == 2) {
      add_loop<Load<dtype>, Operate<Row, 0, FromSplat, FromSelf>, Stored>(kernels);
    } else if constexpr (Row::kInfo.arity == 3 && Row::kInfo.exact == Exact::always &&
                         !Row::kInfo.has(kCondition)) {
      add_loop<Load<dtype>, Operate<Row, 0, FromSplat, FromSplat>, Stored>(kernels);
    }
  }
  template <class Row>
  static void add_loops(ClassKernels& kernels) {
    using F32 = Store<DType::f32>;
    using B8 = Store<DType::b8>;
    using Bf16Memory = FromMemory<DType::bf16>;
    constexpr bool exact = Row::kInfo.exact == Exact::always;
    if constexpr (std::is_same_v<T, float> && (Row::kInfo.dtypes & dtype_bit(kOwn)) != 0 &&
                  !is_heavy<T, W>(Row::kOp)) {
      add_unary_or_pair<Row, DType::f32, Memory, F32>(kernels);
      add_with_splat<Row, DType::f32, Memory, F32>(kernels);
      add_unary_or_pair<Row, DType::bf16, Bf16Memory,
                        std::conditional_t<exact, StoreExact, StoreClean>>(kernels);
      add_with_splat<Row, DType::bf16, Bf16Memory, StoreClean>(kernels);
      if constexpr (exact) {  // numbers that bf16 has
        add_with_splat<Row, DType::bf16, Bf16Memory, StoreExact>(kernels);
      }
      if constexpr (Row::kInfo.has(kPredicate)) {
        add_unary_or_pair<Row, DType::f32, Memory, B8>(kernels);
        add_with_splat<Row, DType::f32, Memory, B8>(kernels);
        add_unary_or_pair<Row, DType::bf16, Bf16Memory, B8>(kernels);
        add_with_splat<Row, DType::bf16, Bf16Memory, B8>(kernels);
      }
    } else if constexpr (std::is_same_v<T, uint8_t> && Row::kInfo.has(kPredicate)) {
      add_unary_or_pair<Row, DType::b8, Memory, B8>(kernels);
    }
  }
  // What torch has as one operation, as its composite (aten/composites.cpp) comes out compiled.
  template <DType dtype, class M, class Stored>
  static void add_composites(ClassKernels& kernels) {
    using S = FromSplat;
    using Self = FromSelf;
    using Loaded = Load<dtype>;
    // a + b * c, a + value * b, a + (value * b) * c, a + b / c, a + value * b / c
    add_loop<Loaded, Operate<group_row_fma, 0, M, M>, Stored>(kernels);
    add_loop<Loaded, Operate<group_row_fma, 2, S, M>, Stored>(kernels);
    add_loop<Start<group_row_mul, M, S>, Operate<group_row_fma, 0, M, M>, Stored>(kernels);
    add_loop<Start<group_row_div, M, M>, Operate<group_row_add, 0, M, Self>, Stored>(kernels);
    add_loop<Start<group_row_mul, M, S>, Operate<group_row_div, 0, M, Self>,
             Operate<group_row_add, 0, M, Self>, Stored>(kernels);
    // lerp
    add_loop<Start<group_row_sub, M, M>, Operate<group_row_fma, 1, S, M>, Stored>(kernels);
    // hardswish
    add_loop<Start<group_row_add, M, S>, Operate<group_row_clamp, 0, S, S>,
             Operate<group_row_mul, 1, M, Self>, Operate<group_row_div, 0, S, Self>, Stored>(
        kernels);
    // the derivatives of threshold, tanh and sigmoid
    add_loop<Loaded, Operate<group_row_le, 0, S, Self>, Operate<group_row_where, 0, S, M>, Stored>(
        kernels);
    add_loop<Loaded, Operate<group_row_neg, 0, Self, Self>, Operate<group_row_fma, 0, M, S>,
             Operate<group_row_mul, 0, M, Self>, Stored>(kernels);
    add_loop<Start<group_row_sub, S, M>, Operate<group_row_mul, 0, M, Self>,
             Operate<group_row_mul, 1, M, Self>, Stored>(kernels);
  }
  // Copies, and what changes bits only.
  static void add_moves(ClassKernels& kernels) {
    add_loop<Load<kOwn>, Store<kOwn>>(kernels);
    if constexpr (std::is_same_v<T, float>) {
      using Neg = Operate<group_row_neg, 0, FromSelf, FromSelf>;
      using Abs = Operate<group_row_abs, 0, FromSelf, FromSelf>;
      constexpr uint16_t kSign = 0x8000, kRest = 0x7fff, kAll = 0xffff;
      using Bf16Memory = FromMemory<DType::bf16>;
      using WhereBf16 = Operate<group_row_where, 0, Bf16Memory, Bf16Memory>;
      add_loop<Load<DType::b8>, Operate<group_row_where, 0, Memory, Memory>, Store<DType::f32>>(
          kernels);
      add_loop<Load<DType::b8>, WhereBf16, StoreExact>(kernels);
      add_composites<DType::f32, Memory, Store<DType::f32>>(kernels);
      add_composites<DType::bf16, Bf16Memory, StoreClean>(kernels);
      add_run<LoadSplat, Store<DType::f32>>(kernels, fill<DType::f32>);
      add_run<LoadSplat, Store<DType::bf16>>(kernels, fill<DType::bf16>);
      add_run<LoadSplat, StoreClean>(kernels, fill<DType::bf16>);
      add_run<LoadSplat, StoreExact>(kernels, fill<DType::bf16>);
      add_run<LoadSplat, Store<DType::f16>>(kernels, fill<DType::f16>);
      add_run<LoadSplat, Store<DType::b8>>(kernels, fill<DType::b8>);
      add_run<Load<DType::bf16>, StoreExact>(kernels, change_bits<kAll, 0, 1>);
      add_run<Load<DType::f16>, Store<DType::f16>>(kernels, change_bits<kAll, 0, 1>);
      add_run<Load<DType::bf16>, Neg, StoreExact>(kernels, change_bits<kAll, kSign, 2>);
      add_run<Load<DType::bf16>, Abs, StoreExact>(kernels, change_bits<kRest, 0, 2>);
      add_run<Load<DType::f16>, Neg, Store<DType::f16>>(kernels, change_bits<kAll, kSign, 2>);
      add_run<Load<DType::f16>, Abs, Store<DType::f16>>(kernels, change_bits<kRest, 0, 2>);
    }
  }

  static ClassKernels make() {
    ClassKernels kernels{};
    kernels.lanes = kLanes;
    kernels.own = kOwn;
    kernels.load_splat = code_of<LoadSplat>();
    kernels.end = reinterpret_cast<AnyCode>(end);
    kernels.run = run;
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
    if constexpr (std::is_same_v<T, float>) {
      kernels.round_clean = code_of<RoundClean>();
      kernels.store_clean = code_of<StoreClean>();
      kernels.store_exact = code_of<StoreExact>();
    }
#define HOLOGRAM_X(name, ...)         \
  add_row<group_row_##name>(kernels); \
  add_arithmetic<group_row_##name>(kernels);
    HOLOGRAM_OPS(HOLOGRAM_X)
#undef HOLOGRAM_X
    if constexpr (W > 16) {  // machines with the baseline alone are few, and compilation takes time
      add_moves(kernels);
#define HOLOGRAM_X(name, ...) add_loops<group_row_##name>(kernels);
      HOLOGRAM_OPS(HOLOGRAM_X)
#undef HOLOGRAM_X
    }
    return kernels;
  }
};

template <int W>
void make_kernels(GroupKernels& kernels) {
  kernels.classes[static_cast<size_t>(ComputeClass::f32)] = Instructions<float, W>::make();
  kernels.classes[static_cast<size_t>(ComputeClass::f64)] = Instructions<double, W>::make();
  kernels.classes[static_cast<size_t>(ComputeClass::i64)] = Instructions<int64_t, W>::make();
  kernels.bytes = Instructions<uint8_t, W>::make();
}

}  // namespace hologram::cpu

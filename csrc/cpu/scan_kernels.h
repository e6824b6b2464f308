// The kernels of scans (atlas/group.h), for one width of vector register.
//
// Included by one source file per instruction set, which includes the headers of others first and
// then selects the target: no code shared with other files may be compiled for the wider set.
#pragma once

#include <type_traits>

#include "cpu/micro_ops.h"

namespace hologram::cpu {

template <class T, int W>
struct Scans {
  using Vec = Simd<T, W>;
  static constexpr DType kOwn = std::is_same_v<T, float>    ? DType::f32
                                : std::is_same_v<T, double> ? DType::f64
                                                            : DType::i64;

  // What is scanned, and what is stored.
  template <class OfRow, DType from, DType to>
  struct Kernels {
    using Row = OfRow;
    static constexpr bool kWide = std::is_same_v<T, float> && to == DType::f32;
    using Running = std::conditional_t<kWide, double, T>;
    using D = Element<from>;
    using E = Element<to>;
    static constexpr long kFrom = sizeof(D), kTo = sizeof(E);
    static constexpr Running kStart = static_cast<Running>(Row::kInfo.identity + 0.0);  // +0 of -0

    // Elements of half types are converted a few registers at a time.
    static constexpr bool kHalf = (dtype_bit(to) & kHalves) != 0;
    static constexpr long kPart = 4 * Vec::kLanes;

    HOLOGRAM_INLINE static void load_part(T* part, const char* from_elements, long count) {
      const long whole = count / Vec::kLanes, left = count % Vec::kLanes;
      for (long k = 0; k < whole; ++k) {
        store_lanes(part + k * Vec::kLanes, Lanes<T, from, W>::load(from_elements, k));
      }
      if (left == 0) return;
      char copy[Vec::kLanes * kFrom] = {};
      __builtin_memcpy(copy, from_elements + (count - left) * kFrom,
                       static_cast<size_t>(left * kFrom));
      store_lanes(part + count - left, Lanes<T, from, W>::load(copy, 0));
    }
    HOLOGRAM_INLINE static void store_part(char* to_elements, const T* part, long count) {
      const long whole = count / Vec::kLanes, left = count % Vec::kLanes;
      for (long k = 0; k < whole; ++k) {
        Lanes<T, to, W>::store(to_elements, k, load_lanes<T, W>(part + k * Vec::kLanes));
      }
      if (left == 0) return;
      char copy[Vec::kLanes * kTo];
      Lanes<T, to, W>::store(copy, 0, load_lanes<T, W>(part + count - left));
      __builtin_memcpy(to_elements + (count - left) * kTo, copy, static_cast<size_t>(left * kTo));
    }

    HOLOGRAM_INLINE static Running step(Running running, const char* from_element,
                                        char* to_element) {
      D element;
      __builtin_memcpy(&element, from_element, sizeof element);
      const auto x = static_cast<Running>(convert<T>(element));
      running = Row::template apply<Running>(running, x, x);
      const E result = convert<E>(running);
      __builtin_memcpy(to_element, &result, sizeof result);
      return running;
    }

    // Rows at a time: a step waits for the one before it in its row only.
    template <int rows>
    HOLOGRAM_INLINE static void along_some(char* to_row, const char* from_row, Running* running,
                                           long columns, long to_stride, long from_stride,
                                           bool continues) {
      Running now[rows];
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) now[r] = continues ? running[r] : kStart;
      if constexpr (kHalf) {
        T parts[rows][kPart];
        for (long c = 0; c < columns; c += kPart) {
          const long count = columns - c < kPart ? columns - c : kPart;
          for (int r = 0; r < rows; ++r) {
            load_part(parts[r], from_row + r * from_stride + c * kFrom, count);
          }
          for (long i = 0; i < count; ++i) {
#pragma GCC unroll 4
            for (int r = 0; r < rows; ++r) {
              T& x = parts[r][i];
              x = now[r] = Row::template apply<T>(now[r], x, x);
            }
          }
          for (int r = 0; r < rows; ++r) {
            store_part(to_row + r * to_stride + c * kTo, parts[r], count);
          }
        }
      }
      for (long c = 0; c < columns && !kHalf; ++c) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
          now[r] = step(now[r], from_row + r * from_stride + c * kFrom,
                        to_row + r * to_stride + c * kTo);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) running[r] = now[r];
    }
    static void along(void* to_rows, const void* from_rows, void* values, long rows, long columns,
                      long to_stride, long from_stride, bool continues) {
      char* out = static_cast<char*>(to_rows);
      const char* in = static_cast<const char*>(from_rows);
      auto* running = static_cast<Running*>(values);
      long r = 0;
      for (; r + 4 <= rows; r += 4, running += 4, out += 4 * to_stride, in += 4 * from_stride) {
        along_some<4>(out, in, running, columns, to_stride, from_stride, continues);
      }
      for (; r < rows; ++r, ++running, out += to_stride, in += from_stride) {
        along_some<1>(out, in, running, columns, to_stride, from_stride, continues);
      }
    }

    // Running values beside a register of elements.
    struct Register {
      Simd<Running, W> low, high;  // the latter where they are twice as wide
      HOLOGRAM_INLINE void load(const Running* p, bool continues) {
        low = high = Simd<Running, W>(kStart);
        if (!continues) return;
        low = load_lanes<Running, W>(p);
        if constexpr (kWide) high = load_lanes<Running, W>(p + low.kLanes);
      }
      HOLOGRAM_INLINE void store(Running* p) const {
        store_lanes(p, low);
        if constexpr (kWide) store_lanes(p + low.kLanes, high);
      }
      HOLOGRAM_INLINE Vec step(Vec x) {
        if constexpr (kWide) {
          Simd<double, W> a, b;
          widen(x, a, b);
          low = Row::template apply<Simd<double, W>>(low, a, a);
          high = Row::template apply<Simd<double, W>>(high, b, b);
          return narrow(low, high);
        } else {
          low = Row::template apply<Vec>(low, x, x);
          return low;
        }
      }
    };
    // Some registers of columns.
    template <int registers>
    HOLOGRAM_INLINE static void down_some(char* to_row, const char* from_row, Running* running,
                                          long rows, long to_stride, long from_stride,
                                          bool continues) {
      Register now[registers];
#pragma GCC unroll 4
      for (int k = 0; k < registers; ++k) now[k].load(running + k * Vec::kLanes, continues);
      for (long r = 0; r < rows; ++r, to_row += to_stride, from_row += from_stride) {
#pragma GCC unroll 4
        for (int k = 0; k < registers; ++k) {
          Lanes<T, to, W>::store(to_row, k, now[k].step(Lanes<T, from, W>::load(from_row, k)));
        }
      }
#pragma GCC unroll 4
      for (int k = 0; k < registers; ++k) now[k].store(running + k * Vec::kLanes);
    }
    static void down(void* to_rows, const void* from_rows, void* values, long rows, long columns,
                     long to_stride, long from_stride, bool continues) {
      constexpr int kSome = 4;
      char* const out = static_cast<char*>(to_rows);
      const char* const in = static_cast<const char*>(from_rows);
      auto* const running = static_cast<Running*>(values);
      long c = 0;
      for (; c + kSome * Vec::kLanes <= columns; c += kSome * Vec::kLanes) {
        down_some<kSome>(out + c * kTo, in + c * kFrom, running + c, rows, to_stride, from_stride,
                         continues);
      }
      for (; c + Vec::kLanes <= columns; c += Vec::kLanes) {
        down_some<1>(out + c * kTo, in + c * kFrom, running + c, rows, to_stride, from_stride,
                     continues);
      }
      if (kHalf && c < columns) {
        for (long r = 0; r < rows; ++r) {
          T part[Vec::kLanes];
          load_part(part, in + r * from_stride + c * kFrom, columns - c);
          for (long i = 0; i < columns - c; ++i) {
            const auto before = r != 0 || continues ? running[c + i] : kStart;
            const auto x = static_cast<Running>(part[i]);
            running[c + i] = Row::template apply<Running>(before, x, x);
            part[i] = static_cast<T>(running[c + i]);
          }
          store_part(out + r * to_stride + c * kTo, part, columns - c);
        }
        return;
      }
      for (; c < columns; ++c) {
        Running now = continues ? running[c] : kStart;
        for (long r = 0; r < rows; ++r) {
          now = step(now, in + r * from_stride + c * kFrom, out + r * to_stride + c * kTo);
        }
        running[c] = now;
      }
    }
  };

  template <class Row, DType to>
  static void add_of(ScanKernels& scan) {
    constexpr auto i = static_cast<size_t>(to);
    scan.along.of_own[i] = Kernels<Row, kOwn, to>::along;
    scan.down.of_own[i] = Kernels<Row, kOwn, to>::down;
    if constexpr (std::is_same_v<T, float>) {
      scan.along.of_same[i] = Kernels<Row, to, to>::along;
      scan.down.of_same[i] = Kernels<Row, to, to>::down;
    }
  }
  template <class Row>
  static void add_row(TypeKernels& kernels) {
    if constexpr (Row::kInfo.scan != nullptr) {
      ScanKernels& scan = kernels.scans[static_cast<size_t>(Row::kOp)];
      add_of<Row, kOwn>(scan);
      if constexpr (std::is_same_v<T, float>) {
        add_of<Row, DType::bf16>(scan);
        add_of<Row, DType::f16>(scan);
      } else if constexpr (std::is_same_v<T, int64_t>) {
        add_of<Row, DType::i32>(scan);
        add_of<Row, DType::i16>(scan);
        add_of<Row, DType::i8>(scan);
        add_of<Row, DType::u8>(scan);
      }
    }
  }
  static void add(TypeKernels& kernels) {
    if constexpr (!std::is_same_v<T, uint8_t>) {
#define HOLOGRAM_X(name, ...) add_row<group_row_##name>(kernels);
      HOLOGRAM_OPS(HOLOGRAM_X)
#undef HOLOGRAM_X
    }
  }
};

}  // namespace hologram::cpu

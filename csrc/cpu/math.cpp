#include "cpu/math.h"

namespace hologram::cpu {
namespace {

// x * y + z rounded to odd, for f32 arguments: rounding that to f32 is rounding once.
struct FmaLanes {
  template <class D>
  HOLOGRAM_INLINE static D apply(D x, D y, D z) {
    using U = typename D::Bits;
    const D p = x * y;  // exact
    const D s = p + z;
    const D b = s - p;
    const D error = (p - (s - b)) + (z - b);
    const U inexact = (typename U::V)((error > D(0)) | (error < D(0))).v;
    // Away from zero where the error has the sum's sign. No comparison of integers: SSE2 has none.
    const U even = (s.bits() & U(1)) - U(1);
    const U step = U(1) - (((error.bits() ^ s.bits()) >> 63) << 1);
    return D::from_bits(s.bits() + (step & even & inexact));
  }
};

}  // namespace

Native<float, 16> fma_by_doubles(Native<float, 16> x, Native<float, 16> y, Native<float, 16> z) {
  Simd<double, 16> x0, x1, y0, y1, z0, z1;
  widen(Simd<float, 16>(x), x0, x1);
  widen(Simd<float, 16>(y), y0, y1);
  widen(Simd<float, 16>(z), z0, z1);
  return narrow(FmaLanes::apply(x0, y0, z0), FmaLanes::apply(x1, y1, z1)).v;
}

}  // namespace hologram::cpu

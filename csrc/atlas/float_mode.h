// How a thread treats denormal floats: as they are, or as zeros (torch.set_flush_denormal).
#pragma once

#include <bit>
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace hologram {

// Bits of the processor's register, 0 for IEEE arithmetic. What operations make of denormals
// differs with them, so a program is recorded, planned and executed in one mode.
using FloatMode = uint32_t;

#if defined(__x86_64__)
namespace detail {
inline constexpr FloatMode kFloatModeBits = 0x8040;  // flush to zero, denormals are zeros
}
inline FloatMode float_mode() noexcept {
  // An addition tells whether the register has to be read, which takes ten times as long.
  float denormal = 0x1p-140f;
  asm volatile("" : "+x"(denormal));
  denormal += denormal;
  if (std::bit_cast<uint32_t>(denormal) != 0) [[likely]]
    return 0;
  return _mm_getcsr() & detail::kFloatModeBits;
}
inline void set_float_mode(FloatMode mode) noexcept {
  _mm_setcsr((_mm_getcsr() & ~detail::kFloatModeBits) | mode);
}
#elif defined(__aarch64__)
namespace detail {
inline constexpr uint64_t kFloatModeBits = uint64_t{1} << 24;  // FZ, of operands and results
inline uint64_t control_register() noexcept {
  uint64_t bits;
  asm volatile("mrs %0, fpcr" : "=r"(bits));
  return bits;
}
}  // namespace detail
inline FloatMode float_mode() noexcept {
  return static_cast<FloatMode>(detail::control_register() & detail::kFloatModeBits);
}
inline void set_float_mode(FloatMode mode) noexcept {
  const uint64_t bits = (detail::control_register() & ~detail::kFloatModeBits) | mode;
  asm volatile("msr fpcr, %0" : : "r"(bits));
}
#else
inline FloatMode float_mode() noexcept {
  return 0;
}
inline void set_float_mode(FloatMode) noexcept {}
#endif

// The calling thread computes in a mode for as long as this lives.
class FloatModeGuard {
 public:
  explicit FloatModeGuard(FloatMode mode) noexcept
      : before_(float_mode()), changed_(mode != before_) {
    if (changed_) [[unlikely]]
      set_float_mode(mode);
  }
  ~FloatModeGuard() {
    if (changed_) [[unlikely]]
      set_float_mode(before_);
  }
  FloatModeGuard(const FloatModeGuard&) = delete;
  FloatModeGuard& operator=(const FloatModeGuard&) = delete;

 private:
  FloatMode before_;
  bool changed_;
};

}  // namespace hologram

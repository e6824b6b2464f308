// The micro-operations of the CPU for AVX2.
#if defined(__x86_64__)
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cpu/kernel_table.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
// What is included from here on consists of templates over the width of a register.
#include "cpu/kernels.h"

namespace hologram::cpu {

const GroupKernels& avx2_kernels() {
  static const auto& kernels = *[] {
    auto* made = new GroupKernels;
    make_kernels<32>(*made);
    return made;
  }();
  return kernels;
}

}  // namespace hologram::cpu
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif

// The micro-operations of the CPU for AVX-512.
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
// An attribute says which instructions a function may have; how vectors are passed follows from the
// flags of the file. Without them that is in memory, where LLVM's tail calls overwrite arguments.
#if !defined(__AVX512BW__)
#error "clang needs -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c for this file"
#endif
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC's own _mm512_undefined_ps
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
// What is included from here on consists of templates over the width of a register.
#include "cpu/kernels.h"

namespace hologram::cpu {

const GroupKernels& avx512_kernels() {
  static const auto& kernels = *[] {
    auto* made = new GroupKernels;
    make_kernels<64>(*made);
    return made;
  }();
  return kernels;
}

}  // namespace hologram::cpu
#endif

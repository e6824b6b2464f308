// The micro-operations of the CPU for the baseline, which is NEON on 64-bit ARM.
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cpu/kernel_table.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif
// What is included from here on consists of templates over the width of a register.
#include "cpu/kernels.h"

namespace hologram::cpu {

const GroupKernels& baseline_kernels() {
  static const auto& kernels = *[] {
    auto* made = new GroupKernels;
    make_kernels<16>(*made);
    return made;
  }();
  return kernels;
}

}  // namespace hologram::cpu

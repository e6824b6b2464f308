// The upper parts of vector registers, which micro-operations leave as they are: they are functions
// with vectors for arguments, so no compiler clears them. While they are not clear, code that works
// on the lower parts alone, as some of MKL's kernels do, is much slower.
#pragma once

#include "cpu/system.h"

namespace hologram::cpu {

// Clears them when it goes.
class UpperRegistersGuard {
 public:
  UpperRegistersGuard() = default;
  UpperRegistersGuard(const UpperRegistersGuard&) = delete;
  UpperRegistersGuard& operator=(const UpperRegistersGuard&) = delete;
  ~UpperRegistersGuard() {
#if defined(__x86_64__)
    static const bool has_upper = processor_isas().back() != Isa::baseline;
    if (has_upper) asm volatile("vzeroupper" ::: "memory");
#endif
  }
};

}  // namespace hologram::cpu

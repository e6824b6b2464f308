// Facts about the machine.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "atlas/export.h"

namespace hologram::cpu {

enum class Isa { baseline, avx2, avx512, neon };

// The widest instruction set that this processor has and this build has kernels for, or what
// HOLOGRAM_CPU_ISA says at the first call: "baseline", "avx2", "avx512" or "neon". Throws Error if
// that is another word, or more than this processor has.
HOLOGRAM_EXPORT Isa best_isa();
// What best_isa gives for this value of the variable, empty for none.
Isa choose_isa(std::string_view wanted);
// Those that this processor has and this build has kernels for, the widest last.
std::vector<Isa> processor_isas();
HOLOGRAM_EXPORT const char* isa_name(Isa isa) noexcept;

std::string processor_name();
int usable_cores() noexcept;      // by the calling thread's affinity, at least 1
size_t l2_cache_size() noexcept;  // bytes of one core's, 0 when unknown
size_t total_memory() noexcept;   // bytes, no more than the control group allows
size_t
available_memory() noexcept;  // bytes free now or cheaply reclaimed, in the control group too

}  // namespace hologram::cpu

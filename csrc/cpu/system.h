// Facts about the machine.
#pragma once

#include <cstddef>
#include <string>

namespace hologram::cpu {

enum class Isa { baseline, avx2, avx512, neon };

// The widest instruction set that this processor has and this build has kernels for.
Isa best_isa() noexcept;
const char* isa_name(Isa isa) noexcept;

std::string processor_name();
int usable_cores() noexcept;      // by the calling thread's affinity, at least 1
size_t l2_cache_size() noexcept;  // bytes of one core's, 0 when unknown
size_t total_memory() noexcept;   // bytes, no more than the control group allows
size_t
available_memory() noexcept;  // bytes free now or cheaply reclaimed, in the control group too

}  // namespace hologram::cpu

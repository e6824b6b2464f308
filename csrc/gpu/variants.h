// The variants of a step's kernel that launches ask for (gpu/launch.h), whatever their sizes.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "gpu/emit.h"
#include "gpu/steps.h"

namespace hologram::gpu {

// With what each is called; without those whose numbers of elements need 64 bits. `rank`: of the
// space, where an operand is strided.
std::vector<std::pair<std::string, Variant>> variants_of(const Steps& steps, size_t step,
                                                         uint8_t rank);

}  // namespace hologram::gpu

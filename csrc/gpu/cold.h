// A step of a group (gpu/steps.h) as a program for the cold kernels (gpu/dialect/cold.h): it runs
// at once, with the bits of the kernel that gpu/emit.h makes of it.
#pragma once

#include <cstddef>
#include <string>

#include "gpu/emit.h"
#include "gpu/steps.h"

namespace hologram::gpu {

// Arguments of a cold kernel, without the parameters: the last one is the program. With these there
// are kMostBuffers.
inline constexpr size_t kColdArguments = 30;

// Of the variant only `rank`, `parts` and `joins` say anything: a row's team is a warp, elements
// are read one by one. The kernel has a program instead of a text. Throws Error for a step that has
// more values or numbers than the cold kernels have places for.
Kernel make_cold(const Steps& steps, size_t step, const Variant& variant);

// Elements of a thread.
unsigned cold_elements(ComputeType type);

// Text to compile, of all cold kernels.
std::string cold_library_text();

}  // namespace hologram::gpu

// The rules that a group has to keep to be compiled for the CPU.
#pragma once

#include "atlas/group.h"
#include "cpu/kernel_table.h"

namespace hologram::cpu {

constexpr int kMaxNodes = 4096;

// Throws Error for a group that breaks the rules of atlas/group.h, or needs a micro-operation that
// the kernels lack.
void check(const Group& group, const TypeKernels& kernels);

}  // namespace hologram::cpu

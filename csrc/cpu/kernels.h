// All kernels of one instruction set.
//
// Included by one source file per instruction set, which includes the headers of others first and
// then selects the target: no code shared with other files may be compiled for the wider set.
#pragma once

#include "cpu/depthwise_loops.h"
#include "cpu/loops.h"
#include "cpu/micro_ops.h"
#include "cpu/scan_kernels.h"

namespace hologram::cpu {

template <class T, int W>
void make_kernels_of(TypeKernels& kernels) {
  kernels = MicroOps<T, W>::make();
  Scans<T, W>::add(kernels);
  // Machines with the baseline alone are few, and compilation takes time.
  if constexpr (!kIsBaseline<W>) Loops<T, W>::add(kernels);
}

template <int W>
void make_kernels(GroupKernels& kernels) {
  make_kernels_of<float, W>(kernels.types[static_cast<size_t>(ComputeType::f32)]);
  make_kernels_of<double, W>(kernels.types[static_cast<size_t>(ComputeType::f64)]);
  make_kernels_of<int64_t, W>(kernels.types[static_cast<size_t>(ComputeType::i64)]);
  make_kernels_of<uint8_t, W>(kernels.bytes);
  kernels.depthwise = {&DepthwiseLoops<W>::sums, &DepthwiseLoops<W>::products};
}

}  // namespace hologram::cpu

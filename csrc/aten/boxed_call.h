// One boxed call of torch's kernel for the device's target (delegate_target.h): an operator's
// arguments on a stack become tensors of the target over the same memory, and its results tensors
// of the device. The rules about devices, and the words when they are broken, are CUDA's.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include "aten/call_schema.h"
#include "aten/delegate_target.h"

namespace hologram::aten {

// The keys of kernels proper, below autograd and its like.
inline constexpr c10::DispatchKeySet kBackendKeys =
    c10::backend_functionality_keys | c10::DispatchKeySet(c10::DispatchKey::NestedTensor);

// Whether a target that is not the CPU has a kernel for tensors like those of ours with these keys.
// Not asked of the CPU, whose dispatcher complains of what it lacks.
bool has_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                const DelegateTarget& target);

// Replaces the arguments on the stack by the results. The kernel is the one for the layouts in
// `keys`; where the target has none, the CPU's computes on copies.
void call_boxed(const CallSchema& schema, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                torch::jit::Stack* stack);

}  // namespace hologram::aten

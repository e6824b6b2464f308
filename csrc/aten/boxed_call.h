// One boxed call of torch's CPU kernel: an operator's arguments on a stack become CPU tensors over
// the same memory, and its results tensors of the device. The rules about devices, and the words
// when they are broken, are CUDA's.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include "aten/call_schema.h"

namespace hologram::aten {

// The keys of kernels proper, below autograd and its like.
inline constexpr c10::DispatchKeySet kBackendKeys =
    c10::backend_functionality_keys | c10::DispatchKeySet(c10::DispatchKey::NestedTensor);

// Replaces the arguments on the stack by the results. The CPU kernel is the one for the layouts in
// `keys`.
void call_boxed(const CallSchema& schema, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                torch::jit::Stack* stack);

}  // namespace hologram::aten

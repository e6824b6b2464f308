// Code that is not ours and reads memory: C++ operators of other libraries.
//
// A kernel that asks a tensor for its data pointer must find there what has been recorded. torch
// has no place to intercept that, so the call is intercepted: every operator that somebody else
// defines gets a *guard*, a kernel of ours that the dispatcher runs first. It synchronises the
// tensors among the arguments and goes on to the operator's own kernel. Where that launches kernels
// of the device's vendor, what is recorded is before them in the order of the stream.
//
// The guard is a kernel for BackendSelect, a key that every call passes through between autograd
// and the backend, and which nobody registers for operators that have tensor arguments. Operators
// without a kernel for a backend (CompositeImplicitAutograd) run above it, at autograd's key, and
// get a second guard there.
//
// What reaches C++ without an operator (a function bound with pybind11) calls hologram::sync() of
// torch_hologram.h, which is the operator hologram::sync.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace hologram::aten {

// Runs what is recorded of a tensor's memory, in any layout. Other devices' tensors are left alone.
void synchronize_tensor(const at::Tensor& tensor);

// The same before its address is given to code that is not ours, see hand_out_storage().
void hand_out_tensor(const at::Tensor& tensor);

// From now on operators that others define are guarded. Called once, when the extension is loaded.
void guard_foreign_operators();

// Guards an operator ("ns::name" with all its overloads, or "ns::name.overload"), or takes its
// guards away. Throws where there is no such operator.
void flush_before(const std::string& operator_name, bool on);

// The overloads that have guards, sorted.
std::vector<std::string> guarded_operators();

}  // namespace hologram::aten

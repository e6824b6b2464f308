// Registration of operators that draw random numbers, as ATen kernels, and what these share.
#pragma once

#include <ATen/core/Tensor.h>

namespace hologram::aten {

// Called once, before register_delegates().
void register_random();
void register_random_choices();

// Raises `message`, when the program has run, if the elements of a floating tensor are not from
// `least` to `most`, an infinity for none. False where the tensor is none that a program can read.
bool check_later(const at::Tensor& values, double least, double most, const char* message,
                 const char* operation);

}  // namespace hologram::aten

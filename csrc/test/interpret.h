// What a fusion group means, element by element: the reference for backends.
#pragma once

#include "atlas/group.h"
#include "atlas/op_info.h"
#include "cpu/convert.h"

namespace hologram::cpu {

// The truth values of memory are bool here.
template <class Body>
void with_element(DType dtype, Body&& body) {
  with_element<bool>(dtype, body);
}

// T: float, double or int64_t, the compute types.
template <class T>
T interpret_op(Op op, T x, T y, T z);
template <class T>
T interpret_round(T x, DType dtype);

void interpret(const Group& group, const Binding& binding);

}  // namespace hologram::cpu

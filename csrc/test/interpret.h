// What a fusion group means, element by element: the reference for backends.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "atlas/group.h"
#include "atlas/op_table.h"
#include "cpu/convert.h"
#include "cpu/math.h"

namespace hologram::cpu {

// The truth values of memory are bool here.
template <class Body>
void with_element(DType dtype, Body&& body) {
  with_element<bool>(dtype, body);
}

template <class T>
T interpret_op(Op op, [[maybe_unused]] T x, [[maybe_unused]] T y, [[maybe_unused]] T z) {
  constexpr DTypeSet mine =
      dtype_bit(DType::b8) | dtype_bit(std::is_same_v<T, float>    ? DType::f32
                                       : std::is_same_v<T, double> ? DType::f64
                                                                   : DType::i64);
  switch (op) {
#define HOLOGRAM_X(name, arity, expression, ...)                            \
  case Op::name:                                                            \
    if constexpr ((op_row(Op::name).dtypes & mine) != 0) return expression; \
    break;
    HOLOGRAM_OPS(HOLOGRAM_X)
#undef HOLOGRAM_X
  }
  return T(0);
}

template <class T>
T interpret_round(T x, DType dtype) {
  with_element(dtype, [&]<class D>() { x = convert<T>(convert<D>(x)); });
  return x;
}

template <class T>
void interpret_as(const Group& group, const Binding& binding) {
  std::vector<T> values(group.nodes.size());
  std::vector<int64_t> position(static_cast<size_t>(binding.rank));
  for (int64_t i = 0; i < binding.count; ++i) {
    const auto address = [&](size_t operand) {
      char* p = static_cast<char*>(binding.operands[operand]);
      switch (group.operands[operand].layout) {
        case Layout::scalar: break;
        case Layout::dense:
          p += i * static_cast<int64_t>(dtype_size(group.operands[operand].dtype));
          break;
        case Layout::strided:
          for (int d = 0; d < binding.rank; ++d) {
            p += position[static_cast<size_t>(d)] *
                 binding
                     .strides[operand * static_cast<size_t>(binding.rank) + static_cast<size_t>(d)];
          }
      }
      return p;
    };
    for (size_t n = 0; n < group.nodes.size(); ++n) {
      const Node& node = group.nodes[n];
      switch (node.kind) {
        case NodeKind::load:
          with_element(group.operands[node.a].dtype, [&]<class S>() {
            unsigned char bytes[sizeof(S)];
            std::memcpy(bytes, address(node.a), sizeof(S));
            if constexpr (std::is_same_v<S, bool>) bytes[0] = bytes[0] != 0;
            S s;
            std::memcpy(&s, bytes, sizeof s);
            values[n] = interpret_round(convert<T>(s), node.dtype);
          });
          break;
        case NodeKind::immediate:
          std::memcpy(&values[n], &binding.immediates[node.a], sizeof(T));
          break;
        case NodeKind::compute: {
          const int arity = op_info(node.op).arity;
          values[n] = interpret_round(
              interpret_op<T>(node.op, values[node.a], values[arity > 1 ? node.b : node.a],
                              values[arity > 2 ? node.c : node.a]),
              node.dtype);
          break;
        }
        case NodeKind::cast: values[n] = interpret_round(values[node.a], node.dtype); break;
        case NodeKind::store: break;
      }
    }
    for (const Node& node : group.nodes) {
      if (node.kind != NodeKind::store) continue;
      with_element(group.operands[node.b].dtype, [&]<class D>() {
        const D y = convert<D>(values[node.a]);
        std::memcpy(address(node.b), &y, sizeof y);
      });
    }
    for (int d = binding.rank - 1; d >= 0; --d) {
      if (++position[static_cast<size_t>(d)] < binding.sizes[d]) break;
      position[static_cast<size_t>(d)] = 0;
    }
  }
}

inline void interpret(const Group& group, const Binding& binding) {
  switch (group.compute_type) {
    case ComputeType::f32: return interpret_as<float>(group, binding);
    case ComputeType::f64: return interpret_as<double>(group, binding);
    case ComputeType::i64: return interpret_as<int64_t>(group, binding);
  }
}

}  // namespace hologram::cpu

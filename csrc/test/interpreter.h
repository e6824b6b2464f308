// Runs fusion groups element by element, as plainly as possible: what executors are compared with.
#pragma once

#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "atlas/scalar.h"
#include "atlas/window.h"

namespace interpreter {

using namespace hologram;

template <class T>
T apply(Op op, T x, T y) {
  switch (op) {
#define HOLOGRAM_X(name, arity, dtypes, expression, flags, identity)                     \
  case Op::name:                                                                         \
    if constexpr (((dtypes)&dtype_bit(std::is_same_v<T, float>    ? DType::f32           \
                                      : std::is_same_v<T, double> ? DType::f64           \
                                                                  : DType::i64)) != 0) { \
      return expression;                                                                 \
    }                                                                                    \
    break;
    HOLOGRAM_POINTWISE_OPS(HOLOGRAM_X)
#undef HOLOGRAM_X
  }
  std::abort();
}

inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <class T>
T read(DType dtype, const char* at) {
  const auto as = [&](auto value) {
    std::memcpy(&value, at, sizeof value);
    return static_cast<T>(value);
  };
  switch (dtype) {
    case DType::f32: return as(float{});
    case DType::f64: return as(double{});
    case DType::i64: return as(int64_t{});
    case DType::b8: return as(uint8_t{});
    case DType::bf16: {
      uint16_t bits;
      std::memcpy(&bits, at, sizeof bits);
      return static_cast<T>(bf16_to_float(bits));
    }
    default: std::abort();
  }
}

template <class T>
void write(DType dtype, char* at, T value) {
  const auto as = [&](auto converted) { std::memcpy(at, &converted, sizeof converted); };
  switch (dtype) {
    case DType::f32: return as(static_cast<float>(value));
    case DType::f64: return as(static_cast<double>(value));
    case DType::i64: return as(static_cast<int64_t>(value));
    case DType::b8: return as(static_cast<uint8_t>(value != T(0)));
    case DType::bf16: return as(float_to_bf16(static_cast<float>(value)));
    default: std::abort();
  }
}

template <class T>
T rounded(DType dtype, T value) {
  if (dtype == DType::bf16)
    return static_cast<T>(bf16_to_float(float_to_bf16(static_cast<float>(value))));
  if (dtype == DType::b8) return value != T(0) ? T(1) : T(0);
  return value;
}

template <class T>
void run(const Group& group, const Binding& binding) {
  std::vector<T> values(group.nodes.size());
  for (int64_t i = 0; i < binding.count; ++i) {
    const auto address = [&](uint16_t operand) {
      char* base = static_cast<char*>(binding.operands[operand]);
      const Operand& layout = group.operands[operand];
      if (layout.layout == Layout::scalar) return base;
      if (layout.layout == Layout::dense) {
        return base + i * static_cast<int64_t>(dtype_size(layout.dtype));
      }
      int64_t left = i, offset = 0;
      for (int d = binding.rank; d-- > 0;) {
        offset += left % binding.sizes[d] * binding.strides[operand * binding.rank + d];
        left /= binding.sizes[d];
      }
      return base + offset;
    };
    for (size_t k = 0; k < group.nodes.size(); ++k) {
      const Node& node = group.nodes[k];
      switch (node.kind) {
        case NodeKind::load:
          values[k] = rounded(node.dtype, read<T>(group.operands[node.a].dtype, address(node.a)));
          break;
        case NodeKind::immediate:
          std::memcpy(&values[k], &binding.immediates[node.a], sizeof(T));
          break;
        case NodeKind::cast: values[k] = rounded(node.dtype, values[node.a]); break;
        case NodeKind::compute:
          values[k] = rounded(node.dtype, apply<T>(node.op, values[node.a], values[node.b]));
          break;
        case NodeKind::store:
          write<T>(group.operands[node.b].dtype, address(node.b), values[node.a]);
          break;
      }
    }
  }
}

class Interpreter final : public Executor {
 public:
  struct Compiled final : GroupCode {
    explicit Compiled(const Group& source) : group(source) {}
    Group group;
  };
  std::unique_ptr<GroupCode> compile(const Group& group) override {
    return std::make_unique<Compiled>(group);
  }
  void run(const GroupCode& code, const Binding& binding) override {
    const Group& group = static_cast<const Compiled&>(code).group;
    switch (group.compute_class) {
      case ComputeClass::f32: return interpreter::run<float>(group, binding);
      case ComputeClass::f64: return interpreter::run<double>(group, binding);
      case ComputeClass::i64: return interpreter::run<int64_t>(group, binding);
    }
  }
  void* allocate_scratch(size_t bytes) override { return ::operator new(bytes); }
  void free_scratch(void* memory) noexcept override { ::operator delete(memory); }
};

}  // namespace interpreter

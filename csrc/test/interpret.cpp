#include "interpret.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "atlas/op_table.h"
#include "atlas/philox.h"
#include "cpu/draw.h"
#include "cpu/math.h"

namespace hologram::cpu {

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

// Neighbours join, until one is left.
template <class T>
T interpret_joined(Op op, std::vector<T> parts) {
  while (parts.size() > 1) {
    std::vector<T> next;
    for (size_t i = 0; i + 1 < parts.size(); i += 2) {
      next.push_back(interpret_op<T>(op, parts[i], parts[i + 1], T(0)));
    }
    if (parts.size() % 2 != 0) next.push_back(parts.back());
    parts = next;
  }
  return parts.front();
}

template <class T>
T interpret_identity(Op op) {
  const double identity = op_info(op).identity;
  if (std::is_integral_v<T> && std::isinf(identity)) {
    return identity < 0 ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
  }
  return static_cast<T>(identity);
}

// In the order of atlas/group.h.
template <class T>
T interpret_along_row(Op op, const std::vector<T>& row) {
  constexpr size_t kClass = static_cast<size_t>(kClassBytes) / sizeof(T);
  constexpr size_t kAccumulators = static_cast<size_t>(kFoldBytes) / sizeof(T);
  std::vector<T> classes;
  for (size_t begin = 0; begin < row.size(); begin += kClass) {
    std::vector<T> acc(kAccumulators, interpret_identity<T>(op));
    for (size_t j = begin; j < std::min(begin + kClass, row.size()); ++j) {
      T& its = acc[(j - begin) % kAccumulators];
      its = interpret_op<T>(op, its, row[j], T(0));
    }
    for (size_t n = kAccumulators; n > 1; n /= 2) {
      for (size_t i = 0; i < n / 2; ++i) acc[i] = interpret_op<T>(op, acc[i], acc[n / 2 + i], T(0));
    }
    classes.push_back(acc[0]);
  }
  return interpret_joined(op, classes);
}

template <class T>
T interpret_down_rows(Op op, const std::vector<T>& column) {
  std::vector<T> chunks;
  for (size_t begin = 0; begin < column.size(); begin += static_cast<size_t>(kFoldRows)) {
    T acc = interpret_identity<T>(op);
    for (size_t j = begin; j < std::min(begin + static_cast<size_t>(kFoldRows), column.size());
         ++j) {
      acc = interpret_op<T>(op, acc, column[j], T(0));
    }
    chunks.push_back(acc);
  }
  return interpret_joined(op, chunks);
}

// What is scanned up to each element of a line.
template <class T, class Running, class D>
std::vector<T> interpret_scan(Op op, const std::vector<T>& line) {
  std::vector<T> result;
  Running sum = op == Op::mul ? Running(1) : Running(0);
  for (const T x : line) {
    sum = interpret_op<Running>(op, sum, static_cast<Running>(x), Running(0));
    result.push_back(convert<T>(convert<D>(sum)));
  }
  return result;
}
template <class T>
std::vector<T> interpret_scan(Op op, DType dtype, const std::vector<T>& line) {
  switch (dtype) {
    case DType::bf16: return interpret_scan<T, float, Bf16>(op, line);
    case DType::f16: return interpret_scan<T, float, F16>(op, line);
    case DType::f32: return interpret_scan<T, double, float>(op, line);
    case DType::f64: return interpret_scan<T, double, double>(op, line);
    default: return interpret_scan<T, int64_t, int64_t>(op, line);
  }
}

// What is drawn for an element of a space.
template <class T>
T interpret_draw(Draw draw, DType dtype, const uint64_t* immediates, uint64_t element) {
  const auto [seed, offset, range] = std::array{immediates[0], immediates[1], immediates[2]};
  const auto n = static_cast<uint64_t>(elements_per_counter(draw, dtype));
  const Philox::Words words = Philox::block(seed, offset + element / n);
  const size_t at = element % n;
  const auto long_word = [&](size_t i) {
    return uint64_t{words[2 * i]} | uint64_t{words[2 * i + 1]} << 32;
  };
  switch (draw) {
    case Draw::uniform:
      if (dtype == DType::f64) {
        return static_cast<T>(static_cast<double>(long_word(at) >> 11) * 0x1p-53);
      }
      return static_cast<T>(std::ldexp(words[at] >> (32 - digits_of(dtype)), -digits_of(dtype)));
    case Draw::normal:
      if constexpr (std::is_same_v<T, double>) {
        const double u = static_cast<double>((long_word(0) >> 11) + 1) * 0x1p-53;
        const double angle = static_cast<double>(long_word(1) >> 11) * 0x1p-53 * (2 * M_PI);
        return std::sqrt(-2 * std::log(u)) * (at == 0 ? std::cos(angle) : std::sin(angle));
      } else if constexpr (std::is_same_v<T, float>) {
        using Word = Simd<uint32_t, 16>;
        Simd<float, 16> sine, cosine;
        turn_of(Word(words[at / 2 * 2 + 1]), sine, cosine);
        const float turn = at % 2 == 0 ? cosine.v[0] : sine.v[0];
        return interpret_round(normal_radius(Word(words[at / 2 * 2])).v[0] * turn, dtype);
      }
      break;
    case Draw::integer: return static_cast<T>(words[at] * range >> 32);
    case Draw::long_integer:
      if (range == 0) return static_cast<T>(long_word(at));
      return static_cast<T>(static_cast<unsigned __int128>(long_word(at)) * range >> 64);
  }
  return T(0);
}

// The value of a node for one element, of which address(operand) and value(node) are given.
template <class T, class Address, class Value>
T interpret_node(const Group& group, const Binding& binding, const Node& node, size_t element,
                 Address&& address, Value&& value) {
  T result{};
  switch (node.kind) {
    case NodeKind::load:
      with_element(group.operands[node.a].dtype, [&]<class S>() {
        unsigned char bytes[sizeof(S)];
        std::memcpy(bytes, address(node.a), sizeof(S));
        if constexpr (std::is_same_v<S, bool>) bytes[0] = bytes[0] != 0;
        S s;
        std::memcpy(&s, bytes, sizeof s);
        result = interpret_round(convert<T>(s), node.dtype);
      });
      break;
    case NodeKind::immediate: std::memcpy(&result, &binding.immediates[node.a], sizeof(T)); break;
    case NodeKind::compute: {
      const int arity = op_info(node.op).arity;
      result = interpret_round(
          interpret_op<T>(node.op, value(node.a), value(arity > 1 ? node.b : node.a),
                          value(arity > 2 ? node.c : node.a)),
          node.dtype);
      break;
    }
    case NodeKind::cast: result = interpret_round(value(node.a), node.dtype); break;
    case NodeKind::random:
      result = interpret_draw<T>(static_cast<Draw>(node.b), node.dtype, binding.immediates + node.a,
                                 element);
      break;
    case NodeKind::fold:
    case NodeKind::scan:
    case NodeKind::pick:
    case NodeKind::position:
    case NodeKind::store: break;
  }
  return result;
}

// Of a group with dimensions: every value for every element.
template <class T>
void interpret_rows_as(const Group& group, const Binding& binding) {
  const auto planes = static_cast<size_t>(binding.planes), rows = static_cast<size_t>(binding.rows),
             columns = static_cast<size_t>(binding.columns);
  const size_t count = planes * rows * columns;
  const auto address = [&](size_t operand, size_t element) {
    const Operand& its = group.operands[operand];
    size_t at = 0;
    if (its.layout != Layout::scalar) {
      const size_t c = element % columns, r = element / columns % rows,
                   p = element / columns / rows;
      if ((its.spread & kPlanes) != 0) at = p;
      if ((its.spread & kMiddle) != 0) at = at * rows + r;
      if ((its.spread & kColumns) != 0) at = at * columns + c;
    }
    return static_cast<char*>(binding.operands[operand]) + at * dtype_size(its.dtype);
  };
  std::vector<std::vector<T>> values(group.nodes.size());
  for (size_t n = 0; n < group.nodes.size(); ++n) {
    const Node& node = group.nodes[n];
    auto& value = values[n];
    value.resize(count);
    if (node.kind == NodeKind::fold) {
      const auto& from = values[node.a];
      for (size_t i = 0; i < count; ++i) {
        const size_t c = i % columns, p = i / columns / rows;
        if (node.b == kRows && c == 0) {
          value[i] = interpret_along_row(
              node.op, std::vector<T>(from.begin() + static_cast<int64_t>(i),
                                      from.begin() + static_cast<int64_t>(i + columns)));
        } else if (node.b == kRows) {
          value[i] = value[i - 1];
        } else if (i / columns % rows == 0) {
          std::vector<T> column;
          for (size_t r = 0; r < rows; ++r) column.push_back(from[(p * rows + r) * columns + c]);
          value[i] = interpret_down_rows(node.op, column);
        } else {
          value[i] = value[i - columns];
        }
      }
      continue;
    }
    if (node.kind == NodeKind::scan) {
      const bool down = node.b == kMiddle;
      const size_t step = down ? columns : 1, length = down ? rows : columns;
      for (size_t i = 0; i < count; ++i) {
        if (i / step % length != 0) continue;  // not the first of a line
        std::vector<T> line;
        for (size_t j = 0; j < length; ++j) line.push_back(values[node.a][i + j * step]);
        line = interpret_scan(node.op, node.dtype, line);
        for (size_t j = 0; j < length; ++j) value[i + j * step] = line[j];
      }
      continue;
    }
    if (node.kind == NodeKind::pick) {
      for (size_t i = 0; i < count; i += columns) {
        T found = T(0);
        for (size_t c = 0; c < columns; ++c) {
          if (values[node.b][i] != static_cast<T>(c)) continue;
          found = columns == 1 ? values[node.a][i] : values[node.a][i + c] + T(0);
        }
        std::fill_n(value.begin() + static_cast<int64_t>(i), columns, found);
      }
      continue;
    }
    if (node.kind == NodeKind::position) {
      for (size_t i = 0; i < count; ++i) {
        value[i] = static_cast<T>(node.b == kColumns ? i % columns : i / columns % rows);
      }
      continue;
    }
    for (size_t i = 0; i < count; ++i) {
      value[i] = interpret_node<T>(
          group, binding, node, i, [&](size_t operand) { return address(operand, i); },
          [&](size_t other) { return values[other][i]; });
    }
  }
  for (const Node& node : group.nodes) {
    if (node.kind != NodeKind::store) continue;
    for (size_t i = 0; i < count; ++i) {
      with_element(group.operands[node.b].dtype, [&]<class D>() {
        const D y = convert<D>(values[node.a][i]);
        std::memcpy(address(node.b, i), &y, sizeof y);
      });
    }
  }
}

template <class T>
void interpret_as(const Group& group, const Binding& binding) {
  if (is_structured(group)) {
    interpret_rows_as<T>(group, binding);
    return;
  }
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
      values[n] = interpret_node<T>(group, binding, group.nodes[n], static_cast<size_t>(i), address,
                                    [&](size_t other) { return values[other]; });
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

void interpret(const Group& group, const Binding& binding) {
  switch (group.compute_type) {
    case ComputeType::f32: return interpret_as<float>(group, binding);
    case ComputeType::f64: return interpret_as<double>(group, binding);
    case ComputeType::i64: return interpret_as<int64_t>(group, binding);
  }
}

template float interpret_op(Op, float, float, float);
template float interpret_round(float, DType);
template double interpret_op(Op, double, double, double);
template double interpret_round(double, DType);
template int64_t interpret_op(Op, int64_t, int64_t, int64_t);
template int64_t interpret_round(int64_t, DType);

}  // namespace hologram::cpu

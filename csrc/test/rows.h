// Groups over rows for tests: their memory, and runs of them against the interpreter, on every
// instruction set, with any number of threads.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "atlas/operands.h"
#include "groups.h"
#include "interpret.h"
#include "threads.h"

namespace hologram::test {

struct Shape {
  int64_t planes, rows, columns;
};

struct RowBuilder : Builder {
  using Builder::Builder;
  uint16_t spread(DType dtype, Spread its) {
    const auto number = static_cast<uint16_t>(group.operands.size());
    group.operands.push_back({dtype, Layout::dense, number, its});
    return number;
  }
  uint16_t fold(Op op, uint16_t value, Spread result = kRows) {
    return add({NodeKind::fold, op, own(), value, result});
  }
  uint16_t scan(Op op, DType dtype, uint16_t value, Spread axis) {
    return add({NodeKind::scan, op, dtype, value, axis});
  }
  uint16_t position(Spread its) { return add({NodeKind::position, Op{}, own(), 0, its}); }
};

// A sum whose operands and result have memory of their own.
inline Group broadcast_sum(DType dtype, Spread spread) {
  RowBuilder b(ComputeType::f32);
  const uint16_t x = b.operand(dtype), v = b.spread(dtype, spread), out = b.operand(dtype);
  b.group.operands[out].area = out;
  b.store(b.op(Op::add, dtype, b.load(x), b.load(v)), out);
  return b.group;
}

// Stored twice, the second time as `second`.
inline Group fold_of(Op op, ComputeType type, Spread spread, DType second) {
  RowBuilder b(type);
  const uint16_t x = b.operand(b.own()), out = b.spread(b.own(), spread);
  const uint16_t result = b.fold(op, b.load(x), spread);
  b.store(result, out);
  b.store(result, b.spread(second, spread));
  return b.group;
}

// The derivative of a layer norm: folds over columns and over rows, a weight, and its result in
// place of the gradient.
inline Group norm_backward() {
  RowBuilder b(ComputeType::f32);
  const DType f = DType::f32;
  const uint16_t x = b.load(b.operand(f)), grad_at = b.spread(f, kEach),
                 weight = b.load(b.spread(DType::bf16, kColumns)),
                 mean = b.load(b.spread(f, kRows)), scale = b.load(b.spread(DType::bf16, kRows), f);
  const uint16_t grad = b.load(grad_at);
  const uint16_t normal = b.op(Op::mul, f, b.op(Op::sub, f, x, mean), scale);
  const uint16_t g = b.op(Op::mul, f, grad, weight);
  const uint16_t a = b.fold(Op::add, g), c = b.fold(Op::add, b.op(Op::mul, f, g, normal));
  const uint16_t rest = b.op(Op::add, f, b.op(Op::mul, f, c, normal), a);
  const uint16_t result = b.op(Op::mul, f, b.op(Op::sub, f, g, rest), scale);
  b.store(result, grad_at);
  b.store(b.fold(Op::add, b.op(Op::mul, f, grad, normal), kColumns), b.spread(f, kColumns));
  b.store(b.fold(Op::add, grad, kColumns), b.spread(DType::bf16, kColumns));
  b.store(b.fold(Op::add, result, kColumns), b.spread(DType::bf16, kColumns));
  b.store(b.op(Op::add, f, a, c), b.spread(DType::f16, kRows));
  return b.group;
}

// Numbers of about the same size: what is folded is no NaN, and its bits tell the order.
inline void fill_alike(Memory& memory, DType dtype, Random& random) {
  if ((dtype_bit(dtype) & kReal) == 0) return fill_random(memory, dtype, random);
  const size_t size = dtype_size(dtype);
  for (size_t i = 0; i + size <= memory.size; i += size) {
    const double x = 0.5 + static_cast<double>(random() >> 11) * 0x1p-53 * 1.5;
    with_element(dtype, [&]<class D>() {
      const D element = convert<D>(random() % 32 == 0 ? -0.0 : random() % 2 == 0 ? x : -x);
      std::memcpy(memory.data + i, &element, sizeof element);
    });
  }
}

// Of anything, of numbers that are alike, or of those and a few others.
inline void fill_some(Memory& memory, DType dtype, Random& random, uint64_t kind) {
  if (kind == 0) return fill_random(memory, dtype, random);
  fill_alike(memory, dtype, random);
  const size_t size = dtype_size(dtype), count = memory.size / size;
  for (uint64_t i = 0; kind == 2 && i < random() % 3; ++i) {
    Memory one(size);
    fill_random(one, dtype, random);
    std::memcpy(memory.data + random() % count * size, one.data, size);
  }
}

inline Scene scene_of(const Group& group, Shape shape, Random& random) {
  Scene scene;
  scene.count = shape.planes * shape.rows * shape.columns;
  const uint64_t kind = random() % 3;
  for (const Operand& operand : group.operands) {
    const Spread spread = operand.layout == Layout::scalar ? kOne : operand.spread;
    const int64_t count = spread_count(spread, {shape.planes, shape.rows, shape.columns});
    const size_t bytes = static_cast<size_t>(count) * dtype_size(operand.dtype);
    scene.place.push_back(scene.memory.size());
    scene.memory.emplace_back(bytes);
    scene.dtypes.push_back(operand.dtype);
    scene.first.push_back(0);
    fill_some(scene.memory.back(), operand.dtype, random, kind);
  }
  add_immediates(group, scene, random);
  return scene;
}

// The same with no room before it.
inline Scene at_begin(const Scene& scene) {
  Scene moved = scene;
  for (Memory& memory : moved.memory) {
    Memory begins(memory.size, true);
    std::memcpy(begins.data, memory.data, memory.size);
    memory = std::move(begins);
  }
  return moved;
}

inline Binding bind(Scene& scene, Shape shape, std::vector<void*>& pointers) {
  Binding binding = scene.binding(pointers);
  binding.rank = 0;
  binding.planes = shape.planes, binding.rows = shape.rows, binding.columns = shape.columns;
  return binding;
}

inline bool equal_on_all(const Group& group, Shape shape, Random& random) {
  Scene scene = scene_of(group, shape, random);
  Scene expected = scene;
  std::vector<void*> pointers;
  interpret(group, bind(expected, shape, pointers));
  bool begins = random() % 2 == 0;
  for (const Isa isa : sets()) {
    const auto compiled = compile(group, isa);
    for (const int threads : {1, 3}) {
      Scene actual = begins ? at_begin(scene) : scene;
      begins = !begins;
      Threads parallel(threads);
      const Binding binding = bind(actual, shape, pointers);
      run(*compiled, {&binding, 1}, parallel);
      CHECK(upper_registers_are_clear());
      const std::string what = std::string(isa_name(isa)) + ", " + std::to_string(threads) +
                               " threads, [" + std::to_string(shape.planes) + ", " +
                               std::to_string(shape.rows) + ", " + std::to_string(shape.columns) +
                               "]";
      if (!compare_scenes(actual, expected, group, what)) return false;
    }
  }
  return true;
}

}  // namespace hologram::test

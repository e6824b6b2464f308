// Groups at random for tests, of the CPU's kernels and of a GPU's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "atlas/op_table.h"
#include "groups.h"

namespace hologram::test {

// A group of about `size` computing nodes with everything in it that `has(op, compute type)` says.
template <class F>
Group random_group(int size, Random& random, bool strided, F&& has) {
  const ComputeType c = kComputeTypes[random() % 4 < 2 ? 0 : random() % 3];
  Builder b(c);
  std::vector<DType> dtypes;
  for (int d = 0; d < kDTypeCount; ++d) {
    if (held_dtypes(c) & dtype_bit(static_cast<DType>(d))) dtypes.push_back(static_cast<DType>(d));
  }
  // As people mix them: a half type and float32. Its values are read from memory as they are, which
  // has instructions of its own.
  if (c == ComputeType::f32 && random() % 2 == 0) {
    dtypes.assign(1, random() % 3 == 0 ? DType::f16 : DType::bf16);
  }
  const unsigned own_in = 2 + random() % 6;
  const auto any_dtype = [&] {
    if (random() % own_in == 0) return b.own();
    return dtypes[random() % dtypes.size()];
  };
  const auto any_layout = [&](bool store) {
    if (strided && random() % 3 == 0) return Layout::strided;
    return !store && random() % 6 == 0 ? Layout::scalar : Layout::dense;
  };
  const unsigned areas = random() % 2 == 0 ? 1 : random() % 2 == 0 ? 3 : 1000;
  const unsigned stored_in = 2 + random() % 10;
  const auto operand = [&](bool store) {
    const uint16_t o = b.operand(any_dtype(), any_layout(store));
    b.group.operands[o].area = static_cast<uint16_t>(random() % areas);
    return o;
  };
  std::vector<uint16_t> values;
  const int loads = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < loads; ++i) {
    const uint16_t o = operand(false);
    values.push_back(b.load(o, random() % 2 ? b.group.operands[o].dtype : any_dtype()));
  }
  if (random() % 2 == 0) values.push_back(b.immediate(any_dtype()));
  const auto pick = [&] {
    const size_t recent = std::min<size_t>(values.size(), random() % 3 == 0 ? values.size() : 4);
    return values[values.size() - 1 - random() % recent];
  };
  const auto pick_b8 = [&] {
    for (int i = 0; i < 8; ++i) {
      const uint16_t v = pick();
      if (b.group.nodes[v].dtype == DType::b8) return v;
    }
    values.push_back(b.cast(pick(), DType::b8));
    return values.back();
  };
  while (size-- > 0) {
    if (random() % 8 == 0) {
      values.push_back(b.cast(pick(), any_dtype()));
      continue;
    }
    if (random() % 12 == 0) {
      values.push_back(b.immediate(any_dtype()));
      continue;
    }
    if (random() % 16 == 0) {
      values.push_back(random_draw(b, random));
      continue;
    }
    const Op op = random() % 8 == 0   ? Op::fma
                  : random() % 2 == 0 ? static_cast<Op>(random() % 5)
                                      : static_cast<Op>(random() % static_cast<unsigned>(kOpCount));
    const OpInfo& info = op_info(op);
    if (!computed_in(info, c) || !has(op, c)) continue;
    const bool logical = !info.supports(b.own());
    DType dtype = info.has(kPredicate) ? DType::b8 : any_dtype();
    if (!info.has(kPredicate) && !info.supports_in_group(dtype)) dtype = b.own();
    uint16_t args[3];
    for (int k = 0; k < 3; ++k) {
      args[k] = logical || (k == 0 && info.has(kCondition)) ? pick_b8() : pick();
    }
    values.push_back(b.op(op, dtype, args[0], args[1], args[2]));
    if (random() % stored_in == 0) b.store(values.back(), operand(true));
  }
  const int stores = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < stores; ++i) b.store(pick(), operand(true));
  b.store(values.back(), operand(true));
  return b.group;
}
inline Group random_group(int size, Random& random, bool strided) {
  return random_group(size, random, strided, [](Op, ComputeType) { return true; });
}

}  // namespace hologram::test

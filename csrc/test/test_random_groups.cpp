// Random groups: fused they have the bits of their nodes run one by one.
#include <algorithm>
#include <vector>

#include "atlas/error.h"
#include "check.h"
#include "groups.h"

using namespace hologram;
using namespace hologram::cpu;
using namespace hologram::test;

namespace {

// A group of about `size` computing nodes with everything in it.
Group random_group(int size, Random& random, bool strided) {
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
    if (!computed_in(info, c)) continue;
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

std::vector<int64_t> random_sizes(Random& random) {
  switch (random() % 4) {
    case 0: return {static_cast<int64_t>(random() % 300)};
    case 1:
      return {static_cast<int64_t>(1 + random() % 5), static_cast<int64_t>(1 + random() % 300)};
    case 2:
      return {static_cast<int64_t>(1 + random() % 4), static_cast<int64_t>(1 + random() % 9),
              static_cast<int64_t>(1 + random() % 40)};
    default: return {static_cast<int64_t>(1 + random() % 2000)};
  }
}

// Runs node after node, each value in memory of its dtype.
void run_one_by_one(const Group& group, Scene& scene, Isa isa) {
  std::vector<Memory> values;
  std::vector<void*> pointers;
  const Binding whole = scene.binding(pointers);
  // Loads see what memory held before the group, so stores come last.
  for (const bool stores : {false, true}) {
    for (size_t i = 0; i < group.nodes.size(); ++i) {
      const Node& node = group.nodes[i];
      if (!stores) values.emplace_back(static_cast<size_t>(whole.count) * dtype_size(node.dtype));
      if ((node.kind == NodeKind::store) != stores) continue;
      Builder b(group.compute_type);
      std::vector<void*> operands;
      std::vector<int64_t> strides;
      const auto temporary = [&](uint16_t v) {
        operands.push_back(values[v].data);
        strides.insert(strides.end(), scene.sizes.size(), 0);
        return b.operand(group.nodes[v].dtype);
      };
      const auto outside = [&](uint16_t o) {
        operands.push_back(pointers[o]);
        for (size_t d = 0; d < scene.sizes.size(); ++d) {
          strides.push_back(scene.strides[o * scene.sizes.size() + d]);
        }
        return b.operand(group.operands[o].dtype, group.operands[o].layout);
      };
      uint64_t immediate = 0;
      const uint64_t* immediates = &immediate;
      switch (node.kind) {
        case NodeKind::load: {
          const uint16_t x = b.load(outside(node.a), node.dtype);
          b.store(x, temporary(static_cast<uint16_t>(i)));
          break;
        }
        case NodeKind::immediate: {
          immediate = scene.immediates[node.a];
          const uint16_t x = b.immediate(node.dtype);
          b.store(x, temporary(static_cast<uint16_t>(i)));
          break;
        }
        case NodeKind::random: {
          immediates = &scene.immediates[node.a];
          const uint16_t x = b.draw(static_cast<Draw>(node.b), node.dtype);
          b.store(x, temporary(static_cast<uint16_t>(i)));
          break;
        }
        case NodeKind::cast: {
          const uint16_t x = b.cast(b.load(temporary(node.a)), node.dtype);
          b.store(x, temporary(static_cast<uint16_t>(i)));
          break;
        }
        case NodeKind::compute: {
          const int arity = op_info(node.op).arity;
          const uint16_t x = b.load(temporary(node.a));
          const uint16_t y = arity > 1 ? b.load(temporary(node.b)) : x;
          const uint16_t z = arity > 2 ? b.load(temporary(node.c)) : x;
          const uint16_t r = b.op(node.op, node.dtype, x, y, z);
          b.store(r, temporary(static_cast<uint16_t>(i)));
          break;
        }
        case NodeKind::store: {
          const uint16_t x = b.load(temporary(node.a));
          b.store(x, outside(node.b));
          break;
        }
        case NodeKind::fold:
        case NodeKind::scan:
        case NodeKind::pick:
        case NodeKind::position: break;  // not in groups without dimensions
      }
      const Binding binding{operands.data(), immediates,  whole.count,
                            whole.rank,      whole.sizes, strides.data()};
      cpu::run(*compile(b.group, isa), binding);
    }
  }
}

}  // namespace

TEST(group_fused_is_one_by_one_bit_for_bit) {
  Random random(4);
  int run = 0, refused = 0;
  for (int i = 0; i < 1500; ++i) {
    const Group group = random_group(2 + static_cast<int>(random() % 59), random, i % 2 == 0);
    try {
      (void)compile(group);
    } catch (const Error&) {
      ++refused;
      continue;
    }
    ++run;
    const Scene scene = make_scene(group, random_sizes(random), random);
    if (!check_group(group, scene, "random")) return;
    Scene expected = scene, actual = scene;
    const Isa isa = sets()[static_cast<size_t>(i) % sets().size()];
    run_one_by_one(group, expected, isa);
    std::vector<void*> pointers;
    cpu::run(*compile(group, isa), actual.binding(pointers));
    if (!compare_scenes(actual, expected, group, "one by one")) return;
  }
  CHECK(run > 5 * refused);
}

TEST(group_compiles_every_value_once) {
  Random random(12);
  for (int i = 0; i < 400'000; ++i) {
    const Group group = random_group(2 + static_cast<int>(random() % 30), random, i % 4 == 0);
    try {
      (void)compile(group);  // asserts
    } catch (const Error&) {
      continue;  // a group with what is refused
    }
  }
}

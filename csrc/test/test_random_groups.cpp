// Random groups: fused they have the bits of their nodes run one by one.
#include <vector>

#include "atlas/error.h"
#include "check.h"
#include "groups.h"
#include "random_groups.h"

using namespace hologram;
using namespace hologram::cpu;
using namespace hologram::test;

namespace {

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

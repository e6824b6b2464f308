// Groups on the emulator of test/gpu, with either prelude, against the interpreter, bit for bit.
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "atlas/error.h"
#include "atlas/op_table.h"
#include "check.h"
#include "gpu/launch.h"
#include "gpu/pieces.h"
#include "gpu_emulated.h"
#include "random_groups.h"
#include "rows.h"

using namespace hologram;
using namespace hologram::test;

namespace {

// Of a target whose blocks and parts are many with few elements.
gpu::Target small_target(const std::string& prelude) {
  const bool is_cuda = prelude == "cuda";
  return {.has_f64 = is_cuda, .counts = is_cuda, .threads = 64, .enough_threads = 2048};
}

// Runs that are compiled together.
class Runs {
 public:
  explicit Runs(std::string prelude) : prelude_(std::move(prelude)) {}

  const gpu::Target& target() const { return target_; }
  void set_target(const gpu::Target& target) { target_ = target; }

  // A group without dimensions, or with those of a shape.
  void add(const Group& group, Scene scene, Shape shape = {1, 1, 0}) {
    try {
      codes_.emplace_back(group, target_);
    } catch (const Error&) {
      CHECK(prelude_ == "metal" && group.compute_type == ComputeType::f64);
      return;
    }
    runs_.push_back({group, std::move(scene), shape, {}, {}, {}});
    Run& run = runs_.back();
    run.actual.emplace_back(run.scene);
    const Binding binding = bind(run, run.actual.back());
    run.launches = codes_.back().launches(binding);
    gpu::Target cold = target_;
    cold.cold = true;
    run.cold = codes_.emplace_back(group, cold).launches(binding);
  }
  void add(const Group& group, Shape shape, Random& random) {
    Scene scene = scene_of(group, shape, random);
    add(group, random() % 2 == 0 ? at_begin(scene) : std::move(scene), shape);
  }

  // False where one differs, of the emitted kernels or the cold ones.
  bool check() { return check(&Run::launches) && check(&Run::cold); }
  size_t count() const { return runs_.size(); }

 private:
  struct Run {
    Group group;
    Scene scene;
    Shape shape;
    gpu::Launches launches, cold;
    std::deque<Scene> actual;  // one, whose memory the launches say
  };
  bool check(gpu::Launches Run::*which) {
    std::vector<const gpu::Launches*> all;
    for (const Run& run : runs_) all.push_back(&(run.*which));
    const Emulated emulated(all, prelude_);
    for (Run& run : runs_) {
      Scene expected = run.scene;
      cpu::interpret(run.group, bind(run, expected));
      Scene& actual = run.actual.back();
      // In several orders by the prelude that has more to be wrong.
      std::vector<int> orders = {HG_ORDER_FORWARD};
      if (prelude_ == "metal") orders.insert(orders.end(), {HG_ORDER_REVERSE, HG_ORDER_SEEDED});
      for (const int order : orders) {
        for (size_t i = 0; i < actual.memory.size(); ++i) {
          std::memcpy(actual.memory[i].data, run.scene.memory[i].data, actual.memory[i].size);
        }
        emulated.run(run.*which, order);
        std::string what = prelude_ + ", order " + std::to_string(order) + ", [" +
                           std::to_string(run.shape.planes) + ", " +
                           std::to_string(run.shape.rows) + ", " +
                           std::to_string(run.shape.columns) + "], kernels";
        for (const gpu::Launch& launch : (run.*which).list) what += " " + launch.kernel->name;
        if (!compare_scenes(actual, expected, run.group, what)) return false;
      }
    }
    return true;
  }
  // The pointers live until the next call.
  Binding bind(Run& run, Scene& scene) {
    if (run.shape.columns == 0) return scene.binding(pointers_);
    return test::bind(scene, run.shape, pointers_);
  }

  const std::string prelude_;
  gpu::Target target_ = small_target(prelude_);
  std::deque<gpu::GroupCode> codes_;
  std::deque<Run> runs_;
  std::vector<void*> pointers_;
};

constexpr const char* kPreludes[] = {"cuda", "metal"};

const std::vector<Shape> kShapes = {
    {1, 1, 1},    {1, 3, 1},     {1, 5, 7}, {1, 2, 64},  {1, 70, 65},  {1, 20, 128}, {1, 3, 3072},
    {1, 2, 3073}, {1, 1, 20001}, {3, 2, 5}, {2, 3, 128}, {1, 4000, 3}, {3, 300, 17}, {2, 65, 16},
};

// Whether an operation has the same bits on all backends: functions of f64 are the library's of a
// language.
bool is_exact(Op op, ComputeType type) {
  const Cost cost = op_info(op).cost;
  const bool is_function = cost == Cost::short_function || cost == Cost::function;
  return !is_function || type == ComputeType::f32;
}

Group random_exact_group(int size, Random& random, bool strided) {
  return random_group(size, random, strided, is_exact);
}

// A load through a compute type that cannot hold what is loaded is no group.
bool is_group(const Group& group) {
  for (const Node& node : group.nodes) {
    if (node.kind != NodeKind::load) continue;
    const DType from = group.operands[node.a].dtype;
    const bool real = (dtype_bit(node.dtype) & kReal) != 0;
    if (group.compute_type == ComputeType::f32 && !real &&
        (from == DType::f64 || from == DType::i64 || from == DType::i32)) {
      return false;
    }
    if (group.compute_type == ComputeType::i64 && (dtype_bit(from) & kReal) != 0 &&
        node.dtype == DType::b8) {
      return false;
    }
  }
  return true;
}

std::vector<int64_t> random_sizes(Random& random) {
  switch (random() % 4) {
    case 0: return {static_cast<int64_t>(1 + random() % 300)};
    case 1:
      return {static_cast<int64_t>(1 + random() % 5), static_cast<int64_t>(1 + random() % 90)};
    case 2:
      return {static_cast<int64_t>(1 + random() % 4), static_cast<int64_t>(1 + random() % 9),
              static_cast<int64_t>(1 + random() % 10)};
    default: return {static_cast<int64_t>(64 * (1 + random() % 10))};
  }
}

}  // namespace

// Many groups are one library. Those of a library have seeds of their own.
TEST(gpu_run_random_groups) {
  const unsigned libraries = is_full_run() ? 20 : 1;
  for (unsigned library = 0; library < libraries; ++library) {
    for (const char* prelude : kPreludes) {
      Random random(41 + 1000 * library);
      Runs runs(prelude);
      for (int i = 0; i < 60; ++i) {
        const Group group =
            random_exact_group(1 + static_cast<int>(random() % 16), random, i % 2 == 0);
        if (!is_group(group)) continue;
        Scene scene = make_scene(group, random_sizes(random), random);
        runs.add(group, random() % 3 == 0 ? std::move(scene) : at_begin(scene));
      }
      CHECK(runs.count() > 20);
      CHECK(runs.check());
    }
  }
}

// Some operands of a group as f64, where that is a group.
Group with_f64(Group group, Random& random) {
  for (uint16_t i = 0; i < group.operands.size(); ++i) {
    if (random() % 2 == 0) continue;
    Group changed = group;
    changed.operands[i].dtype = DType::f64;
    for (Node& node : changed.nodes) {
      if (node.kind == NodeKind::store && node.b == i) node.dtype = DType::f64;
    }
    if (is_group(changed)) group = std::move(changed);
  }
  return group;
}

// f64 in memory of groups that compute in another type, which a device can do that has no f64.
TEST(gpu_run_f64_in_memory) {
  for (const char* prelude : kPreludes) {
    Random random(62);
    Runs runs(prelude);
    const auto add = [&](const Group& group, const Shape& shape) {
      const bool has_f64 = std::ranges::any_of(
          group.operands, [](const Operand& operand) { return operand.dtype == DType::f64; });
      if (group.compute_type == ComputeType::f64 || !has_f64) return;
      if (shape.columns != 0) return runs.add(group, shape, random);
      Scene scene = make_scene(group, random_sizes(random), random);
      runs.add(group, random() % 3 == 0 ? std::move(scene) : at_begin(scene));
    };
    for (int i = 0; i < 40; ++i) {
      const Group group =
          random_exact_group(1 + static_cast<int>(random() % 8), random, i % 2 == 0);
      if (is_group(group)) add(with_f64(group, random), {1, 1, 0});
    }
    // A power as f64: its bits are those of the power as f32.
    Builder power(ComputeType::f32);
    const uint16_t base = power.load(power.operand(DType::f32));
    const uint16_t exponent = power.load(power.operand(DType::f64), DType::f32);
    const uint16_t result = power.op(Op::pow, DType::f32, base, exponent);
    power.store(result, power.operand(DType::f64));
    power.store(result, power.operand(DType::f32));
    for (int i = 0; i < 4; ++i) add(power.group, {1, 1, 0});
    for (const ComputeType type : {ComputeType::f32, ComputeType::i64}) {
      for (const Shape shape : {Shape{1, 5, 7}, {2, 3, 128}, {1, 3, 3073}, {3, 300, 17}}) {
        const Spread down = shape.planes == 1 ? kColumns : kPlanesAndColumns;
        for (const Spread spread : {kRows, down}) {
          add(fold_of(Op::add, type, spread, DType::f64), shape);
        }
        RowBuilder b(type);
        const uint16_t x = b.load(b.operand(DType::f64), b.own());
        const uint16_t sum =
            b.op(Op::add, b.own(), x, b.load(b.spread(DType::f64, kColumns), b.own()));
        b.store(b.fold(Op::maximum, sum), b.spread(DType::f64, kRows));
        b.store(b.op(Op::sub, b.own(), sum, b.load(b.spread(DType::f64, kRows), b.own())),
                b.spread(DType::f64, kEach));
        add(b.group, shape);
        for (const Spread axis : {kColumns, kMiddle}) {
          RowBuilder c(type);
          const uint16_t y = c.load(c.operand(DType::f64), c.own());
          c.store(c.scan(Op::add, c.own(), y, axis), c.spread(c.own(), kEach));
          add(c.group, shape);
        }
      }
    }
    CHECK(runs.count() > 50);
    CHECK(runs.check());
  }
}

// The same operation by operation, each by a kernel of its own.
// x * number - y / number of a half type, whose numbers are floats.
Group halves(bool is_read) {
  Builder b(ComputeType::f32);
  const DType f = DType::f32, half = DType::bf16;
  const uint16_t x = b.load(b.operand(half)), y = b.load(b.operand(half), f);
  const uint16_t product = b.op(Op::mul, f, b.op(Op::neg, half, x), b.immediate(f));
  const uint16_t ratio = b.op(Op::div, f, y, b.immediate(f));
  const uint16_t narrow = b.op(Op::sub, half, b.cast(product, half), b.cast(ratio, half));
  b.store(narrow, b.operand(half));
  if (is_read) b.store(b.op(Op::add, f, ratio, y), b.operand(f));
  return b.group;
}

TEST(gpu_run_pieces) {
  for (const char* prelude : kPreludes) {
    Random random(61);
    std::deque<gpu::PieceCode> codes;
    std::deque<gpu::Launches> launches;
    std::deque<Group> groups;
    std::deque<Scene> scenes, actual;
    std::deque<Shape> shapes;
    std::vector<void*> pointers;
    const auto bind_to = [&](Scene& scene, const Shape& shape) {
      return shape.columns == 0 ? scene.binding(pointers) : test::bind(scene, shape, pointers);
    };
    const auto add = [&](const Group& group, Scene scene, Shape shape) {
      auto pieces = gpu::take_apart(group);
      if (!pieces) return;
      try {
        gpu::Target cold = small_target(prelude);
        cold.cold = true;
        codes.emplace_back(group, *std::move(pieces), small_target(prelude), cold);
      } catch (const Error&) {
        return;  // f64, by Metal
      }
      groups.push_back(group);
      scenes.push_back(std::move(scene));
      shapes.push_back(shape);
      actual.emplace_back(scenes.back());
      const auto all = [](const gpu::Kernel&) { return true; };
      launches.push_back(codes.back().launches(bind_to(actual.back(), shape), all));
    };
    const int count = is_full_run() ? 60 : 12;
    for (int i = 0; i < count; ++i) {
      const Group group =
          random_exact_group(2 + static_cast<int>(random() % 12), random, i % 2 == 0);
      if (is_group(group)) add(group, make_scene(group, random_sizes(random), random), {1, 1, 0});
    }
    for (const Spread spread : {kRows, kColumns, kPlanes, kMiddle, kPlanesAndColumns}) {
      const Group group = broadcast_sum(DType::bf16, spread);
      for (const Shape shape : {Shape{1, 5, 7}, Shape{3, 2, 5}}) {
        add(group, scene_of(group, shape, random), shape);
      }
    }
    for (const bool is_read : {false, true}) {  // before the cast, too
      const Group group = halves(is_read);
      add(group, make_scene(group, random_sizes(random), random), {1, 1, 0});
    }
    CHECK(groups.size() > 14);
    std::vector<const gpu::Launches*> all;
    for (const gpu::Launches& its : launches) all.push_back(&its);
    const Emulated emulated(all, prelude);
    for (size_t i = 0; i < groups.size(); ++i) {
      Scene expected = scenes[i];
      cpu::interpret(groups[i], bind_to(expected, shapes[i]));
      emulated.run(launches[i]);
      CHECK(compare_scenes(actual[i], expected, groups[i], std::string("pieces, ") + prelude));
    }
  }
}

// Equal groups of tensors of different sizes in one launch, with or without vectors.
TEST(gpu_run_many_tensors) {
  for (const char* prelude : kPreludes) {
    Random random(59);
    struct Many {
      Group group;
      std::deque<Scene> scenes, actual;
      gpu::Launches launches;
    };
    std::deque<gpu::GroupCode> codes;
    std::deque<Many> all;
    size_t tables = 0;
    for (int i = 0; i < 40; ++i) {
      const bool strided = i % 8 == 7;
      Many its{
          random_exact_group(1 + static_cast<int>(random() % 12), random, strided), {}, {}, {}};
      gpu::Target target = small_target(prelude);
      if (i % 5 == 4) target.most_narrow = 100;
      if (!is_group(its.group)) continue;
      try {
        codes.emplace_back(its.group, target);
      } catch (const Error&) {
        continue;  // of f64, by Metal
      }
      std::vector<Binding> bindings;
      std::deque<std::vector<void*>> pointers;
      for (uint64_t n = 1 + random() % 9; n > 0; --n) {
        its.scenes.push_back(make_scene(its.group, random_sizes(random), random));
        const Scene& scene = its.scenes.back();
        its.actual.push_back(random() % 3 != 0 ? at_begin(scene) : scene);
      }
      for (Scene& scene : its.actual) bindings.push_back(scene.binding(pointers.emplace_back()));
      its.launches = codes.back().launches(bindings);
      for (const gpu::Launch& launch : its.launches.list) tables += !launch.table.empty();
      all.push_back(std::move(its));
    }
    CHECK(tables > 15);
    std::vector<const gpu::Launches*> launches;
    for (const Many& its : all) launches.push_back(&its.launches);
    const Emulated emulated(launches, prelude);
    for (Many& its : all) {
      emulated.run(its.launches, HG_ORDER_SEEDED);
      for (size_t k = 0; k < its.scenes.size(); ++k) {
        std::vector<void*> pointers;
        Scene expected = its.scenes[k];
        cpu::interpret(its.group, expected.binding(pointers));
        CHECK(compare_scenes(its.actual[k], expected, its.group,
                             std::string(prelude) + ", tensor " + std::to_string(k)));
      }
    }
  }
}

// The same of groups over rows, of which each tensor has its own number and length.
TEST(gpu_run_many_tensors_of_rows) {
  const std::vector<Shape> shapes = {{1, 5, 7}, {1, 3, 64}, {3, 2, 5}, {2, 9, 128}, {1, 1, 1}};
  for (const char* prelude : kPreludes) {
    Random random(60);
    RowBuilder b(ComputeType::f32);
    const DType f = DType::f32;
    const uint16_t x = b.load(b.spread(DType::bf16, kEach), f);
    const uint16_t product = b.op(Op::mul, f, x, b.load(b.spread(f, kColumns)));
    const uint16_t sum = b.op(Op::add, f, product, b.load(b.spread(f, kRows)));
    b.store(b.op(Op::add, f, sum, b.position(kColumns)), b.spread(f, kEach));
    const gpu::GroupCode code(b.group, small_target(prelude));
    std::deque<Scene> scenes, actual;
    std::deque<std::vector<void*>> pointers;
    std::vector<Binding> bindings;
    for (const Shape& shape : shapes) {
      scenes.push_back(scene_of(b.group, shape, random));
      actual.push_back(at_begin(scenes.back()));
      bindings.push_back(bind(actual.back(), shape, pointers.emplace_back()));
    }
    const gpu::Launches launches = code.launches(bindings);
    CHECK_EQ(launches.list.size(), 2);  // with vectors and without
    Emulated({&launches}, prelude).run(launches, HG_ORDER_REVERSE);
    for (size_t k = 0; k < shapes.size(); ++k) {
      std::vector<void*> own;
      cpu::interpret(b.group, bind(scenes[k], shapes[k], own));
      CHECK(compare_scenes(actual[k], scenes[k], b.group,
                           std::string(prelude) + ", tensor " + std::to_string(k)));
    }
  }
}

// As of more elements than 32 bits have numbers for.
TEST(gpu_run_wide_numbers) {
  for (const char* prelude : kPreludes) {
    Random random(50);
    Runs runs(prelude);
    gpu::Target target = runs.target();
    target.most_narrow = 0;
    runs.set_target(target);
    for (int i = 0; i < 16; ++i) {
      const Group group = random_exact_group(4, random, i % 2 == 0);
      if (is_group(group)) runs.add(group, make_scene(group, random_sizes(random), random));
    }
    for (const Shape shape : {Shape{1, 3, 200}, Shape{1, 2, 3100}, Shape{1, 1, 20001},
                              Shape{1, 2000, 4}, Shape{2, 40, 16}}) {
      RowBuilder b(ComputeType::f32);
      const DType f = DType::f32;
      const uint16_t in = b.operand(f), x = b.load(in), least = b.fold(Op::minimum, x);
      const uint16_t rest = b.op(Op::sub, f, x, least);
      const Spread down = shape.planes == 1 ? kColumns : kPlanesAndColumns;
      b.store(b.fold(Op::add, rest, down), b.spread(f, down));
      b.store(b.fold(Op::add, b.op(Op::mul, f, rest, b.load(b.spread(f, kColumns)))),
              b.spread(f, kRows));
      b.store(b.add({NodeKind::pick, Op::add, f, x, b.load(b.spread(DType::i8, kRows), f)}),
              b.spread(f, kRows));
      b.store(b.op(Op::mul, f, rest, b.position(kColumns)), in);
      runs.add(b.group, shape, random);
      RowBuilder c(ComputeType::i64);
      const uint16_t y = c.load(c.operand(DType::i64));
      c.store(c.scan(Op::add, DType::i64, y, kColumns), c.spread(DType::i64, kEach));
      c.store(c.scan(Op::add, DType::i64, y, kMiddle), c.spread(DType::i32, kEach));
      runs.add(c.group, shape, random);
    }
    CHECK(runs.check());
  }
}

// Operands of each spread, also in place.
// Where a thread has two vectors, as far apart as its block is wide: of every number of elements
// near to where one of them, both or a block end, to new memory and in place.
TEST(gpu_run_two_vectors) {
  for (const char* prelude : kPreludes) {
    Random random(43);
    Runs runs(prelude);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const int64_t vector = dtype == DType::f32 ? 4 : 8, block = 64 * vector;
      for (const bool in_place : {false, true}) {
        Builder b(ComputeType::f32);
        const uint16_t x = b.operand(dtype), out = in_place ? x : b.operand(dtype);
        const uint16_t value = b.load(x);
        b.store(b.op(Op::mul, dtype, b.op(Op::tanh, dtype, value), value), out);
        CHECK_EQ(gpu::emit(gpu::split(b.group, false), 0, {.vectors = true}).vectors, 2u);
        for (const int64_t near :
             {int64_t{4}, vector * 2, block, 2 * block, 3 * block, 4 * block}) {
          for (int64_t count = near - 3; count <= near + 3; ++count) {
            const Scene scene = make_scene(b.group, {count}, random);
            runs.add(b.group, at_begin(scene));
          }
        }
      }
    }
    CHECK(runs.check());
  }
}

TEST(gpu_run_broadcasts) {
  for (const char* prelude : kPreludes) {
    Random random(42);
    Runs runs(prelude);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const Shape shape : kShapes) {
        for (const Spread spread :
             {kRows, kColumns, kPlanes, kMiddle, kPlanesAndColumns, Spread{kMiddle | kColumns}}) {
          runs.add(broadcast_sum(dtype, spread), shape, random);
          RowBuilder c(ComputeType::f32);  // in place, and the smaller operand too
          const uint16_t y = c.operand(dtype), w = c.spread(dtype, spread);
          c.group.operands[w].area = w;
          c.store(c.op(Op::mul, dtype, c.load(y), c.load(w)), y);
          c.store(c.op(Op::add, dtype, c.load(w), c.load(w)), w);
          runs.add(c.group, shape, random);
        }
      }
    }
    CHECK(runs.check());
  }
}

TEST(gpu_run_folds) {
  for (const char* prelude : kPreludes) {
    Random random(43);
    Runs runs(prelude);
    for (const ComputeType type : kComputeTypes) {
      for (const Shape shape : kShapes) {
        for (const Op op : {Op::add, Op::mul, Op::maximum, Op::minimum}) {
          const Spread down = shape.planes == 1 ? kColumns : kPlanesAndColumns;
          for (const Spread spread : {kRows, down}) {
            const DType second = type == ComputeType::f32 ? DType::bf16 : own_dtype(type);
            runs.add(fold_of(op, type, spread, second), shape, random);
          }
        }
      }
    }
    CHECK(runs.check());
  }
}

// Two folds one after the other, in blocks and in warps, and where a row is folded by several
// blocks.
TEST(gpu_run_normalisation) {
  for (const char* prelude : kPreludes) {
    Random random(44);
    Runs runs(prelude);
    for (const int64_t enough : {int64_t{1}, int64_t{2048}, int64_t{1} << 16}) {
      gpu::Target target = runs.target();
      target.enough_threads = enough;
      runs.set_target(target);
      for (const DType dtype : {DType::f32, DType::f16}) {
        for (const Shape shape : kShapes) {
          RowBuilder b(ComputeType::f32);
          const DType f = DType::f32;
          const uint16_t in = b.operand(dtype), weight = b.load(b.spread(dtype, kColumns));
          const uint16_t x = b.load(in);
          const uint16_t rest = b.op(Op::sub, f, x, b.fold(Op::maximum, x));
          const uint16_t sum = b.fold(Op::add, b.op(Op::mul, f, rest, rest));
          const uint16_t scale = b.op(Op::rsqrt, f, b.op(Op::add, f, sum, b.immediate(f)));
          b.store(b.op(Op::mul, dtype, b.op(Op::mul, f, rest, scale), weight), in);  // in place
          b.store(sum, b.spread(f, kRows));
          b.store(b.op(Op::add, f, x, x), b.spread(f, kEach));
          runs.add(b.group, shape, random);
        }
      }
    }
    CHECK(runs.check());
  }
}

// Passes over a row of which the later ones are computed from a value that an earlier one has had:
// what is loaded, or a function of it, of the dtypes in which it is kept.
TEST(gpu_run_values_kept_between_passes) {
  for (const char* prelude : kPreludes) {
    Random random(52);
    Runs runs(prelude);
    const DType f = DType::f32;
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const Shape shape :
           {Shape{1, 9, 1024}, {2, 5, 1536}, {1, 3, 2500}, {1, 4, 3072}, {1, 20, 96}}) {
        {
          RowBuilder b(ComputeType::f32);  // softmax
          const uint16_t x = b.load(b.operand(dtype));
          const uint16_t most = b.fold(Op::maximum, x);
          const uint16_t e = b.op(Op::exp, dtype, b.op(Op::sub, dtype, x, most));
          b.store(b.op(Op::div, dtype, e, b.fold(Op::add, e)), b.operand(dtype));
          runs.add(b.group, shape, random);
        }
        {
          RowBuilder b(ComputeType::f32);  // bias, a function, residual, norm; twice the residual
          const uint16_t x = b.load(b.operand(dtype)), bias = b.load(b.spread(dtype, kColumns));
          const uint16_t t = b.op(Op::tanh, dtype, b.op(Op::add, dtype, x, bias));
          const uint16_t h = b.op(Op::add, dtype, t, x);
          const uint16_t rest = b.op(Op::sub, f, h, b.fold(Op::add, h));
          const uint16_t sum = b.fold(Op::add, b.op(Op::mul, f, rest, rest));
          b.store(b.op(Op::mul, dtype, rest, b.op(Op::rsqrt, f, sum)), b.operand(dtype));
          b.store(h, b.operand(dtype));
          runs.add(b.group, shape, random);
        }
        {
          RowBuilder b(ComputeType::f32);  // the last pass loads another tensor
          const uint16_t x = b.load(b.operand(dtype)), y = b.load(b.operand(DType::f32));
          const uint16_t e = b.op(Op::exp, f, x);
          const uint16_t sum = b.fold(Op::add, e);
          const uint16_t most = b.fold(Op::maximum, b.op(Op::mul, f, e, sum));
          b.store(b.op(Op::add, f, y, most), b.operand(f));
          b.store(most, b.spread(f, kRows));
          runs.add(b.group, shape, random);
        }
      }
    }
    CHECK(runs.check());
  }
}

// Rows that are divided by a number of theirs, which a kernel multiplies by in f64: of any bits.
TEST(gpu_run_divided_rows) {
  for (const char* prelude : kPreludes) {
    Random random(50);
    Runs runs(prelude);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const Shape shape : {Shape{1, 300, 130}, {2, 40, 257}, {1, 5, 7000}}) {
        RowBuilder b(ComputeType::f32);
        const DType f = DType::f32;
        const uint16_t x = b.load(b.operand(f)), y = b.load(b.spread(f, kRows));
        const uint16_t most = b.fold(Op::maximum, b.load(b.operand(f)));
        b.store(b.op(Op::div, dtype, x, y), b.operand(dtype));
        b.store(b.op(Op::div, dtype, x, most), b.operand(dtype));
        Scene scene = scene_of(b.group, shape, random);
        for (const uint16_t operand : {uint16_t{0}, uint16_t{1}, uint16_t{2}}) {
          Memory& memory = scene.memory[scene.place[operand]];
          auto* const words = static_cast<uint32_t*>(static_cast<void*>(memory.data));
          for (size_t i = 0; i < memory.size / sizeof *words; ++i) {
            const uint32_t bits = static_cast<uint32_t>(random());
            words[i] = random() % 4 == 0 ? bits & 0x81ffffffu : bits;  // and denormal ones
          }
        }
        runs.add(b.group, std::move(scene), shape);
      }
    }
    CHECK(runs.check());
  }
}

// Functions that are computed in another way where a number of bf16 comes of such: of all of them,
// each with some second ones.
TEST(gpu_run_functions_of_every_bf16) {
  for (const char* prelude : kPreludes) {
    Runs runs(prelude);
    Random random(51);
    for (int i = 0; i < kOpCount; ++i) {
      const Op op = static_cast<Op>(i);
      if (!op_info(op).has(kForBf16)) continue;
      const DType half = DType::bf16;
      Builder b(ComputeType::f32);
      const uint16_t x = b.load(b.operand(half)), y = b.load(b.operand(half));
      // Rounded as it is computed, or where it is stored.
      for (const DType dtype : {half, DType::f32}) {
        const bool is_unary = op_info(op).arity == 1;
        b.store(is_unary ? b.op(op, dtype, x) : b.op(op, dtype, x, y), b.operand(half));
      }
      const uint32_t count = op_info(op).arity == 1 ? 1u << 16 : 1u << 20;
      Scene scene = make_scene(b.group, {count}, random);
      const auto values = [&](size_t operand) {
        return static_cast<uint16_t*>(static_cast<void*>(scene.memory[scene.place[operand]].data));
      };
      for (uint32_t k = 0; k < count; ++k) {
        const auto bits = static_cast<uint16_t>(random());
        values(0)[k] = static_cast<uint16_t>(k);
        // Of any size, or of about 1.
        values(1)[k] = k % 3 == 0 ? bits : static_cast<uint16_t>((bits & 0x83ff) | 0x3c00);
      }
      runs.add(b.group, std::move(scene));
    }
    CHECK(runs.count() > 0);
    CHECK(runs.check());
  }
}

// Quotients by what a row has one of, rounded to bf16: of every number of it by some divisors.
TEST(gpu_run_quotients_of_every_bf16) {
  Runs runs("cuda");
  Random random(53);
  constexpr size_t kRowsOfEach = 64;
  const DType half = DType::bf16;
  RowBuilder b(ComputeType::f32);
  const uint16_t x = b.load(b.operand(half)), y = b.load(b.spread(half, kRows));
  // A fold makes it a program over rows; the divisor is a number of the row.
  const uint16_t most = b.fold(Op::maximum, x, kRows);
  b.store(b.op(Op::div, half, x, y), b.operand(half));
  b.store(most, b.spread(half, kRows));
  const Shape shape{1, kRowsOfEach, 1 << 16};
  Scene scene = scene_of(b.group, shape, random);
  const auto values = [&](size_t operand) {
    return static_cast<uint16_t*>(static_cast<void*>(scene.memory[scene.place[operand]].data));
  };
  for (size_t row = 0; row < kRowsOfEach; ++row) {
    const auto bits = static_cast<uint16_t>(random());
    // Of any size, or of about 1; among the first are 0, the least, the greatest, inf and NaN.
    constexpr std::array<uint16_t, 6> kSpecial{0, 0x8000, 1, 0x7f7f, 0xff80, 0x7fc0};
    values(1)[row] = row < kSpecial.size() ? kSpecial[row]
                     : row % 3 == 0        ? bits
                                           : static_cast<uint16_t>((bits & 0x83ff) | 0x3c00);
    for (uint32_t k = 0; k < 1 << 16; ++k) {
      values(0)[row << 16 | k] = static_cast<uint16_t>(k);
    }
  }
  runs.add(b.group, std::move(scene), shape);
  CHECK(runs.check());
}

// The largest and the least of rows, which are first looked for in any order: of zeros of both
// signs, of NaNs with payloads, of infinities, alone and among others.
TEST(gpu_run_folds_of_any_order) {
  Runs runs("cuda");
  Random random(54);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Op op : {Op::maximum, Op::minimum}) {
      RowBuilder b(ComputeType::f32);
      const uint16_t x = b.load(b.operand(dtype));
      const uint16_t most = b.fold(op, x, kRows);
      b.store(b.op(Op::sub, dtype, x, most), b.operand(dtype));
      b.store(most, b.spread(DType::f32, kRows));
      const Shape shape{1, 48, 1100};
      Scene scene = scene_of(b.group, shape, random);
      Memory& memory = scene.memory[scene.place[0]];
      const size_t rows = static_cast<size_t>(shape.rows),
                   columns = static_cast<size_t>(shape.columns);
      constexpr std::array<uint32_t, 8> kSpecial{0,          0x80000000, 0x7fc10000, 0xffc20000,
                                                 0x7f800000, 0xff800000, 0x3f800000, 0xbf800000};
      for (size_t row = 0; row < rows; ++row) {
        for (size_t k = 0; k < columns; ++k) {
          // Zeros alone, some of the first few, or others with one of them now and then.
          const size_t kinds = row % 8 + 1;
          uint32_t bits = kSpecial[random() % (kinds < 2 ? 2 : kinds)];
          if (row >= 16 && random() % 64 != 0)
            bits = 0x3f800000 | static_cast<uint32_t>(random() % 128) << 16;
          if (row >= 32 && random() % 64 == 0) bits |= 0x80000000;
          const size_t at = row * columns + k;
          if (dtype == DType::f32) {
            static_cast<uint32_t*>(static_cast<void*>(memory.data))[at] = bits;
          } else {
            static_cast<uint16_t*>(static_cast<void*>(memory.data))[at] =
                static_cast<uint16_t>(bits >> 16);
          }
        }
      }
      runs.add(b.group, std::move(scene), shape);
    }
  }
  CHECK(runs.check());
}

// Partial results of partial results: of rows of many classes, and of many rows.
TEST(gpu_run_folds_of_many) {
  Random random(49);
  Runs runs("cuda");
  gpu::Target target = runs.target();
  target.enough_threads = 1 << 16;
  runs.set_target(target);
  for (const auto& [shape, spread] :
       {std::pair(Shape{1, 1, 300'001}, kRows), std::pair(Shape{1, 2, 205'000}, kRows),
        std::pair(Shape{1, 100'001, 3}, kColumns),
        std::pair(Shape{2, 70'000, 1}, kPlanesAndColumns)}) {
    for (const Op op : {Op::add, Op::minimum}) {
      RowBuilder b(ComputeType::f32);
      const uint16_t x = b.load(b.operand(DType::f32));
      b.store(b.fold(op, x, spread), b.spread(DType::f32, spread));
      b.store(b.fold(Op::add, b.op(Op::mul, DType::f32, x, x), spread),
              b.spread(DType::f32, spread));
      runs.add(b.group, shape, random);
    }
  }
  CHECK(runs.check());
}

TEST(gpu_run_norm_backward) {
  for (const char* prelude : kPreludes) {
    Random random(45);
    Runs runs(prelude);
    for (const Shape shape : kShapes) {
      if (shape.planes == 1) runs.add(norm_backward(), shape, random);
    }
    CHECK(runs.check());
  }
}

TEST(gpu_run_positions_and_picks) {
  for (const char* prelude : kPreludes) {
    Random random(46);
    Runs runs(prelude);
    for (const ComputeType type : kComputeTypes) {
      for (const Shape shape : kShapes) {
        RowBuilder b(type);
        const auto pick = [&](uint16_t x, uint16_t at) {
          return b.add({NodeKind::pick, Op::add, b.own(), x, at});
        };
        const uint16_t in = b.operand(type == ComputeType::f32 ? DType::bf16 : b.own());
        const uint16_t x = b.load(in, b.own()), v = b.load(b.spread(b.own(), kColumns));
        const uint16_t few = b.load(b.spread(DType::i8, kRows), b.own());
        const uint16_t any = b.load(b.spread(DType::f16, kRows), b.own());
        const uint16_t value = b.op(Op::add, b.own(), x, b.fold(Op::maximum, x));
        const uint16_t from_value = pick(value, few);
        b.store(pick(x, few), b.spread(b.own(), kRows));
        b.store(pick(v, any), b.spread(b.own(), kRows));
        b.store(from_value, b.spread(b.own(), kRows));
        b.store(pick(x, from_value), b.spread(b.own(), kRows));
        b.store(pick(value, b.position(kRows)), b.spread(b.own(), kRows));
        b.store(pick(b.op(Op::sub, b.own(), x, few), few), b.spread(b.own(), kRows));
        b.store(b.op(Op::mul, b.own(), x, from_value), in);
        runs.add(b.group, shape, random);

        RowBuilder c(type);  // nothing but picks
        const uint16_t at = c.load(c.spread(DType::i8, kRows), c.own());
        const uint16_t y = c.load(c.spread(c.own(), kEach));
        c.store(c.add({NodeKind::pick, Op::add, c.own(), y, at}), c.spread(c.own(), kRows));
        runs.add(c.group, shape, random);

        // What is picked is the same for all columns, or is made of such a value, and elements are
        // made of what was picked: a loss of one class for each row, backwards.
        const Spread down = shape.planes == 1 ? kColumns : kPlanesAndColumns;
        for (const NodeKind last : {NodeKind::fold, NodeKind::scan, NodeKind::store}) {
          for (const bool is_whole : {true, false}) {
            RowBuilder e(type);
            const uint16_t here = e.position(kColumns);
            const uint16_t wanted = e.load(e.spread(DType::i32, kRows), e.own());
            const uint16_t same =
                e.op(Op::neg, e.own(), e.load(e.operand(e.own(), Layout::scalar)));
            const uint16_t other = e.load(e.spread(e.own(), kEach));
            const uint16_t from = is_whole ? same : e.op(Op::mul, e.own(), same, other);
            const uint16_t hit = e.op(Op::eq, DType::b8, here, wanted);
            const uint16_t chosen = e.op(Op::where, e.own(), hit, same, other);
            const uint16_t picked = e.add({NodeKind::pick, Op::add, e.own(), from, wanted});
            const uint16_t rest =
                e.op(Op::sub, e.own(), chosen, e.op(Op::mul, e.own(), picked, other));
            if (last == NodeKind::fold) {
              e.store(rest, e.spread(e.own(), kEach));
              e.store(e.fold(Op::add, rest, down), e.spread(e.own(), down));
            } else if (last == NodeKind::scan) {
              e.store(e.scan(Op::add, e.own(), rest, kColumns), e.spread(e.own(), kEach));
            } else {
              e.store(rest, e.spread(e.own(), kEach));
            }
            runs.add(e.group, shape, random);
          }
        }
        for (const Spread which : {kColumns, kRows}) {
          RowBuilder d(type);
          const uint16_t here = d.position(which), z = d.load(d.operand(d.own()));
          const uint16_t wanted = d.load(d.spread(DType::i32, kRows), d.own());
          const uint16_t hit = d.op(Op::le, DType::b8, here, wanted);
          const uint16_t chosen = d.op(Op::where, d.own(), hit, z, here);
          d.store(chosen, d.spread(d.own(), kEach));
          d.store(here, d.spread(DType::i64, kEach));
          d.store(d.fold(Op::add, chosen), d.spread(d.own(), kRows));
          d.store(d.fold(Op::maximum, here), d.spread(DType::i16, kRows));
          d.store(d.fold(Op::minimum, chosen, down), d.spread(d.own(), down));
          d.store(d.fold(Op::add, here, down), d.spread(d.own(), down));
          runs.add(d.group, shape, random);
        }
      }
    }
    CHECK(runs.check());
  }
}

TEST(gpu_run_draws) {
  for (const char* prelude : kPreludes) {
    Random random(47);
    Runs runs(prelude);
    for (const ComputeType type : kComputeTypes) {
      for (const Shape shape : kShapes) {
        for (const bool folds : {false, true}) {
          RowBuilder b(type);
          const uint16_t x = b.operand(b.own());
          // The normal ones of f64 are the C library's.
          const uint16_t drawn =
              type == ComputeType::f64 ? b.draw(Draw::uniform, DType::f64) : random_draw(b, random);
          uint16_t value = b.op(Op::mul, b.own(), b.load(x), drawn);
          value = b.op(Op::sub, b.own(), value, b.load(b.spread(b.own(), kRows)));
          if (folds) {
            const uint16_t most = b.fold(Op::maximum, value);
            b.store(b.fold(Op::add, drawn, kPlanesAndColumns),
                    b.spread(b.own(), kPlanesAndColumns));
            value = b.op(Op::sub, b.own(), value, most);
            b.store(most, b.spread(b.own(), kRows));
          }
          b.store(value, x);
          runs.add(b.group, shape, random);
        }
      }
    }
    CHECK(runs.check());
  }
}

TEST(gpu_run_scans) {
  struct Scanned {
    ComputeType type;
    DType dtype, memory;
  };
  const std::vector<Scanned> scanned = {
      {ComputeType::f32, DType::f32, DType::f32}, {ComputeType::f32, DType::bf16, DType::bf16},
      {ComputeType::f32, DType::f16, DType::f16}, {ComputeType::f64, DType::f64, DType::f64},
      {ComputeType::i64, DType::i64, DType::i64}, {ComputeType::i64, DType::i64, DType::i32},
      {ComputeType::i64, DType::i64, DType::u8},
  };
  for (const char* prelude : kPreludes) {
    Random random(48);
    Runs runs(prelude);
    for (const auto& [type, dtype, memory] : scanned) {
      // By tiles, or by a thread for each row.
      for (const Shape shape :
           {Shape{2, 5, 1100}, {1, 70, 77}, {3, 101, 33}, {1, 260, 64}, {2, 9, 11}}) {
        RowBuilder b(type);
        const uint16_t y = b.spread(memory, kEach);
        uint16_t sum = b.load(y, dtype);
        for (const Spread spread : {kColumns, kRows, kMiddle, kPlanes}) {
          sum = b.op(Op::add, dtype, sum, b.load(b.spread(memory, spread), dtype));
        }
        const uint16_t scan = b.scan(shape.rows == 70 ? Op::mul : Op::add, dtype, sum, kColumns);
        b.store(scan, y);  // in place
        b.store(scan, b.spread(memory, kEach));
        runs.add(b.group, shape, random);
      }
      for (const Shape shape : kShapes) {
        for (const Spread axis : {kColumns, kMiddle}) {
          for (const Op op : {Op::add, Op::mul}) {
            RowBuilder b(type);
            const uint16_t y = b.spread(memory, kEach);
            const uint16_t bias = b.load(b.spread(memory, kColumns), dtype);
            const uint16_t sum = b.op(Op::add, dtype, b.load(y, dtype), bias);
            b.store(b.scan(op, dtype, sum, axis), y);  // in place
            const uint16_t least = b.fold(Op::minimum, sum);
            const uint16_t rest = b.op(Op::sub, dtype, sum, least);
            b.store(b.scan(op, dtype, rest, axis), b.spread(memory, kEach));
            b.store(least, b.spread(dtype, kRows));
            runs.add(b.group, shape, random);
          }
        }
      }
    }
    CHECK(runs.check());
  }
}

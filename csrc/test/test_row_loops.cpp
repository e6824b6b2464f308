// The loops of rows that are at least a tile (Loops::add_row_programs): a group for each of them,
// which has to find it, against the interpreter.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "cpu/row_group.h"
#include "rows.h"

using namespace hologram;
using namespace hologram::cpu;
using namespace hologram::test;

namespace {

// What sequences are written in: elements, other memory with columns, and what belongs to a row.
struct Parts {
  Parts(DType its, Random& its_random) : dtype(its), random(its_random), first(b.operand(its)) {
    b.group.operands[first].area = first;
    x = b.load(first, DType::f32);
  }

  uint16_t memory() {
    constexpr Spread kMost[] = {kEach, kColumns, kPlanesAndColumns, Spread{kMiddle | kColumns},
                                kEach, kEach};
    return b.load(b.spread(dtype, pick(kMost)), DType::f32);
  }
  uint16_t splat() {
    constexpr Spread kFew[] = {kRows, kPlanes, kMiddle, kOne, kRows};
    const uint64_t which = random() % 8;
    // bf16 is stored in another way where all is bf16.
    if (which == 0 && has_row) return b.immediate(DType::f32);
    has_row = true;
    if (which == 1) return b.fold(Op::maximum, x);
    if (which == 2) return b.load(b.spread(DType::f16, kRows), DType::f32);
    return b.load(b.spread(DType::f32, pick(kFew)));
  }
  uint16_t add(uint16_t a, uint16_t c) { return b.op(Op::add, DType::f32, a, c); }
  uint16_t sub(uint16_t a, uint16_t c) { return b.op(Op::sub, DType::f32, a, c); }
  uint16_t mul(uint16_t a, uint16_t c) { return b.op(Op::mul, DType::f32, a, c); }
  uint16_t square(uint16_t a) { return mul(a, a); }
  uint16_t distance() { return sub(x, splat()); }
  uint16_t normal() { return mul(distance(), splat()); }
  uint16_t from_column() { return sub(x, memory()); }
  uint16_t both_scaled(Op op) {
    const uint16_t scaled = mul(x, splat()), other = mul(memory(), splat());
    return add(b.op(op, DType::f32, scaled, other), splat());
  }
  uint16_t product() { return mul(memory(), memory()); }

  template <size_t count>
  Spread pick(const Spread (&from)[count]) {
    return from[random() % count];
  }

  DType dtype;
  Random& random;
  RowBuilder b{ComputeType::f32};
  uint16_t first, x;
  bool has_row = false;
};

struct Sequence {
  const char* name;
  uint16_t (*value)(Parts&);
  bool half = true;  // also of bf16
  bool down = true;  // a fold over rows has a loop, too
};

const std::vector<Sequence> kFolded = {
    {"product", [](Parts& p) { return p.mul(p.x, p.memory()); }},
    {"square", [](Parts& p) { return p.square(p.x); }},
    {"distance, square", [](Parts& p) { return p.square(p.distance()); }},
    {"distance, times", [](Parts& p) { return p.mul(p.distance(), p.memory()); }},
    {"distance, scale, times", [](Parts& p) { return p.mul(p.normal(), p.memory()); }},
    {"from column, square", [](Parts& p) { return p.square(p.from_column()); }},
    {"from column, times", [](Parts& p) { return p.mul(p.from_column(), p.memory()); }},
    {"distance, scale, times, times",
     [](Parts& p) { return p.mul(p.mul(p.normal(), p.memory()), p.memory()); }, true, false},
    {"scaled, times", [](Parts& p) { return p.mul(p.mul(p.x, p.splat()), p.memory()); }},
    {"scaled, times, times",
     [](Parts& p) { return p.mul(p.mul(p.mul(p.x, p.splat()), p.memory()), p.memory()); }, true,
     false},
};
// What is dear is no loop in the narrower registers of AVX2, and is kept where it is also stored.
const Sequence kExponential{"distance, exp",
                            [](Parts& p) { return p.b.op(Op::exp, DType::f32, p.distance()); },
                            true, false};

const std::vector<Sequence> kStored = {
    {"distance, times", [](Parts& p) { return p.mul(p.distance(), p.memory()); }},
    {"from column, times", [](Parts& p) { return p.mul(p.from_column(), p.memory()); }, false},
    {"distance, scale", [](Parts& p) { return p.normal(); }},
    {"distance, scale, shift", [](Parts& p) { return p.add(p.normal(), p.splat()); }},
    {"distance, scale, times", [](Parts& p) { return p.mul(p.normal(), p.memory()); }},
    {"distance, scale, times, plus",
     [](Parts& p) { return p.add(p.mul(p.normal(), p.memory()), p.memory()); }},
    {"from column, times, plus",
     [](Parts& p) { return p.add(p.mul(p.from_column(), p.memory()), p.memory()); }, false},
    {"from column, times, times, plus",
     [](Parts& p) {
       return p.add(p.mul(p.mul(p.from_column(), p.memory()), p.memory()), p.memory());
     },
     false},
    {"scaled, shift", [](Parts& p) { return p.add(p.mul(p.x, p.splat()), p.splat()); }},
    {"scaled, times", [](Parts& p) { return p.mul(p.mul(p.x, p.splat()), p.memory()); }},
    {"distance, scale, scale, shift, from product, scale",
     [](Parts& p) {
       const uint16_t rest = p.add(p.mul(p.normal(), p.splat()), p.splat());
       return p.mul(p.sub(p.product(), rest), p.splat());
     },
     false},
    {"scaled, less scaled, shift", [](Parts& p) { return p.both_scaled(Op::sub); }, false},
    {"product, less product, plus",
     [](Parts& p) {
       const uint16_t product = p.mul(p.x, p.memory());
       return p.add(p.sub(product, p.product()), p.memory());
     },
     false},
    {"scaled, plus scaled, shift", [](Parts& p) { return p.both_scaled(Op::add); }, false},
    {"distance, minus", [](Parts& p) { return p.sub(p.distance(), p.splat()); }},
    {"product, less scaled, scale",
     [](Parts& p) {
       const uint16_t product = p.mul(p.x, p.memory()), scaled = p.mul(p.memory(), p.splat());
       return p.mul(p.sub(product, scaled), p.splat());
     },
     false},
};

// Around half a tile, a tile and registers of each instruction set, and around a class.
const std::vector<int64_t> kColumnCounts = {
    15,  16,  17,  20,  31,  32,  33,   40,   47,   48,   49,   63,   64,   65,  79,
    80,  81,  96,  112, 120, 127, 128,  129,  136,  144,  192,  200,  240,  256, 272,
    383, 384, 512, 520, 640, 648, 1000, 1024, 3056, 3064, 3071, 3072, 3073, 3088};

// Around chunks and units of rows that are folded.
constexpr std::pair<int64_t, int64_t> kRowCounts[] = {
    {1, 1},  {1, 2},  {3, 5},  {1, 15}, {1, 16}, {2, 17}, {5, 1},   {1, 31},  {1, 33},
    {1, 47}, {3, 48}, {1, 49}, {2, 63}, {1, 64}, {3, 65}, {1, 127}, {1, 130}, {9, 7},
};

// Some of them, with other rows each time.
std::vector<Shape> shapes_of(Random& random) {
  std::vector<Shape> shapes;
  for (const int64_t columns : kColumnCounts) {
    if (random() % 3 != 0) continue;
    const auto [planes, rows] = kRowCounts[random() % std::size(kRowCounts)];
    shapes.push_back({planes, rows, columns});
  }
  return shapes;
}

Spread down(Shape shape) {
  return shape.planes == 1 ? kColumns : kPlanesAndColumns;
}

// The instruction sets for which loops are compiled.
std::vector<Isa> looping_sets() {
  auto isas = sets();
  std::erase(isas, Isa::baseline);
  return isas;
}

using FoldLoops = std::set<const FoldLoop*>;

// How many stages over elements there are that are neither a loop nor folds of operands. `found`:
// what the others fold.
int slow_stages(const Group& group, Isa isa, FoldLoops* found = nullptr) {
  const RowGroup its(group, isa);
  int slow = 0;
  for (const auto& stage : its.way(Manner::folding).stages) {
    if (stage.loop != nullptr && found != nullptr) found->insert(stage.loop);
    if (stage.over_rows || stage.is_empty || stage.loop != nullptr) continue;
    if (!stage.code->is_loop()) ++slow;
  }
  return slow;
}

std::vector<DType> dtypes_of(const Sequence& sequence) {
  return sequence.half ? std::vector{DType::f32, DType::bf16} : std::vector{DType::f32};
}

bool is_fast(const Group& group, const Sequence& sequence, DType dtype,
             std::vector<FoldLoops>* found = nullptr) {
  const auto isas = looping_sets();
  for (size_t i = 0; i < isas.size(); ++i) {
    if (&sequence == &kExponential && isas[i] != Isa::avx512)
      continue;  // cpu/micro_ops.h, is_heavy
    const int slow = slow_stages(group, isas[i], found == nullptr ? nullptr : &(*found)[i]);
    if (slow == 0) continue;
    check::fail(__FILE__, __LINE__,
                std::string(sequence.name) + " of " + dtype_name(dtype) + " on " +
                    isa_name(isas[i]) + ": " + std::to_string(slow) + " stages are no loop\n  " +
                    describe(group));
    return false;
  }
  return true;
}

}  // namespace

TEST(rows_fold_loops) {
  Random random(41);
  std::vector<FoldLoops> found(looping_sets().size());
  const auto try_all = [&](const Sequence& sequence) {
    for (const DType dtype : dtypes_of(sequence)) {
      for (const Shape shape : shapes_of(random)) {
        const Spread result = random() % 2 == 0 || !sequence.down ? kRows : down(shape);
        Parts p(dtype, random);
        const uint16_t sum = p.b.fold(Op::add, sequence.value(p), result);
        p.b.store(sum, p.b.spread(DType::f32, result));
        p.b.store(sum, p.b.spread(DType::bf16, result));
        CHECK(is_fast(p.b.group, sequence, dtype, &found));
        CHECK(equal_on_all(p.b.group, shape, random));
      }
    }
  };
  for (const Sequence& sequence : kFolded) try_all(sequence);
  try_all(kExponential);
  for (size_t i = 0; i < looping_sets().size(); ++i) {
    const TypeKernels& kernels =
        *RowGroup(Parts(DType::f32, random).b.group, looping_sets()[i]).kernels;
    CHECK_EQ(static_cast<int>(found[i].size()), kernels.fold_loop_count);
  }
}

// Stored beside what is read, and in its place.
TEST(rows_stored_loops) {
  Random random(42);
  for (const Sequence& sequence : kStored) {
    for (const DType dtype : dtypes_of(sequence)) {
      for (const Shape shape : shapes_of(random)) {
        const bool in_place = random() % 2 == 0;
        Parts p(dtype, random);
        const uint16_t value = sequence.value(p);
        p.b.store(value, in_place ? p.first : p.b.spread(dtype, kEach));
        CHECK(is_fast(p.b.group, sequence, dtype));
        CHECK(equal_on_all(p.b.group, shape, random));
      }
    }
  }
}

// What is folded both ways is also stored, in place of what is read.
TEST(rows_fold_loops_beside_stores) {
  Random random(43);
  for (const Sequence& sequence : kFolded) {
    for (const DType dtype : dtypes_of(sequence)) {
      for (const Shape shape : shapes_of(random)) {
        Parts p(dtype, random);
        const uint16_t value = sequence.value(p), other = p.mul(p.x, p.memory());
        p.b.store(p.b.fold(Op::add, value), p.b.spread(DType::f32, kRows));
        p.b.store(p.b.fold(Op::add, other, down(shape)), p.b.spread(DType::f32, down(shape)));
        p.b.store(p.b.fold(Op::add, p.x, down(shape)), p.b.spread(DType::f32, down(shape)));
        p.b.store(p.add(value, other), p.first);
        for (const Isa isa : looping_sets()) {
          FoldLoops loops;
          slow_stages(p.b.group, isa, &loops);
          CHECK_EQ(static_cast<int>(loops.size()), 2);
        }
        CHECK(equal_on_all(p.b.group, shape, random));
      }
    }
  }
}

// A value that is folded twice, or of which a fold is not a sum, takes the way through a buffer.
TEST(rows_folds_without_loops) {
  Random random(44);
  for (const Sequence& sequence : kFolded) {
    for (const Shape shape : shapes_of(random)) {
      Parts p(DType::f32, random);
      const uint16_t value = sequence.value(p);
      p.b.store(p.b.fold(Op::add, value), p.b.spread(DType::f32, kRows));
      p.b.store(p.b.fold(Op::add, value, down(shape)), p.b.spread(DType::f32, down(shape)));
      p.b.store(p.b.fold(Op::minimum, p.add(value, p.x)), p.b.spread(DType::f32, kRows));
      for (const Isa isa : looping_sets()) {
        FoldLoops loops;
        slow_stages(p.b.group, isa, &loops);
        CHECK(loops.empty());
      }
      CHECK(equal_on_all(p.b.group, shape, random));
    }
  }
}

// Layer norm, and with it a scan of what it makes, whose rows are whole as well.
TEST(rows_of_norms) {
  Random random(45);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Shape shape : shapes_of(random)) {
      RowBuilder b(ComputeType::f32);
      const DType f = DType::f32;
      const uint16_t in = b.operand(dtype), x = b.load(in, f);
      const uint16_t w = b.load(b.spread(dtype, kColumns), f),
                     bias = b.load(b.spread(dtype, kColumns), f);
      const uint16_t part = b.immediate(f);
      const uint16_t mean = b.op(Op::mul, f, b.fold(Op::add, x), part);
      const uint16_t d = b.op(Op::sub, f, x, mean);
      const uint16_t variance = b.op(Op::mul, f, b.fold(Op::add, b.op(Op::mul, f, d, d)), part);
      const uint16_t scale = b.op(Op::rsqrt, f, variance);
      const uint16_t y = b.op(Op::add, f, b.op(Op::mul, f, b.op(Op::mul, f, d, scale), w), bias);
      b.store(y, b.spread(dtype, kEach));
      b.store(mean, b.spread(f, kRows));
      b.store(scale, b.spread(f, kRows));
      for (const Isa isa : looping_sets()) {
        FoldLoops loops;
        CHECK_EQ(slow_stages(b.group, isa, &loops), 0);
        CHECK_EQ(static_cast<int>(loops.size()), 1);
      }
      CHECK(equal_on_all(b.group, shape, random));
      const uint16_t stored = b.op(Op::add, dtype, y, x);
      b.store(b.scan(Op::add, dtype, stored, kColumns), in);
      CHECK(equal_on_all(b.group, shape, random));
    }
  }
}

// The gradient of softmax, whose fold and the loop that needs it are one; stored beside what is
// read, and in its place, where they are not.
TEST(rows_of_a_fold_and_a_loop) {
  Random random(47);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool in_place : {false, true}) {
      for (const Shape shape : shapes_of(random)) {
        Parts p(dtype, random);
        const uint16_t y = p.b.load(p.b.spread(dtype, kEach), DType::f32);
        const uint16_t sum = p.b.fold(Op::add, p.mul(p.x, y));
        p.b.store(p.mul(p.sub(p.x, sum), y), in_place ? p.first : p.b.spread(dtype, kEach));
        for (const Isa isa : looping_sets()) {
          const RowGroup group(p.b.group, isa);
          const auto pairs =
              std::ranges::count_if(group.way(Manner::folding).stages,
                                    [](const auto& stage) { return stage.pair != nullptr; });
          CHECK_EQ(static_cast<int>(pairs), in_place ? 0 : 1);
        }
        CHECK(equal_on_all(p.b.group, shape, random));
      }
    }
  }
}

// The other compute types have no such loops, but rows that are whole.
TEST(rows_whole_of_other_types) {
  Random random(46);
  for (const ComputeType type : {ComputeType::f64, ComputeType::i64}) {
    for (const Shape shape : shapes_of(random)) {
      RowBuilder b(type);
      const DType own = b.own();
      const uint16_t in = b.operand(own), x = b.load(in);
      const uint16_t m = b.load(b.spread(own, kRows)), w = b.load(b.spread(own, kColumns));
      const uint16_t d = b.op(Op::sub, own, x, m);
      b.store(b.fold(Op::add, b.op(Op::mul, own, d, d)), b.spread(own, kRows));
      b.store(b.fold(Op::add, b.op(Op::mul, own, x, w), down(shape)), b.spread(own, down(shape)));
      b.store(b.op(Op::mul, own, d, b.fold(Op::maximum, x)),
              random() % 2 == 0 ? in : b.spread(own, kEach));
      CHECK(equal_on_all(b.group, shape, random));
      RowBuilder c(type);  // a copy, which is a loop
      const uint16_t from = c.operand(own);
      c.store(c.load(from), c.spread(own, kEach));
      c.store(c.fold(Op::minimum, c.load(from)), c.spread(own, kRows));
      CHECK(equal_on_all(c.group, shape, random));
    }
  }
}

// Bits of half types, numbers and truth values that are stored in every row.
TEST(rows_of_moves) {
  Random random(47);
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const Shape shape : shapes_of(random)) {
      for (const Op op : {Op::neg, Op::abs}) {
        for (const bool in_place : {false, true}) {
          RowBuilder b(ComputeType::f32);
          const uint16_t in = b.operand(dtype), x = b.load(in);
          b.store(b.op(op, dtype, x), in_place ? in : b.spread(dtype, kEach));
          b.store(b.fold(Op::maximum, x), b.spread(DType::f32, kRows));
          for (const Isa isa : looping_sets()) CHECK_EQ(slow_stages(b.group, isa), 0);
          CHECK(equal_on_all(b.group, shape, random));
        }
      }
      RowBuilder b(ComputeType::f32);  // a fold, for every element of its row
      const uint16_t x = b.load(b.operand(DType::f32));
      b.store(b.fold(Op::add, x), b.spread(dtype, kEach));
      for (const Isa isa : looping_sets()) CHECK_EQ(slow_stages(b.group, isa), 0);
      CHECK(equal_on_all(b.group, shape, random));
      RowBuilder c(ComputeType::f32);
      const uint16_t y = c.load(c.operand(dtype), DType::f32);
      c.store(c.op(Op::le, DType::b8, y, c.load(c.spread(DType::f32, kRows))),
              c.spread(DType::b8, kEach));
      CHECK(equal_on_all(c.group, shape, random));
    }
  }
}

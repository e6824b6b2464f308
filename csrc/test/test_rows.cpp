// Groups over rows: broadcasts and folds, against the interpreter, on every instruction set, with
// any number of threads.
#include <string>
#include <tuple>
#include <vector>

#include "atlas/error.h"
#include "atlas/operands.h"
#include "cpu/stages.h"
#include "rows.h"

using namespace hologram;
using namespace hologram::cpu;
using namespace hologram::test;

namespace {

const std::vector<Shape> kShapes = {
    {1, 1, 1},     {1, 3, 1},     {1, 5, 7},     {1, 2, 64},    {1, 70, 65},
    {1, 200, 130}, {1, 3, 3072},  {1, 2, 3073},  {1, 1, 9000},  {1, 129, 300},
    {1, 1, 40000}, {1, 2, 40001}, {3, 2, 5},     {2, 3, 128},   {4, 70, 33},
    {2, 65, 3100}, {1, 40000, 1}, {3, 1000, 17}, {1, 500, 128},
};

}  // namespace

TEST(rows_broadcast) {
  Random random(1);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const Shape shape : kShapes) {
      for (const Spread spread :
           {kRows, kColumns, kPlanes, kMiddle, kPlanesAndColumns, Spread{kMiddle | kColumns}}) {
        CHECK(equal_on_all(broadcast_sum(dtype, spread), shape, random));
        RowBuilder c(ComputeType::f32);  // in place
        const uint16_t y = c.operand(dtype), w = c.spread(dtype, spread);
        c.group.operands[w].area = w;
        c.store(c.op(Op::mul, dtype, c.load(y), c.load(w)), y);
        CHECK(equal_on_all(c.group, shape, random));
      }
    }
  }
}

TEST(rows_folds) {
  Random random(2);
  for (const ComputeType type : {ComputeType::f32, ComputeType::f64, ComputeType::i64}) {
    for (const Shape shape : kShapes) {
      for (const Op op : {Op::add, Op::mul, Op::maximum, Op::minimum}) {
        for (const Spread spread : {kRows, shape.planes == 1 ? kColumns : kPlanesAndColumns}) {
          CHECK(equal_on_all(fold_of(op, type, spread, own_dtype(type)), shape, random));
        }
      }
    }
  }
}

// Softmax from its parts: three stages, of which the second is dear.
TEST(rows_softmax) {
  Random random(3);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Shape shape : kShapes) {
      RowBuilder b(ComputeType::f32);
      const uint16_t in = b.operand(dtype), out = b.spread(dtype, kEach);
      const uint16_t x = b.load(in);
      const uint16_t e =
          b.op(Op::exp, DType::f32, b.op(Op::sub, DType::f32, x, b.fold(Op::maximum, x)));
      b.store(b.op(Op::div, dtype, e, b.fold(Op::add, e)), out);
      CHECK(equal_on_all(b.group, shape, random));
      CHECK_EQ(split(b.group, Manner::keeping).element_buffers, 1);
      CHECK_EQ(split(b.group, Manner::computing).element_buffers, 0);
    }
  }
}

TEST(rows_norm_backward) {
  Random random(4);
  for (const Shape shape : kShapes) {
    if (shape.planes == 1) CHECK(equal_on_all(norm_backward(), shape, random));
  }
}

// Truth values of rows beside elements, in a group that has nothing else.
TEST(rows_of_truth) {
  Random random(5);
  for (const Shape shape : kShapes) {
    RowBuilder b(ComputeType::f32);
    const uint16_t x = b.load(b.operand(DType::b8)), y = b.load(b.spread(DType::b8, kRows));
    b.store(b.op(Op::le, DType::b8, x, y), b.spread(DType::b8, kEach));
    const uint16_t z = b.op(Op::logical_not, DType::b8, y);
    b.store(b.op(Op::logical_or, DType::b8, x, z), b.spread(DType::b8, kEach));
    CHECK(equal_on_all(b.group, shape, random));
  }
}

// The first place of the greatest element of each row: two folds, of which the second reads
// positions.
TEST(rows_first_of_the_greatest) {
  Random random(6);
  for (const ComputeType type : {ComputeType::f32, ComputeType::f64, ComputeType::i64}) {
    for (const Shape shape : kShapes) {
      RowBuilder b(type);
      const uint16_t x =
          b.load(b.operand(type == ComputeType::f32 ? DType::bf16 : b.own()), b.own());
      const uint16_t is_most = b.op(Op::eq, DType::b8, x, b.fold(Op::maximum, x));
      const uint16_t at =
          b.op(Op::where, b.own(), is_most, b.position(kColumns), b.immediate(b.own()));
      b.store(b.fold(Op::minimum, at), b.spread(DType::i64, kRows));
      b.store(at, b.spread(b.own(), kEach));
      CHECK(equal_on_all(b.group, shape, random));
    }
  }
}

// What a row says is the column of the element to be taken: of an operand, of one there is of each
// column, and of a value that is computed, also from another pick.
TEST(rows_picks) {
  Random random(8);
  for (const ComputeType type : {ComputeType::f32, ComputeType::f64, ComputeType::i64}) {
    for (const Shape shape : kShapes) {
      RowBuilder b(type);
      const auto pick = [&](uint16_t x, uint16_t at) {
        return b.add({NodeKind::pick, Op::add, b.own(), x, at});
      };
      const uint16_t in = b.operand(type == ComputeType::f32 ? DType::bf16 : b.own());
      const uint16_t x = b.load(in, b.own()), v = b.load(b.spread(b.own(), kColumns));
      const uint16_t few = b.load(b.spread(DType::i8, kRows), b.own());
      // Any column, and some that there are not.
      const uint16_t any = b.load(b.spread(DType::f16, kRows), b.own());
      const uint16_t value = b.op(Op::add, b.own(), x, b.fold(Op::maximum, x));
      const uint16_t from_value = pick(value, few);
      b.store(pick(x, few), b.spread(b.own(), kRows));
      b.store(pick(v, any), b.spread(b.own(), kRows));
      b.store(from_value, b.spread(b.own(), kRows));
      b.store(pick(x, from_value), b.spread(b.own(), kRows));
      b.store(pick(value, b.position(kRows)), b.spread(b.own(), kRows));
      // The only reader of a value, of which a tile is computed.
      b.store(pick(b.op(Op::mul, b.own(), value, v), any), b.spread(b.own(), kRows));
      b.store(pick(b.op(Op::sub, b.own(), x, few), few), b.spread(b.own(), kRows));
      b.store(b.op(Op::mul, b.own(), x, from_value), in);  // in place, after all have read it
      CHECK(equal_on_all(b.group, shape, random));
    }
  }
}

// Draws beside what there is one of for each row and column, folded both ways, and alone.
TEST(rows_draws) {
  Random random(11);
  for (const ComputeType type : {ComputeType::f32, ComputeType::f64, ComputeType::i64}) {
    for (const Shape shape : kShapes) {
      for (const bool folds : {false, true}) {
        RowBuilder b(type);
        const uint16_t x = b.operand(b.own()), drawn = random_draw(b, random);
        uint16_t value = b.op(Op::mul, b.own(), b.load(x), drawn);
        value = b.op(Op::add, b.own(), value, b.load(b.spread(b.own(), kColumns)));
        value = b.op(Op::sub, b.own(), value, b.load(b.spread(b.own(), kRows)));
        if (folds) {
          const uint16_t most = b.fold(Op::maximum, value);
          b.store(b.fold(Op::add, drawn, kPlanesAndColumns), b.spread(b.own(), kPlanesAndColumns));
          value = b.op(Op::sub, b.own(), value, most);
          b.store(most, b.spread(b.own(), kRows));
        }
        b.store(value, x);  // in place
        const uint16_t kept = b.spread(DType::b8, kEach);
        b.store(b.op(Op::lt, DType::b8, drawn, b.immediate(b.own())), kept);
        CHECK(equal_on_all(b.group, shape, random));
      }
    }
  }
}

// Positions beside operands of each spread, alone, and folded both ways.
TEST(rows_positions) {
  Random random(7);
  for (const ComputeType type : {ComputeType::f32, ComputeType::f64, ComputeType::i64}) {
    for (const Shape shape : kShapes) {
      for (const Spread which : {kColumns, kRows}) {
        for (const Spread target :
             {kRows, kColumns, shape.planes == 1 ? kEach : kPlanesAndColumns}) {
          RowBuilder b(type);
          const uint16_t at = b.position(which), x = b.load(b.operand(b.own()));
          const uint16_t wanted = b.load(b.spread(DType::i32, target), b.own());
          const uint16_t hit = b.op(Op::le, DType::b8, at, wanted);
          const uint16_t value = b.op(Op::where, b.own(), hit, x, at);
          b.store(value, b.spread(b.own(), kEach));
          b.store(at, b.spread(DType::i64, kEach));
          b.store(b.fold(Op::add, value), b.spread(b.own(), kRows));
          b.store(b.fold(Op::maximum, at), b.spread(DType::i16, kRows));
          const Spread down = shape.planes == 1 ? kColumns : kPlanesAndColumns;
          b.store(b.fold(Op::minimum, value, down), b.spread(b.own(), down));
          b.store(b.fold(Op::add, at, down), b.spread(b.own(), down));
          CHECK(equal_on_all(b.group, shape, random));
          RowBuilder c(type);  // nothing has its dimensions but the position
          const uint16_t y = c.operand(c.own());
          c.store(c.op(Op::mul, c.own(), c.load(y), c.position(which)), y);
          CHECK(equal_on_all(c.group, shape, random));
        }
      }
    }
  }
}

// ---- scans ----

namespace {

// What the scans of a compute type are of, and what they are stored as.
struct Scanned {
  ComputeType type;
  DType dtype, memory;
};
const std::vector<Scanned> kScanned = {
    {ComputeType::f32, DType::f32, DType::f32}, {ComputeType::f32, DType::bf16, DType::bf16},
    {ComputeType::f32, DType::f16, DType::f16}, {ComputeType::f64, DType::f64, DType::f64},
    {ComputeType::i64, DType::i64, DType::i64}, {ComputeType::i64, DType::i64, DType::i32},
    {ComputeType::i64, DType::i64, DType::i16}, {ComputeType::i64, DType::i64, DType::i8},
    {ComputeType::i64, DType::i64, DType::u8},
};

}  // namespace

// Of what is loaded, of what is computed before, and in place.
TEST(rows_scans) {
  Random random(31);
  for (const auto& [type, dtype, memory] : kScanned) {
    for (const Shape shape : kShapes) {
      for (const Spread axis : {kColumns, kMiddle}) {
        const Op op = random() % 2 == 0 ? Op::add : Op::mul,
                 other = op == Op::add ? Op::mul : Op::add;
        RowBuilder b(type);
        const uint16_t x = b.load(b.operand(memory), dtype), out = b.spread(memory, kEach);
        b.store(b.scan(op, dtype, x, axis), out);
        CHECK(equal_on_all(b.group, shape, random));
        RowBuilder c(type);
        const uint16_t y = c.spread(memory, kEach);
        const uint16_t bias = c.load(c.spread(memory, kColumns), dtype);
        const uint16_t sum = c.op(Op::add, dtype, c.load(y, dtype), bias);
        c.store(c.scan(other, dtype, sum, axis), y);
        CHECK(equal_on_all(c.group, shape, random));
      }
    }
  }
}

// Both ways over what softmax makes, of which the elements are stored in place of those that are
// read, and a fold over rows beside them.
TEST(rows_scans_beside_folds) {
  Random random(32);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Shape shape : kShapes) {
      RowBuilder b(ComputeType::f32);
      const uint16_t in = b.spread(dtype, kEach), x = b.load(in);
      const uint16_t e =
          b.op(Op::exp, DType::f32, b.op(Op::sub, DType::f32, x, b.fold(Op::maximum, x)));
      const uint16_t y = b.op(Op::div, dtype, e, b.fold(Op::add, e));
      b.store(y, in);
      b.store(b.scan(Op::add, dtype, y, kColumns), b.spread(dtype, kEach));
      const uint16_t down = b.scan(Op::mul, dtype, x, kMiddle);
      b.store(down, b.spread(dtype, kEach));
      b.store(down, b.spread(dtype, kEach));
      const Spread folded = shape.planes == 1 ? kColumns : kPlanesAndColumns;
      b.store(b.fold(Op::add, x, folded), b.spread(DType::f32, folded));
      CHECK(equal_on_all(b.group, shape, random));
    }
  }
}

// A stage may have nothing to do but a scan: the value is in a buffer, or the same for all.
TEST(rows_scans_of_few_values) {
  Random random(33);
  for (const Shape shape : kShapes) {
    RowBuilder b(ComputeType::f32);
    const DType f = DType::f32;
    const uint16_t in = b.spread(f, kEach), row = b.spread(f, kRows);
    const uint16_t x = b.load(in), dear = b.op(Op::exp, f, b.op(Op::sin, f, x));
    b.store(b.op(Op::add, f, b.fold(Op::add, dear), b.load(row)), row);
    b.store(b.scan(Op::add, f, dear, kMiddle), in);
    b.store(b.scan(Op::add, f, b.immediate(f), kColumns), b.spread(f, kEach));
    b.store(b.scan(Op::mul, f, b.load(b.spread(f, kColumns)), kMiddle), b.spread(f, kEach));
    CHECK(equal_on_all(b.group, shape, random));
  }
}

TEST(rows_scans_that_there_are_not) {
  const auto is_refused = [](const RowBuilder& b) {
    try {
      (void)compile(b.group, sets().front());
    } catch (const Error&) {
      return true;
    }
    return false;
  };
  for (const auto& [op, dtype, memory] :
       {std::tuple(Op::maximum, DType::f32, DType::f32),
        std::tuple(Op::add, DType::f32, DType::bf16), std::tuple(Op::add, DType::i8, DType::i8)}) {
    RowBuilder b(ComputeType::f32);
    const uint16_t x = b.load(b.operand(DType::f32));
    b.store(b.scan(op, dtype, x, kColumns), b.spread(memory, kEach));
    CHECK(is_refused(b));
  }
}

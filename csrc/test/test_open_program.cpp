// Recording: which accesses of a block overlap, and temporaries, which are blocks of nobody.
#include "atlas/open_program.h"

#include <array>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "streams.h"

using namespace hologram;
using namespace hologram::test;

TEST(window_orders_partial_overlaps) {
  Stream s;
  auto* x = s.filled({1, 2, 3, 4});
  // x[0:3] += x[1:4]: torch refuses it, but through two views written one after the other it
  // occurs.
  auto* t = s.make(3);
  s.window.record(binary(Op::add, 3, dense(t), dense(x), dense(x, DType::f32, 4)));
  s.window.record(binary(Op::mul, 3, dense(x), dense(t), number(10)));
  s.window.record(binary(Op::add, 3, dense(x, DType::f32, 4), dense(x, DType::f32, 4), number(1)));
  drop(t);
  CHECK_EQ(Stream::read(x)[0], 30.0f);
  CHECK_EQ(Stream::read(x)[1], 51.0f);
  CHECK_EQ(Stream::read(x)[2], 71.0f);
  CHECK_EQ(Stream::read(x)[3], 5.0f);
  drop(x);
}

TEST(window_orders_many_overlapping_views_of_one_block) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    Stream s;
    std::mt19937 random(seed);
    const auto pick = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint32_t>(n));
    };
    constexpr int64_t kCount = 120;
    std::vector<float> expected(kCount);
    for (float& value : expected) value = static_cast<float>(pick(9) - 4);
    auto* block = s.filled(expected);
    for (int i = 0; i < 60; ++i) {
      // Mostly short views, now and then one that joins what was apart.
      const int64_t count = pick(8) == 0 ? kCount / 2 : 1 + pick(6);
      const int64_t to = pick(kCount - count + 1), from = pick(kCount - count + 1);
      auto* t = s.make(count);
      s.window.record(
          binary(Op::mul, count, dense(t), dense(block, DType::f32, from * 4), number(-1)));
      s.window.record(
          binary(Op::add, count, dense(block, DType::f32, to * 4), dense(t), number(1)));
      drop(t);
      std::vector<float> copied(expected.begin() + from, expected.begin() + from + count);
      for (int64_t k = 0; k < count; ++k) {
        expected[static_cast<size_t>(to + k)] = 1 - copied[static_cast<size_t>(k)];
      }
    }
    const auto values = Stream::read(block);
    for (size_t k = 0; k < values.size(); ++k) CHECK_EQ(values[k], expected[k]);
    drop(block);
  }
}

// Rows, columns, tiles, diagonals and the whole of one matrix, in place: as one after the other.
TEST(window_orders_strided_views_of_one_matrix) {
  for (uint32_t seed = 0; seed < 150; ++seed) {
    Stream s;
    std::mt19937 random(seed);
    const auto pick = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint32_t>(n));
    };
    constexpr int64_t kSide = 7;
    std::vector<float> expected(kSide * kSide);
    for (float& value : expected) value = static_cast<float>(pick(9) - 4);
    auto* block = s.filled(expected);
    for (int i = 0; i < 50; ++i) {
      // Two parts of one shape.
      const int kind = static_cast<int>(pick(8));
      const int64_t rows = kind == 0 ? kSide : 1 + pick(3),
                    columns = kind == 0 ? kSide : 1 + pick(3);
      const int64_t sizes[] = {rows, columns};
      std::array<std::array<int64_t, 2>, 2> strides;  // elements
      int64_t offsets[2];
      for (size_t k = 0; k < 2; ++k) {
        // A transposed one, one that lies across, or a tile.
        const int64_t form = rows == columns ? pick(3) : 2;
        strides[k] = form == 0   ? std::array<int64_t, 2>{1, kSide}
                     : form == 1 ? std::array<int64_t, 2>{kSide + 1, 3}
                                 : std::array<int64_t, 2>{kSide, 1};
        if (kind == 0 && form == 1) strides[k] = {kSide, 1};
        const int64_t last = (rows - 1) * strides[k][0] + (columns - 1) * strides[k][1];
        offsets[k] = pick(kSide * kSide - last);
      }
      // An operand may be the result exactly, or share nothing with it: by way of a temporary.
      const auto view = [&](size_t k, std::array<int64_t, 2>& bytes) {
        bytes = {4 * strides[k][0], 4 * strides[k][1]};
        return part(block, offsets[k], bytes);
      };
      std::array<int64_t, 2> from, to;
      auto* t = s.make(rows * columns);
      s.window.record({static_cast<Code>(Op::mul),
                       DType::f32,
                       2,
                       rows * columns,
                       sizes,
                       dense(t),
                       {view(0, from), number(-1), {}}});
      s.window.record({static_cast<Code>(Op::add),
                       DType::f32,
                       2,
                       rows * columns,
                       sizes,
                       view(1, to),
                       {dense(t), number(1), {}}});
      drop(t);
      const std::vector<float> before = expected;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          const auto at = [&](size_t k) {
            return static_cast<size_t>(offsets[k] + r * strides[k][0] + c * strides[k][1]);
          };
          expected[at(1)] = 1 - before[at(0)];
        }
      }
    }
    const auto values = Stream::read(block);
    for (size_t k = 0; k < values.size(); ++k) {
      if (values[k] == expected[k]) continue;
      CHECK_EQ(std::string("seed"), std::to_string(seed));
      break;
    }
    drop(block);
  }
}

// A temporary of an operation is a value in flight; what another space reads of it needs memory.
TEST(window_temporaries_of_an_operation) {
  Stream s;
  auto* x = s.filled({1, 2, 3, 4});
  auto* y = s.filled({0, 0, 0, 0});
  auto* z = s.filled({5, 6});
  const size_t idle = s.heap.idle.size();
  const View first{nullptr, 0, DType::f32, Layout::dense, 1};
  const View second{nullptr, 0, DType::f32, Layout::dense, 2};
  const std::array<Operands, 3> inside{binary(Op::mul, 4, first, dense(x), number(2)),
                                       binary(Op::add, 4, second, first, number(1)),
                                       binary(Op::mul, 4, dense(y), second, first)};
  s.window.record(inside, 2);
  // The same numbers are other values in what is recorded next.
  View element = first;
  element.layout = Layout::scalar;
  element.offset = 4;
  const std::array<Operands, 2> across{binary(Op::add, 2, first, dense(z), number(1)),
                                       binary(Op::mul, 4, dense(x), dense(x), element)};
  s.window.record(across, 1);
  CHECK_EQ(s.heap.idle.size(), idle);
  CHECK(Stream::read(y) == std::vector<float>({6, 20, 42, 72}));
  CHECK(Stream::read(x) == std::vector<float>({7, 14, 21, 28}));
  CHECK_EQ(s.window.stats().stores_elided, 2u);
  for (auto* block : {x, y, z}) drop(block);
  CHECK_EQ(s.heap.idle.size(), s.heap.all.size());
}

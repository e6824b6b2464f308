#include "atlas/overlap.h"

#include <algorithm>
#include <random>
#include <set>

#include "check.h"

using namespace hologram;

namespace {

struct Accesses {
  Program program;
  std::vector<std::set<int64_t>> bytes;  // of each access

  Accesses() { program.shapes.emplace_back(); }

  uint16_t dense(DType dtype, int64_t offset, int64_t count) {
    program.counts.push_back(count);
    program.accesses.push_back(
        {0, dtype, Layout::dense, static_cast<uint16_t>(program.counts.size() - 1), 0});
    return add(dtype, offset, {count}, {static_cast<int64_t>(dtype_size(dtype))});
  }
  // Strides in bytes.
  uint16_t strided(DType dtype, int64_t offset, std::vector<int64_t> sizes,
                   std::vector<int64_t> strides) {
    program.shapes.push_back({sizes});
    program.accesses.push_back(
        {0, dtype, Layout::strided, 0, static_cast<uint16_t>(program.shapes.size() - 1)});
    return add(dtype, offset, sizes, strides);
  }
  bool meet(uint16_t a, uint16_t b) const {
    return std::ranges::any_of(bytes[a], [&](int64_t byte) { return bytes[b].count(byte) != 0; });
  }

 private:
  uint16_t add(DType dtype, int64_t offset, const std::vector<int64_t>& sizes,
               const std::vector<int64_t>& strides) {
    program.places.push_back({offset, -1, static_cast<uint32_t>(program.strides.size()), false});
    for (const int64_t stride : strides) program.strides.push_back(stride);
    std::vector<int64_t> begins{offset};
    for (size_t d = 0; d < sizes.size(); ++d) {
      std::vector<int64_t> more;
      for (const int64_t begin : begins) {
        for (int64_t i = 0; i < sizes[d]; ++i) more.push_back(begin + i * strides[d]);
      }
      begins = std::move(more);
    }
    auto& all = bytes.emplace_back();
    for (const int64_t begin : begins) {
      for (int64_t i = 0; i < static_cast<int64_t>(dtype_size(dtype)); ++i) all.insert(begin + i);
    }
    return static_cast<uint16_t>(bytes.size() - 1);
  }
};

std::vector<uint16_t> found(const AccessIndex& index, const Program& program, uint16_t access) {
  std::vector<uint16_t> result;
  index.find(program, access, result);
  return result;
}

}  // namespace

TEST(overlap_tells_columns_apart) {
  Accesses a;  // of a matrix of 5 rows and 8 columns of f32
  const auto column = [&](int64_t i) { return a.strided(DType::f32, 4 * i, {5}, {32}); };
  const uint16_t first = column(0), second = column(1), last = column(7);
  CHECK(!may_overlap(a.program, first, second));
  CHECK(!may_overlap(a.program, first, last));
  CHECK(may_overlap(a.program, first, column(0)));
  const uint16_t row = a.dense(DType::f32, 64, 8), part = a.dense(DType::f32, 64 + 8, 3);
  CHECK(may_overlap(a.program, first, row));
  CHECK(!may_overlap(a.program, first, part));  // columns 2 to 4
  CHECK(!may_overlap(a.program, second, part));
  // Tiles of 5 rows and 3 columns, and halves of elements.
  const uint16_t left = a.strided(DType::f32, 0, {5, 3}, {32, 4});
  const uint16_t right = a.strided(DType::f32, 12, {5, 3}, {32, 4});
  CHECK(!may_overlap(a.program, left, right));
  CHECK(may_overlap(a.program, left, a.strided(DType::f32, 8, {5, 3}, {32, 4})));
  CHECK(!may_overlap(a.program, a.strided(DType::f16, 0, {20}, {4}),
                     a.strided(DType::f16, 2, {20}, {4})));
  // A column of the wrong pitch meets others.
  CHECK(may_overlap(a.program, second, a.strided(DType::f32, 0, {5}, {36})));
}

TEST(overlap_footprints) {
  Accesses a;
  CHECK_EQ(footprint(a.program, a.dense(DType::f64, 8, 5)), 40u);
  CHECK_EQ(footprint(a.program, a.strided(DType::f32, 0, {32, 64}, {0, 4})), 256u);
  CHECK_EQ(footprint(a.program, a.strided(DType::f32, 0, {32, 64}, {4, 0})), 128u);
  CHECK_EQ(footprint(a.program, a.strided(DType::f32, 0, {3, 5}, {4, 100})), 60u);
  CHECK_EQ(footprint(a.program, a.strided(DType::f32, 0, {9, 4}, {4, 4})), 48u);  // windows
  CHECK_EQ(footprint(a.program, a.dense(DType::bf16, 0, 1)), 2u);
}

// Whatever meets is found, by comparison and in the index; and most of what does not is told apart.
TEST(overlap_is_never_missed) {
  constexpr DType kDTypes[] = {DType::b8, DType::f16, DType::f32, DType::f64};
  size_t apart = 0, reported = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint32_t>(n));
    };
    Accesses a;
    const int64_t rows = 1 + pick(6), columns = 2 + pick(8);
    for (int i = 0; i < 40; ++i) {
      const DType dtype = kDTypes[seed % 2 == 0 ? 2 : pick(4)];
      const auto item = static_cast<int64_t>(dtype_size(dtype));
      const int64_t row = columns * 8, offset = pick(rows * row / item) * item;
      switch (pick(5)) {
        case 0: a.dense(dtype, offset, 1 + pick(columns)); break;
        case 1: a.strided(dtype, offset, {1 + pick(rows)}, {row}); break;
        case 2: a.strided(dtype, offset, {1 + pick(rows), 1 + pick(3)}, {row, item}); break;
        case 3: a.strided(dtype, offset, {1 + pick(4), 1 + pick(4)}, {item * pick(5), 8}); break;
        default:
          a.strided(dtype, offset, {1 + pick(3), 1 + pick(3), 1 + pick(3)},
                    {item * pick(30), item * pick(9), item * pick(4)});
      }
    }
    const auto count = static_cast<uint16_t>(a.bytes.size());
    AccessIndex index;
    for (uint16_t i = 0; i < count; ++i) {
      const auto near = found(index, a.program, i);
      CHECK(std::ranges::is_sorted(near));
      for (uint16_t k = 0; k < i; ++k) {
        const bool meet = a.meet(i, k), may = may_overlap(a.program, i, k);
        CHECK_EQ(may, may_overlap(a.program, k, i));
        CHECK(may || !meet);
        CHECK(!may || std::ranges::binary_search(near, k));
        apart += !meet;
        reported += may && !meet;
      }
      CHECK_EQ(footprint(a.program, i) >= a.bytes[i].size(), true);
      index.insert(a.program, i);
    }
  }
  CHECK(reported * 5 < apart);
}

// What is looked at does not grow with what is elsewhere.
TEST(overlap_index_looks_at_neighbours_only) {
  Accesses a;
  constexpr int64_t kColumns = 1000;
  AccessIndex columns, pieces;
  for (int64_t i = 0; i < kColumns; ++i) {
    const uint16_t column = a.strided(DType::f32, 4 * i, {3}, {4 * kColumns});
    CHECK(found(columns, a.program, column).size() <= 1);
    columns.insert(a.program, column);
    const uint16_t piece = a.dense(DType::f32, 20 * i, 5);
    CHECK(found(pieces, a.program, piece).size() <= 1);
    pieces.insert(a.program, piece);
  }
  const uint16_t whole = a.dense(DType::f32, 0, 3 * kColumns);
  CHECK_EQ(found(columns, a.program, whole).size(), static_cast<size_t>(kColumns));
  pieces.insert(a.program, whole);
  CHECK(found(pieces, a.program, a.dense(DType::f32, 400, 5)).size() <= 4);
}

// Equal groups over other memory are one pass.
#include <vector>

#include "check.h"
#include "streams.h"

using namespace hologram;
using namespace hologram::test;

TEST(window_merges_equal_groups_over_many_tensors) {
  Stream s;
  std::vector<TestBlock*> parameters, gradients;
  for (int i = 0; i < 50; ++i) {
    parameters.push_back(s.filled(std::vector<float>(static_cast<size_t>(i % 5) + 1, 1.0f)));
    gradients.push_back(s.filled(std::vector<float>(static_cast<size_t>(i % 5) + 1, 2.0f)));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto count = static_cast<int64_t>(i % 5) + 1;
    auto* step = s.make(count);
    s.window.record(binary(Op::mul, count, dense(step), dense(gradients[i]), number(0.5f)));
    s.window.record(
        binary(Op::sub, count, dense(parameters[i]), dense(parameters[i]), dense(step)));
    drop(step);
  }
  for (auto* block : parameters) CHECK_EQ(Stream::read(block)[0], 0.0f);
  CHECK_EQ(s.window.stats().passes, 1u);
  for (auto* block : parameters) drop(block);
  for (auto* block : gradients) drop(block);
}

TEST(window_merges_views_of_one_flat_buffer) {
  Stream s;
  constexpr int64_t kViews = 300, kEach = 5;
  auto* flat = s.filled(std::vector<float>(kViews * kEach, 1.0f));
  auto* gradients = s.filled(std::vector<float>(kViews * kEach, 2.0f));
  for (int64_t i = 0; i < kViews; ++i) {
    auto* step = s.make(kEach);
    const View own = dense(flat, DType::f32, i * kEach * 4);
    s.window.record(binary(Op::mul, kEach, dense(step), dense(gradients, DType::f32, i * kEach * 4),
                           number(0.5f)));
    s.window.record(binary(Op::sub, kEach, own, own, dense(step)));
    drop(step);
  }
  for (const float value : Stream::read(flat)) CHECK_EQ(value, 0.0f);
  CHECK_EQ(s.window.stats().passes, 1u);
  for (auto* block : {flat, gradients}) drop(block);
}

TEST(window_merges_columns_of_one_matrix) {
  Stream s;
  constexpr int64_t kRows = 3, kColumns = 300;
  const int64_t sizes[] = {kRows}, strides[] = {4 * kColumns};
  auto* x = s.filled(std::vector<float>(kRows * kColumns, 1.0f));
  for (int64_t i = 0; i < kColumns; ++i) {
    const View column = part(x, i, strides);
    const auto factor = static_cast<float>(i + 2);
    s.window.record({static_cast<Code>(Op::mul),
                     DType::f32,
                     2,
                     kRows,
                     sizes,
                     column,
                     {column, number(factor), {}}});
  }
  const auto values = Stream::read(x);
  for (size_t i = 0; i < values.size(); ++i) {
    CHECK_EQ(values[i], static_cast<float>(i % kColumns + 2));
  }
  CHECK_EQ(s.window.stats().passes, 1u);
  drop(x);
}

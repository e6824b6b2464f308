// Plans that are kept: what their key tells apart, what it does not, and how many bytes they take.
#include "atlas/plan_cache.h"

#include <cstring>

#include "check.h"
#include "streams.h"

using namespace hologram;
using namespace hologram::test;

TEST(window_uses_the_immediate_of_each_flush) {
  Stream s;
  auto* x = s.filled({1, 2});
  for (const float factor : {2.0f, 1.0f, 3.0f, 4.0f, 1.0f, 5.0f}) {
    auto* y = s.make(2);
    s.window.record(binary(Op::mul, 2, dense(y), dense(x), number(factor)));
    CHECK_EQ(Stream::read(y)[1], 2 * factor);
    drop(y);
  }
  CHECK(s.window.stats().plan_hits >= 2);
  drop(x);
}

// The plan that leaves out a multiplication by one does not serve other numbers.
TEST(window_keys_special_numbers) {
  Stream s;
  auto* x = s.filled({3});
  for (const float factor : {1.0f, 1.0f, 1.0f, 2.0f, 5.0f, 7.0f, 1.0f}) {
    auto* y = s.make(1);
    s.window.record(binary(Op::mul, 1, dense(y), dense(x), number(factor)));
    CHECK_EQ(Stream::read(y)[0], 3 * factor);
    drop(y);
  }
  drop(x);
}

// The plan of a program whose temporary is dead does not serve the one that keeps it.
TEST(window_keys_what_lives) {
  Stream s;
  auto* x = s.filled({1, 2, 3, 4});
  for (const bool kept : {false, false, false, true, false, true, true}) {
    auto* t = s.make(4);
    auto* y = s.make(4);
    std::memset(t->data, 0x7b, 16);
    s.window.record(binary(Op::mul, 4, dense(t), dense(x), number(3)));
    s.window.record(binary(Op::add, 4, dense(y), dense(t), dense(x)));
    if (!kept) drop(t);
    CHECK_EQ(Stream::read(y)[2], 12.0f);
    if (kept) {
      CHECK_EQ(Stream::read(t)[2], 9.0f);
      drop(t);
    }
    drop(y);
  }
  drop(x);
}

// Which accesses overlap is part of the key: equal instructions on other parts of a block.
TEST(window_keys_overlaps) {
  Stream s;
  for (const int64_t offset : {8, 8, 8, 4, 4, 8, 0}) {
    auto* x = s.filled({1, 2, 3, 4});
    auto* y = s.make(2);
    s.window.record(binary(Op::mul, 2, dense(x), dense(x), number(10)));
    s.window.record(binary(Op::add, 2, dense(y), dense(x, DType::f32, offset), number(0.5f)));
    s.window.record(binary(Op::add, 2, dense(x), dense(x), dense(y)));
    const float first = offset == 8 ? 3.0f : offset == 4 ? 20.0f : 10.0f;
    CHECK_EQ(Stream::read(y)[0], first + 0.5f);
    CHECK_EQ(Stream::read(x)[0], 10 + first + 0.5f);
    drop(x);
    drop(y);
  }
}

TEST(window_bounds_the_bytes_of_plans) {
  Stream s;
  auto* x = s.filled({0, 0});
  const auto run = [&](size_t instructions, size_t pattern) {
    for (size_t i = 0; i < instructions; ++i) {
      const View own = dense(x, DType::f32, (pattern >> i % 16 & 1) != 0 ? 4 : 0);
      s.window.record(binary(Op::add, 1, own, own, number(1)));
    }
    s.window.flush(FlushReason::user);
  };
  for (int round = 0; round < 3; ++round) run(3, 1);
  const auto small = s.window.stats();
  CHECK(small.plan_bytes > 100 && small.plan_bytes < 10'000);
  CHECK_EQ(small.plan_hits, 1u);
  s.window.reset_stats();
  CHECK_EQ(s.window.stats().plan_bytes, small.plan_bytes);
  // Long programs, until plans have to go.
  for (size_t pattern = 2; s.window.stats().plan_evictions == 0 && pattern < 4000; ++pattern) {
    for (int round = 0; round < 2; ++round) run(Window::kMostInstructions, pattern);
    CHECK(s.window.stats().plan_bytes <= PlanCache::kMostBytes);
  }
  CHECK(s.window.stats().plan_evictions > 0);
  s.window.reset_stats();
  run(3, 1);  // was not used for the longest time
  CHECK_EQ(s.window.stats().plan_misses, 1u);
  s.window.drop_plan();
  s.plans.clear();
  CHECK_EQ(s.window.stats().plan_bytes, 0u);
  s.window.reset_stats();
  for (int round = 0; round < 3; ++round) run(3, 1);
  CHECK_EQ(s.window.stats().plan_hits, 1u);
  CHECK_EQ(s.window.stats().plan_bytes, small.plan_bytes);
  drop(x);
}

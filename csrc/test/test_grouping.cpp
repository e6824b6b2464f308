// Which instructions are computed together, and what a value is that passes from one to the next.
#include "check.h"
#include "streams.h"

using namespace hologram;
using namespace hologram::test;

TEST(window_runs_a_chain_in_one_pass) {
  Stream s;
  auto* x = s.filled({1, -2, 3});
  auto* t = s.make(3);
  auto* y = s.make(3);
  s.window.record(binary(Op::mul, 3, dense(t), dense(x), number(2)));
  s.window.record(binary(Op::add, 3, dense(y), dense(t), dense(x)));
  CHECK(s.window.pending(*x));
  drop(t);  // a dead temporary
  CHECK_EQ(Stream::read(y)[1], -6.0f);
  CHECK(!s.window.pending(*y));
  const WindowStats stats = s.window.stats();
  CHECK_EQ(stats.recorded, 2u);
  CHECK_EQ(stats.executed, 2u);
  CHECK_EQ(stats.passes, 1u);
  CHECK_EQ(stats.stores_elided, 1u);
  CHECK_EQ(stats.flushes[static_cast<size_t>(FlushReason::read)], 1u);
  drop(x);
  drop(y);
}

TEST(window_rounds_what_passes_through_a_narrower_dtype) {
  Stream s;
  auto* x = s.filled({1 + 1.0f / 1024, 2.75f});
  for (const DType narrow : {DType::bf16, DType::i64, DType::f16}) {
    auto* t = s.make(4);
    auto* y = s.make(2);
    s.window.record({kCopy, DType::f32, 1, 2, {}, dense(t, narrow), {dense(x), {}, {}}});
    s.window.record(binary(Op::add, 2, dense(y), dense(t, narrow), number(0.5f)));
    drop(t);
    const auto values = Stream::read(y);
    CHECK_EQ(values[0], narrow == DType::f16 ? 1.5f + 1.0f / 1024 : 1.5f);
    CHECK_EQ(values[1], narrow == DType::i64 ? 2.5f : 3.25f);
    drop(y);
  }
  drop(x);
}

// What is computed before a scan joins it; what reads it comes after it, in a pass of its own.
TEST(grouping_a_scan_is_only_stored) {
  Stream s;
  for (const Spread axis : {kColumns, kMiddle}) {
    auto* x = s.filled({1, -2, 3, 4, 5, 6});
    auto* t = s.make(6);
    auto* y = s.make(6);
    auto* z = s.make(6);
    const WindowStats before = s.window.stats();
    s.window.record(binary(Op::mul, 6, dense(t), dense(x), number(2)));
    s.window.record(
        {scan_of(Op::add, axis), DType::f32, 1, 6, {}, dense(y), {dense(t), {}, {}}, {1, 2, 3}});
    drop(t);
    s.window.record(binary(Op::add, 6, dense(z), dense(y), dense(x)));
    // In place, after what has read it.
    s.window.record(
        {scan_of(Op::mul, axis), DType::f32, 1, 6, {}, dense(y), {dense(y), {}, {}}, {1, 2, 3}});
    const auto sums = Stream::read(z), products = Stream::read(y);
    CHECK_EQ(sums[5], axis == kColumns ? 36.0f : 24.0f);
    CHECK_EQ(sums[2], axis == kColumns ? 7.0f : 9.0f);
    CHECK_EQ(products[4], axis == kColumns ? 144.0f : -24.0f);
    CHECK_EQ(s.window.stats().passes - before.passes, 2u);
    CHECK_EQ(s.window.stats().stores_elided - before.stores_elided, 1u);
    for (auto* block : {x, y, z}) drop(block);
  }
}

TEST(grouping_a_number_that_was_stored_is_read_as_one) {
  Stream s;
  auto* x = s.filled({1, -2, 3});
  for (const bool stays : {false, true}) {
    auto* t = s.make(1);
    auto* y = s.make(3);
    const WindowStats before = s.window.stats();
    s.window.record({kCopy, DType::f32, 1, 1, {}, dense(t), {number(4), {}, {}}});
    View one = dense(t);
    one.layout = Layout::scalar;
    s.window.record(binary(Op::mul, 3, dense(y), dense(x), one));
    if (!stays) drop(t);
    CHECK_EQ(Stream::read(y)[1], -8.0f);
    CHECK_EQ(s.window.stats().passes - before.passes, stays ? 2u : 1u);
    if (stays) {
      CHECK_EQ(Stream::read(t)[0], 4.0f);
      drop(t);
    }
    drop(y);
  }
  drop(x);
}

TEST(grouping_a_number_is_not_read_where_memory_has_changed) {
  Stream s;
  auto* x = s.filled({1, -2, 3});
  auto* t = s.make(1);
  auto* y = s.make(3);
  View one = dense(t);
  one.layout = Layout::scalar;
  s.window.record({kCopy, DType::f32, 1, 1, {}, dense(t), {number(4), {}, {}}});
  s.window.record(binary(Op::add, 1, dense(t), dense(t), number(1)));
  s.window.record(binary(Op::mul, 3, dense(y), dense(x), one));
  drop(t);
  CHECK_EQ(Stream::read(y)[1], -10.0f);
  drop(x);
  drop(y);
}

// Programs that are measured: what nobody reads is computed, once for each turn of the loop.
#include "atlas/keep.h"

#include <vector>

#include "check.h"
#include "streams.h"

using namespace hologram;
using namespace hologram::test;

namespace {

// Counts the bytes of scratch that were asked for.
struct Counting final : Interpreter {
  size_t scratch = 0;
  void* allocate_scratch(size_t bytes, Queue& queue) override {
    scratch += bytes;
    return Interpreter::allocate_scratch(bytes, queue);
  }
};

// Sets keeping for a scope.
struct Keeping {
  Keeping() { Window::set_keeping(true); }
  ~Keeping() { Window::set_keeping(false); }
};

// What a loop computes and drops: mul, add and mul, each in a block of its own.
template <class S>
void turn_of(S& s, TestBlock* x, int64_t count) {
  auto* t = s.make(count);
  auto* u = s.make(count);
  auto* y = s.make(count);
  s.window.record(binary(Op::mul, count, dense(t), dense(x), number(2)));
  s.window.record(binary(Op::add, count, dense(u), dense(t), number(1)));
  drop(t);
  s.window.record(binary(Op::mul, count, dense(y), dense(u), dense(u)));
  drop(u);
  drop(y);
}

}  // namespace

TEST(window_keep_computes_what_nobody_reads) {
  Stream s;
  auto* x = s.filled({1, -2, 3});
  turn_of(s, x, 3);
  s.window.flush(FlushReason::user);
  CHECK_EQ(s.window.stats().passes, 0u);
  CHECK_EQ(s.window.stats().stores_elided, 3u);
  const Keeping keeping;
  for (int i = 0; i < 10; ++i) turn_of(s, x, 3);
  s.window.flush(FlushReason::user);
  const WindowStats stats = s.window.stats();
  CHECK_EQ(stats.passes, 10u);
  CHECK_EQ(stats.stores_elided, 3u + 20u);
  CHECK_EQ(stats.bytes_moved, 10u * 2 * 12);  // x is loaded, the result stored
  CHECK_EQ(Stream::read(x)[1], -2.0f);
  drop(x);
}

TEST(window_keep_equals_what_is_not_kept) {
  Stream s;
  auto* x = s.filled({1, -2, 3});
  std::vector<TestBlock*> kept;
  {
    const Keeping keeping;
    for (int i = 0; i < 3; ++i) {
      kept.push_back(s.make(3));
      s.window.record(binary(Op::mul, 3, dense(kept.back()), dense(x), number(2)));
    }
    s.window.flush(FlushReason::user);
  }
  CHECK_EQ(s.window.stats().passes, 3u);  // a list of results costs what a loop costs
  for (auto* y : kept) {
    CHECK_EQ(Stream::read(y)[1], -4.0f);
    drop(y);
  }
  drop(x);
}

// An expression that uses a value twice computes it once, kept or not.
TEST(window_keep_merges_equal_values_of_a_turn) {
  Stream s;
  const Keeping keeping;
  auto* x = s.filled({1, -2, 3});
  for (int turn = 0; turn < 4; ++turn) {
    auto* a = s.make(3);
    auto* b = s.make(3);
    auto* y = s.make(3);
    s.window.record(binary(Op::mul, 3, dense(a), dense(x), dense(x)));
    s.window.record(binary(Op::mul, 3, dense(b), dense(x), dense(x)));
    s.window.record(binary(Op::add, 3, dense(y), dense(a), dense(b)));
    drop(a);
    drop(b);
    drop(y);
  }
  s.window.flush(FlushReason::user);
  CHECK_EQ(s.window.stats().passes, 4u);
  CHECK_EQ(s.window.stats().bytes_moved, 4u * 2 * 12);
  drop(x);
}

TEST(window_keep_ends_a_turn_where_a_result_is_overwritten) {
  Stream s;
  auto* x = s.filled({1, -2, 3});
  auto* w = s.filled({5, 5, 5});
  auto* y = s.make(3);
  const auto overwrite = [&] {
    s.window.record(binary(Op::mul, 3, dense(y), dense(x), dense(x)));
    s.window.record(binary(Op::mul, 3, dense(y), dense(w), dense(x)));
  };
  overwrite();
  s.window.flush(FlushReason::user);
  CHECK_EQ(s.window.stats().passes, 1u);
  {
    const Keeping keeping;
    overwrite();
    s.window.flush(FlushReason::user);
  }
  CHECK_EQ(s.window.stats().passes, 3u);
  CHECK_EQ(Stream::read(y)[2], 15.0f);
  drop(x);
  drop(w);
  drop(y);
}

// What updates in place is read by the next update: a chain, kept or not.
TEST(window_keep_leaves_chains_fused) {
  Stream s;
  const Keeping keeping;
  auto* x = s.filled({1, -2, 3});
  for (int i = 0; i < 5; ++i) s.window.record(binary(Op::add, 3, dense(x), dense(x), number(1)));
  CHECK_EQ(Stream::read(x)[0], 6.0f);
  CHECK_EQ(s.window.stats().passes, 1u);
  drop(x);
}

// The turns of a long loop take the same memory for what they drop.
TEST(window_keep_needs_memory_for_one_turn) {
  StreamOn<Counting> s;
  const Keeping keeping;
  auto* x = s.filled(std::vector<float>(1000, 1.0f));
  for (int i = 0; i < 100; ++i) turn_of(s, x, 1000);
  s.window.flush(FlushReason::user);
  CHECK_EQ(s.window.stats().passes, 100u);
  CHECK_EQ(s.backend.scratch, 4032u);  // 4,000 bytes in whole cache lines
  drop(x);
}

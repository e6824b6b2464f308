// Immediates: equal ones of a program are one value, by their bits.
#include "atlas/immediates.h"

#include "check.h"
#include "streams.h"

using namespace hologram;
using namespace hologram::test;

// The same numbers are one value, by their bits.
TEST(window_computes_with_equal_numbers_once) {
  Stream s;
  auto* x = s.filled({1, -2, 3});
  const auto nodes = [&](float first, float second) {
    auto* a = s.make(3);
    auto* b = s.make(3);
    auto* y = s.make(3);
    s.window.start_capture();
    s.window.record(binary(Op::mul, 3, dense(a), dense(x), number(first)));
    s.window.record(binary(Op::mul, 3, dense(b), dense(x), number(second)));
    s.window.record(binary(Op::sub, 3, dense(y), dense(a), dense(b)));
    drop(a);
    drop(b);
    const auto values = Stream::read(y);
    for (size_t i = 0; i < 3; ++i) {
      const float operands[] = {1, -2, 3};
      CHECK_EQ(values[i], operands[i] * first - operands[i] * second);
    }
    drop(y);
    return s.window.end_capture().front().plan.batches.front().group.nodes.size();
  };
  for (int round = 0; round < 3; ++round) {  // also with plans from the cache
    CHECK_EQ(nodes(2.5f, 2.5f), 5u);         // load, number, mul, sub, store
    CHECK_EQ(nodes(2.5f, 3.5f), 7u);
    CHECK_EQ(nodes(3.5f, 3.5f), 5u);
    CHECK_EQ(nodes(0.0f, -0.0f), 7u);
  }
  CHECK(s.window.stats().plan_hits >= 3);
  drop(x);
}

// What of a group has to be computed and stored.
#include "check.h"
#include "streams.h"

using namespace hologram;
using namespace hologram::test;

TEST(window_keeps_both_stores_of_equal_values) {
  Stream s;
  auto* a = s.filled({1, 2});
  auto* y = s.make(2);
  auto* z = s.make(2);
  s.window.record(binary(Op::mul, 2, dense(y), dense(a), dense(a)));
  s.window.record(binary(Op::mul, 2, dense(z), dense(a), dense(a)));
  CHECK_EQ(Stream::read(y)[1], 4.0f);
  CHECK_EQ(Stream::read(z)[1], 4.0f);
  CHECK_EQ(s.window.stats().passes, 1u);
  for (auto* block : {a, y, z}) drop(block);
}

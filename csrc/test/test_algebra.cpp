// The algebra of the canonicaliser: what equals what to the last bit, and what is contracted.
#include "atlas/algebra.h"

#include <cmath>

#include "check.h"
#include "streams.h"

using namespace hologram;
using namespace hologram::test;

TEST(window_does_not_drop_a_negative_zero) {
  Stream s;
  auto* x = s.filled({-0.0f});
  auto* y = s.make(1);
  auto* z = s.make(1);
  s.window.record(binary(Op::add, 1, dense(y), dense(x), number(0.0f)));
  s.window.record(binary(Op::add, 1, dense(z), dense(x), number(-0.0f)));
  CHECK(!std::signbit(Stream::read(y)[0]));
  CHECK(std::signbit(Stream::read(z)[0]));
  for (auto* block : {x, y, z}) drop(block);
}

TEST(window_contracts_only_when_asked) {
  Stream s;
  const float x = 1 + 0x1p-12f, square = 1 + 0x1p-11f;  // x * x is 2^-24 more
  auto* a = s.filled({x});
  auto* c = s.filled({1});
  enum Form { a_a_plus_c, c_plus_a_a, a_a_minus_c, c_minus_a_a };
  const auto compute = [&](Form form, bool keep) {
    auto* product = s.make(1);
    auto* y = s.make(1);
    s.window.record(binary(Op::mul, 1, dense(product), dense(a), dense(a)));
    const bool first = form == a_a_plus_c || form == a_a_minus_c;
    const Op op = form <= c_plus_a_a ? Op::add : Op::sub;
    s.window.record(
        binary(op, 1, dense(y), dense(first ? product : c), dense(first ? c : product)));
    if (!keep) drop(product);
    const float result = Stream::read(y)[0];
    if (keep) {
      CHECK_EQ(Stream::read(product)[0], square);
      drop(product);
    }
    drop(y);
    return result;
  };
  // Each several times, so that plans are taken from the cache.
  for (int round = 0; round < 3; ++round) {
    for (const bool contracts : {false, true}) {
      Window::set_contracting(contracts);
      for (const bool keep : {false, true}) {
        const float more = contracts && !keep ? 0x1p-24f : 0;
        CHECK_EQ(compute(a_a_plus_c, keep), square + 1);
        CHECK_EQ(compute(c_plus_a_a, keep), square + 1);
        CHECK_EQ(compute(a_a_minus_c, keep), 0x1p-11f + more);
        CHECK_EQ(compute(c_minus_a_a, keep), -(0x1p-11f + more));
      }
    }
  }
  Window::set_contracting(false);
  CHECK(s.window.stats().plan_hits > 0);
  for (auto* block : {a, c}) drop(block);
}

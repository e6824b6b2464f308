// Immediates: equal ones of a program are one value, by their bits.
#include "atlas/immediates.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

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

namespace {

// Groups know which numbers bf16 has: others are other programs, whatever came before.
bool is_of_bf16(Stream& s, DType dtype, float value) {
  auto* x = s.filled({1, -2, 3});
  auto* y = s.make(3);
  s.window.start_capture();
  s.window.record(binary(Op::mul, 3, dense(y, dtype), dense(x, dtype), number(value), dtype));
  s.window.flush(FlushReason::user);
  drop(x);
  drop(y);
  const auto flushed = s.window.end_capture();
  bool is_held = false;
  for (const Node& node : flushed.front().plan.batches.front().group.nodes) {
    is_held = is_held || (node.kind == NodeKind::immediate && node.b != 0);
  }
  return is_held;
}

// What a program holds of a number.
using Held = std::pair<uint64_t, Special>;

template <class T, class Bits>
Held held_float(uint64_t bits) {
  const T x = std::bit_cast<T>(static_cast<Bits>(bits));
  if (x != x) return {std::bit_cast<Bits>(std::numeric_limits<T>::quiet_NaN()), Special::none};
  if (x == 0) return {bits, std::signbit(x) ? Special::negative_zero : Special::zero};
  return {bits, x == 1 ? Special::one : x == -1 ? Special::minus_one : Special::none};
}

struct Number {
  DType dtype;
  uint64_t bits;

  Held held() const {
    if (dtype == DType::f32) return held_float<float, uint32_t>(bits);
    if (dtype == DType::f64) return held_float<double, uint64_t>(bits);
    return {bits, bits == 0 ? Special::zero : bits == 1 ? Special::one : Special::none};
  }
  auto operator<=>(const Number&) const = default;
};

// The same bits as a number of each dtype that has so many.
void add(std::set<Number>& numbers, uint64_t bits) {
  if (bits >> 32 == 0) numbers.insert({DType::f32, bits});
  numbers.insert({DType::f64, bits});
  numbers.insert({DType::i64, bits});
}

// Of all signs, quiet and not, with payloads.
std::vector<Number> nans() {
  std::vector<Number> numbers;
  for (uint64_t payload = 1; payload < 100; payload += 7) {
    for (const uint64_t quiet : {0u, 1u}) {
      for (const uint64_t sign : {0u, 1u}) {
        numbers.push_back({DType::f32, sign << 31 | 0x7f80'0000 | quiet << 22 | payload});
        numbers.push_back({DType::f64, sign << 63 | 0x7ff0'0000'0000'0000 | quiet << 51 | payload});
      }
    }
  }
  return numbers;
}

std::vector<Number> many_numbers(std::mt19937& random) {
  std::set<Number> numbers;
  // What is easily confused.
  for (const Number& nan : nans()) add(numbers, nan.bits);  // none of an integer
  for (const float value : {0.0f, -0.0f, 1.0f, -1.0f, 2.0f}) {
    add(numbers, std::bit_cast<uint32_t>(value));
    add(numbers, std::bit_cast<uint64_t>(static_cast<double>(value)));
    add(numbers, static_cast<uint64_t>(static_cast<int64_t>(value)));
  }
  // Of one hash: multiplied with what the hash multiplies with, they are 1, 2, 3 ...
  uint64_t inverse = 1;
  for (int i = 0; i < 6; ++i) inverse *= 2 - 0x9e3779b97f4a7c15u * inverse;
  for (uint64_t i = 1; i <= 500; ++i) numbers.insert({DType::i64, i * inverse});
  while (numbers.size() < 5000) {
    const uint64_t high = random(), low = random();
    numbers.insert({DType::f32, high});
    numbers.insert({DType::f64, high << 32 | low});
    numbers.insert({DType::i64, low});
  }
  return {numbers.begin(), numbers.end()};
}

}  // namespace

TEST(window_says_which_numbers_bf16_has) {
  Stream s;
  const float inf = std::numeric_limits<float>::infinity();
  for (int round = 0; round < 2; ++round) {
    for (const float x : {0.f, -0.f, 1.f, -1.f, 0.5f, -3.f, 0x1.fep7f, inf, 0x1p-133f}) {
      CHECK(x == 1.f || is_of_bf16(s, DType::bf16, x));  // times one is nothing to compute
      CHECK(!is_of_bf16(s, DType::f32, x));
    }
    for (const float x : {0.1f, 0x1.ff8p7f, 1e-40f, std::numeric_limits<float>::quiet_NaN()}) {
      CHECK(!is_of_bf16(s, DType::bf16, x));
    }
  }
}

TEST(window_holds_each_number_of_a_program_once) {
  Stream s;
  std::mt19937 random(17);
  const std::map<DType, TestBlock*> y = {
      {DType::f32, s.make(2)}, {DType::f64, s.make(2)}, {DType::i64, s.make(2)}};
  // Records each of the numbers twice. Returns how many the program holds.
  const auto held_of = [&](std::vector<Number> numbers) {
    std::vector<Number> recorded;
    for (int round = 0; round < 2; ++round) {
      std::shuffle(numbers.begin(), numbers.end(), random);
      recorded.insert(recorded.end(), numbers.begin(), numbers.end());
    }
    s.window.start_capture();
    for (const Number& each : recorded) {
      const View value{nullptr, static_cast<int64_t>(each.bits), each.dtype, Layout::scalar};
      const View out = dense(y.at(each.dtype), each.dtype);
      s.window.record({kCopy, each.dtype, 1, 1, {}, out, {value, {}, {}}});
    }
    s.window.flush(FlushReason::user);
    const auto flushed = s.window.end_capture();
    CHECK_EQ(flushed.size(), 1u);
    const Program& program = flushed.front().program;
    std::vector<Held> held;
    for (size_t i = 0; i < program.immediates.size(); ++i) {
      held.emplace_back(program.immediates[i], program.specials[i]);
    }
    CHECK_EQ(program.code.size(), recorded.size());
    size_t wrong = 0;
    for (size_t i = 0; i < recorded.size(); ++i) {
      const Source source = program.code[i].in[0];
      const size_t index = source & ~kImmediate;
      const bool right =
          (source & kImmediate) != 0 && index < held.size() && held[index] == recorded[i].held();
      wrong += !right;
    }
    CHECK_EQ(wrong, 0u);
    std::set<Held> expected;
    for (const Number& each : numbers) expected.insert(each.held());
    std::sort(held.begin(), held.end());
    CHECK(std::equal(held.begin(), held.end(), expected.begin(), expected.end()));
    return held.size();
  };
  const std::vector<Number> stock = many_numbers(random);
  // Long ones and short ones: what an earlier program has left lies behind the end of the next one
  // at first, and later among its own.
  for (const int count : {2000, 2000, 15, 400, 2000, 1, 2000, 400, 2000}) {
    std::vector<Number> numbers;
    std::sample(stock.begin(), stock.end(), std::back_inserter(numbers), count, random);
    const size_t held = held_of(numbers);
    CHECK(count < 2000 || held > 1900);  // few are equal
  }
  CHECK_EQ(held_of(nans()), 2u);  // one of each dtype
  for (const auto& [dtype, block] : y) drop(block);
}

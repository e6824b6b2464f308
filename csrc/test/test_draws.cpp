// Draws as instructions of a window: what is merged, cached, dropped, refused and said of them.
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "atlas/canonicalise.h"
#include "atlas/checker.h"
#include "atlas/philox.h"
#include "atlas/random.h"
#include "check.h"
#include "streams.h"

using namespace hologram;
using namespace hologram::test;

namespace {

View raw(uint64_t bits) {
  return {nullptr, static_cast<int64_t>(bits), DType::i64, Layout::scalar};
}

void uniform(Stream& s, TestBlock* out, uint64_t seed, uint64_t offset) {
  const auto count = static_cast<int64_t>(out->bytes / 4);
  s.window.record({code_of(Draw::uniform),
                   DType::f32,
                   kDrawImmediates,
                   count,
                   {},
                   dense(out),
                   {raw(seed), raw(offset), raw(0)}});
}

// So many numbers of a counter on.
std::vector<float> numbers(uint64_t seed, uint64_t offset, size_t count) {
  std::vector<float> all;
  for (size_t i = 0; i < count; ++i) {
    all.push_back(static_cast<float>(Philox::block(seed, offset + i / 4)[i % 4] >> 8) * 0x1p-24f);
  }
  return all;
}

}  // namespace

TEST(window_draws_are_no_numbers_of_the_key_and_never_equal) {
  Stream s;
  // Bits of a NaN, of a zero and of a one, which immediates would lose or be known by.
  const uint64_t seeds[] = {0x7fc1'2345u, 0, 1, 7};
  for (const uint64_t seed : seeds) {
    auto* x = s.make(9);
    auto* y = s.make(9);
    uniform(s, x, seed, 0);
    uniform(s, y, seed, 3);
    s.window.record(binary(Op::add, 9, dense(y), dense(x), dense(y)));
    const auto first = numbers(seed, 0, 9), second = numbers(seed, 3, 9);
    CHECK(Stream::read(x) == first);
    const auto sums = Stream::read(y);
    for (size_t i = 0; i < sums.size(); ++i) CHECK(sums[i] == first[i] + second[i]);
    for (auto* block : {x, y}) drop(block);
  }
  CHECK_EQ(s.window.stats().passes, std::size(seeds));
  CHECK_EQ(s.window.stats().plan_hits, std::size(seeds) - 2);  // from the second sight on
}

TEST(window_drops_draws_that_nobody_needs) {
  Stream s;
  auto* x = s.make(4);
  auto* y = s.make(4);
  uniform(s, x, 1, 0);
  uniform(s, y, 1, 1);
  drop(x);
  CHECK(Stream::read(y) == numbers(1, 1, 4));
  CHECK_EQ(s.window.stats().passes, 1u);
  drop(y);
}

TEST(window_draws_have_text) {
  Stream s;
  s.window.start_capture();
  auto* x = s.make(2);
  uniform(s, x, 5, 8);
  s.window.flush(FlushReason::user);
  const auto flushed = s.window.end_capture();
  CHECK_EQ(to_string(flushed.at(0).program), std::string("b0:f32[2] = uniform.f32(5, 8, 0)\n"));
  CHECK_EQ(to_string(flushed.at(0).plan, flushed.at(0).program),
           std::string("pass 1: f32[2], 0 B loaded, 8 B stored\n"
                       "  %0 = uniform.f32 5, 8, 0\n"
                       "  store b0:f32[2], %0\n"));
  CHECK_EQ(operation_names(flushed.at(0).plan.batches.front()), std::string("uniform"));
  drop(x);
}

TEST(checker_finds_wrong_draws) {
  Program program;
  program.counts.push_back(4);
  program.slots.push_back({false, true});
  program.accesses.push_back({0, DType::f32, Layout::dense, 0, 0});
  for (int i = 0; i < kDrawImmediates; ++i) program.specials.push_back(Special::none);
  const auto immediate = [](int i) { return static_cast<Source>(kImmediate | i); };
  program.code.push_back({code_of(Draw::uniform),
                          DType::f32,
                          kDrawImmediates,
                          0,
                          {immediate(0), immediate(1), immediate(2)},
                          0});
  validate(program);
  const Plan plan = canonicalise(program);
  validate(plan, program);
  const auto wrong_plan = [&](auto&& damage, const char* what) {
    Plan copy = plan;
    damage(copy.batches.front().group);
    CHECK_THROWS(validate(copy, program), std::logic_error, what);
  };
  wrong_plan([](Group& g) { g.nodes.front().b = kDrawCount; }, "no such draw");
  wrong_plan([](Group& g) { g.nodes.front().dtype = DType::i64; }, "no such draw");
  wrong_plan([](Group& g) { g.nodes.front().a = 1; }, "an immediate is missing");
  const auto wrong = [&](auto&& damage, const char* what) {
    Program copy = program;
    damage(copy.code[0]);
    CHECK_THROWS(validate(copy), std::logic_error, what);
  };
  wrong([](Instruction& i) { i.code = kDraw + kDrawCount; }, "no such draw");
  wrong([](Instruction& i) { i.dtype = DType::i64; }, "no such draw");
  wrong([](Instruction& i) { i.in[1] = 0; }, "a draw has an operand");
}

// Calls: their place among the instructions, their memory, what becomes of those that fail.
#include "atlas/call.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "atlas/checker.h"
#include "check.h"
#include "streams.h"

using namespace hologram;
using namespace hologram::test;

namespace {

// to[i] = from[i] + from[n - 1 - i]: of no instruction's kind, since each element needs two.
class Fold final : public Call {
 public:
  explicit Fold(int64_t count) : count_(static_cast<size_t>(count)) {}
  void run(std::span<void* const> memory) override {
    CHECK_EQ(memory.size(), 2u);
    const auto* const from = static_cast<const float*>(memory[0]);
    auto* const to = static_cast<float*>(memory[1]);
    for (size_t i = 0; i < count_; ++i) to[i] = from[i] + from[count_ - 1 - i];
  }

 private:
  size_t count_;
};

class Failing final : public Call {
 public:
  void run(std::span<void* const>) override { throw Error("the call failed"); }
};

Range range(TestBlock* block, int64_t count, int64_t offset = 0) {
  return {block, 4 * offset, DType::f32, count};
}

void record(Window& window, std::vector<Range> reads, std::vector<Range> writes,
            std::shared_ptr<Call> body) {
  CallOperands call{"test::fold", reads, writes, std::move(body)};
  window.record(call);
}
void fold(Window& window, TestBlock* to, TestBlock* from, int64_t count) {
  record(window, {range(from, count)}, {range(to, count)}, std::make_shared<Fold>(count));
}

}  // namespace

TEST(call_stands_between_what_it_reads_and_what_reads_it) {
  Stream s;
  auto* x = s.filled({1, 2, 3});
  auto* t = s.make(3);
  auto* y = s.make(3);
  auto* z = s.make(3);
  s.window.record(binary(Op::mul, 3, dense(t), dense(x), number(2)));
  fold(s.window, y, t, 3);
  s.window.record(binary(Op::add, 3, dense(z), dense(y), dense(t)));
  CHECK_EQ(s.window.stats().executed, 0u);
  const auto values = Stream::read(z);
  CHECK_EQ(values[0], 10.0f);
  CHECK_EQ(values[2], 14.0f);
  const WindowStats stats = s.window.stats();
  CHECK_EQ(stats.recorded, 3u);
  CHECK_EQ(stats.executed, 3u);
  CHECK_EQ(stats.calls, 1u);
  CHECK_EQ(stats.passes, 2u);
  for (auto* block : {x, t, y, z}) drop(block);
  CHECK_EQ(s.heap.idle.size(), s.heap.all.size());
}

// What a call touches has memory while the program runs, though its owner has gone, and others have
// what he had.
TEST(call_of_blocks_that_are_gone) {
  Stream s;
  auto* x = s.filled({1, 2, 3});
  auto* t = s.make(3);
  auto* y = s.make(3);
  auto* z = s.make(3);
  s.window.record(binary(Op::mul, 3, dense(t), dense(x), number(2)));
  fold(s.window, y, t, 3);
  drop(t);
  s.window.record(binary(Op::add, 3, dense(z), dense(y), number(1)));
  drop(y);
  CHECK_EQ(s.heap.retired, 0);
  auto* other = s.make(3);
  s.window.record(binary(Op::add, 3, dense(other), dense(x), number(0)));
  CHECK_EQ(Stream::read(z)[0], 9.0f);
  CHECK_EQ(Stream::read(other)[0], 1.0f);
  for (auto* block : {x, z, other}) drop(block);
  CHECK_EQ(s.heap.idle.size(), s.heap.all.size());
}

// A write after a call that reads, to a part of the bytes; and one before a call that overwrites.
TEST(call_is_in_the_order_of_memory) {
  Stream s;
  auto* x = s.filled({1, 2, 3, 4});
  auto* y = s.make(4);
  fold(s.window, y, x, 4);
  s.window.record(binary(Op::mul, 2, dense(x), dense(x), number(100)));
  auto* z = s.make(4);
  s.window.record(binary(Op::add, 4, dense(z), dense(y), dense(x)));
  fold(s.window, y, x, 4);
  CHECK_EQ(Stream::read(z)[0], 105.0f);
  CHECK_EQ(Stream::read(z)[3], 9.0f);
  CHECK_EQ(Stream::read(y)[0], 104.0f);
  for (auto* block : {x, y, z}) drop(block);
}

TEST(call_that_nobody_reads_is_made) {
  Stream s;
  auto* x = s.filled({1, 2});
  auto* y = s.make(2);
  fold(s.window, y, x, 2);
  drop(y);
  s.window.flush(FlushReason::user);
  CHECK_EQ(s.window.stats().calls, 1u);
  drop(x);
  CHECK_EQ(s.heap.idle.size(), s.heap.all.size());
}

TEST(call_that_fails_fails_what_reads_it) {
  Stream s;
  auto* x = s.filled({1, 2});
  auto* y = s.make(2);
  auto* z = s.make(2);
  auto* other = s.make(2);
  record(s.window, {range(x, 2)}, {range(y, 2)}, std::make_shared<Failing>());
  s.window.record(binary(Op::add, 2, dense(z), dense(y), number(1)));
  auto* folded = s.make(2);
  fold(s.window, folded, y, 2);
  s.window.record(binary(Op::add, 2, dense(other), dense(x), number(1)));
  CHECK_THROWS(s.window.flush(FlushReason::user), Error, "the call failed");
  CHECK_EQ(Stream::read(other)[0], 2.0f);
  for (auto* block : {y, z, folded}) CHECK_THROWS(Stream::read(block), Error, "the call failed");
  // A later program does not read it either, until it is written.
  fold(s.window, folded, y, 2);
  CHECK_THROWS(Stream::read(folded), Error, "the call failed");
  fold(s.window, y, x, 2);
  fold(s.window, folded, y, 2);
  CHECK_EQ(Stream::read(folded)[0], 6.0f);
  for (auto* block : {x, y, z, other, folded}) drop(block);
  CHECK_EQ(s.heap.idle.size(), s.heap.all.size());
}

// Programs of the same calls have one plan; their bodies are those of each program.
TEST(call_plans_are_found_again) {
  Stream s;
  auto* x = s.filled({1, 2, 3});
  for (int round = 0; round < 4; ++round) {
    const int64_t count = 2 + round % 2;
    auto* y = s.make(count);
    fold(s.window, y, x, count);
    CHECK_EQ(Stream::read(y)[0], static_cast<float>(1 + count));
    drop(y);
  }
  CHECK_EQ(s.window.stats().plan_hits, 2u);
  drop(x);
}

// The memory of values that are gone is used again within the program, however many there are.
TEST(call_memory_goes_round) {
  Stream s;
  constexpr int64_t kCount = 1000;
  auto* x = s.filled(std::vector<float>(kCount, 1.0f));
  auto* y = x;
  for (int i = 0; i < 20; ++i) {
    auto* z = s.make(kCount);
    fold(s.window, z, y, kCount);
    drop(y);
    y = z;
  }
  CHECK_EQ(Stream::read(y)[0], 1048576.0f);
  CHECK_EQ(s.backend.most_scratch(), size_t{2} * 4 * kCount);
  drop(y);
}

// What was there before the program and has been freed keeps its memory until the program has run:
// when that is much, it runs, if it has calls.
TEST(call_memory_that_waits_ends_the_program) {
  for (const bool calls : {true, false}) {
    Stream s;
    constexpr int64_t kCount = int64_t{1} << 20;
    auto* y = s.make(kCount);
    std::vector<TestBlock*> old;
    for (int i = 0; i < 20; ++i) old.push_back(s.filled(std::vector<float>(kCount, 1.0f)));
    for (auto* x : old) {
      if (calls) {
        fold(s.window, y, x, kCount);
      } else {
        s.window.record(binary(Op::add, kCount, dense(y), dense(x), number(1)));
      }
      drop(x);
    }
    CHECK_EQ(s.window.stats().flushes[static_cast<size_t>(FlushReason::full)], calls ? 2u : 0u);
    drop(y);
    s.window.flush(FlushReason::user);
  }
}

TEST(call_has_text) {
  Stream s;
  s.window.start_capture();
  auto* x = s.filled({1, 2});
  auto* y = s.make(2);
  fold(s.window, y, x, 2);
  s.window.flush(FlushReason::user);
  const auto flushed = s.window.end_capture();
  CHECK_EQ(to_string(flushed.at(0).program), std::string("b1:f32[2] = test::fold(b0:f32[2])\n"));
  CHECK_EQ(to_string(flushed.at(0).plan, flushed.at(0).program),
           std::string("pass 1: test::fold, 8 B loaded, 8 B stored\n"
                       "  b1:f32[2] = test::fold(b0:f32[2])\n"));
  for (auto* block : {x, y}) drop(block);
}

TEST(call_of_many_accesses) {
  class Sum final : public Call {
    void run(std::span<void* const> memory) override {
      float sum = 0;
      for (size_t i = 0; i + 1 < memory.size(); ++i) sum += *static_cast<const float*>(memory[i]);
      *static_cast<float*>(memory.back()) = sum;
    }
  };
  Stream s;
  std::vector<TestBlock*> blocks;
  std::vector<Range> reads;
  for (int i = 0; i < 40; ++i) {
    blocks.push_back(s.filled({static_cast<float>(i)}));
    reads.push_back(range(blocks.back(), 1));
  }
  for (int i = 0; i < 600; ++i) {
    blocks.push_back(s.make(1));
    record(s.window, reads, {range(blocks.back(), 1)}, std::make_shared<Sum>());
  }
  CHECK_EQ(Stream::read(blocks.back())[0], 780.0f);
  CHECK(s.window.stats().flushes[static_cast<size_t>(FlushReason::full)] > 0);
  for (auto* block : blocks) drop(block);
}

namespace {
struct Small : Interpreter {
  using Interpreter::Interpreter;
  size_t most_bytes() const noexcept override { return 8 * Window::kShareOfRetired; }
};
}  // namespace

// Memory that was there before a program, and waits for it, is bounded by what the device has.
TEST(call_program_ends_where_much_memory_waits_for_it) {
  StreamOn<Small> s;
  auto* x = s.filled({1, 2, 3});
  auto* y = s.make(3);
  auto* z = s.make(3);
  fold(s.window, y, x, 3);
  s.window.record(binary(Op::add, 3, dense(z), dense(y), number(1)));
  CHECK_EQ(s.window.stats().executed, 0u);
  drop(x);
  s.window.record(binary(Op::add, 3, dense(z), dense(z), number(1)));
  CHECK_EQ(s.window.stats().executed, 2u);
  CHECK_EQ(s.window.stats().flushes[static_cast<size_t>(FlushReason::full)], 1u);
  s.window.flush(FlushReason::user);
  for (auto* block : {y, z}) drop(block);
}

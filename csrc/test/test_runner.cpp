// Runs of programs: scratch for what passes from group to group, and what fails and with whom.
#include "atlas/runner.h"

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "atlas/error.h"
#include "check.h"
#include "streams.h"

using namespace hologram;
using namespace hologram::test;

// A value whose block is gone passes from one group to another: the second computes in float64.
TEST(window_gives_values_between_groups_memory) {
  Stream s;
  auto* x = s.filled({1, 2, 3, 4});
  for (int i = 0; i < 4; ++i) {
    auto* t = s.make(4);
    auto* y = s.make(8);
    s.window.record(binary(Op::mul, 4, dense(t), dense(x), number(3)));
    s.window.record(binary(Op::add, 4, dense(y, DType::f64), dense(t), dense(x), DType::f64));
    drop(t);
    auto* other = s.filled({9, 9, 9, 9});  // where the value was
    Window::finish(*y);
    double sums[4];
    std::memcpy(sums, y->data, sizeof sums);
    CHECK_EQ(sums[3], 16.0);
    CHECK_EQ(Stream::read(other)[0], 9.0f);
    drop(other);
    drop(y);
  }
  drop(x);
}

namespace {

// Fails where it is told to.
struct FailingBackend final : Interpreter {
  std::unique_ptr<PlanCode> compile(const Plan& plan) override {
    if (fail_compile) throw Error("compile failed");
    return Interpreter::compile(plan);
  }
  void run(const Group& group, std::span<const Binding> bindings) override {
    if (runs++ == fail_run) throw Error("run failed");
    Interpreter::run(group, bindings);
  }
  void* allocate_scratch(size_t bytes, Queue& queue) override {
    if (meanwhile) meanwhile();
    if (bytes >= refuse_from) throw OutOfMemory(bytes, 100, 100, 100);
    ++held;
    return Interpreter::allocate_scratch(bytes, queue);
  }
  void free_scratch(void* memory, Fence fence) noexcept override {
    --held;
    Interpreter::free_scratch(memory, fence);
  }

  bool fail_compile = false;
  int fail_run = -1, runs = 0, held = 0;
  size_t refuse_from = ~size_t{0};
  std::function<void()> meanwhile;  // what another thread does while scratch is reserved
};

struct FailingStream : StreamOn<FailingBackend> {
  // y = f(t), where t passes from one group to the next in memory that is scratch.
  TestBlock* through_scratch(TestBlock* x) {
    auto* t = make(4);
    window.record(binary(Op::mul, 4, dense(t), dense(x), number(2)));
    auto* y = make(3);
    window.record(binary(Op::add, 3, dense(y), dense(t), dense(t, DType::f32, 4)));
    drop(t);
    return y;
  }
  std::string flush_error() {
    return error_of([&] { window.flush(FlushReason::user); });
  }
  static std::string read_error(TestBlock* block) {
    return error_of([&] { Window::finish(*block); });
  }
  template <class F>
  static std::string error_of(F&& f) {
    try {
      f();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(window_rule_16_scratch_without_memory_fails_its_readers_only) {
  FailingStream s;
  auto* x = s.filled({1, 2, 3, 4});
  for (int round = 0; round < 4; ++round) {  // also with a plan from the cache
    s.backend.refuse_from = round == 2 ? ~size_t{0} : 16;
    auto* y = s.through_scratch(x);
    auto* z = s.make(3);  // reads what failed
    s.window.record(binary(Op::mul, 3, dense(z), dense(y), number(3)));
    auto* other = s.make(4);  // shares an operand with what fails
    s.window.record(binary(Op::add, 4, dense(other), dense(x), number(1)));
    const std::string error = s.flush_error();
    CHECK_EQ(Stream::read(other)[3], 5.0f);
    if (round == 2) {
      CHECK_EQ(error, std::string());
      CHECK_EQ(Stream::read(z)[0], 18.0f);
    } else {
      CHECK(contains(error, "out of memory"));
      CHECK(contains(error, "mul (f32, 4 elements)"));
      for (int i = 0; i < 2; ++i) {
        CHECK_EQ(FailingStream::read_error(y), error);
        CHECK_EQ(FailingStream::read_error(z), error);
      }
      CHECK_EQ(s.flush_error(), std::string());  // it has been reported
    }
    CHECK_EQ(s.backend.held, 0);
    for (auto* block : {y, z, other}) drop(block);
  }
  const WindowStats stats = s.window.stats();
  CHECK_EQ(stats.recorded, 16u);
  CHECK_EQ(stats.failed, 9u);
  CHECK_EQ(stats.executed, 7u);
  drop(x);
  CHECK_EQ(s.heap.idle.size(), s.heap.all.size());  // nothing leaks
}

TEST(window_rule_16_a_failed_operand_fails_the_result) {
  FailingStream s;
  auto* x = s.filled({1, 2, 3, 4});
  s.backend.refuse_from = 16;
  auto* y = s.through_scratch(x);
  const std::string error = s.flush_error();
  s.backend.refuse_from = ~size_t{0};
  auto* z = s.make(3);
  auto* good = s.make(4);
  s.window.record(binary(Op::add, 3, dense(z), dense(y), number(1)));
  s.window.record(binary(Op::add, 4, dense(good), dense(x), number(1)));
  CHECK_EQ(s.flush_error(), std::string());
  CHECK_EQ(FailingStream::read_error(z), error);
  CHECK_EQ(Stream::read(good)[0], 2.0f);
  // In place, in a part: the block stays failed. Overwritten as a whole it is readable again.
  s.window.record({kCopy, DType::f32, 1, 2, {}, dense(y), {number(7), {}, {}}});
  CHECK_EQ(FailingStream::read_error(y), error);
  s.window.record({kCopy, DType::f32, 1, 3, {}, dense(y), {number(7), {}, {}}});
  s.window.record(binary(Op::add, 3, dense(z), dense(y), number(1)));
  CHECK_EQ(Stream::read(y)[2], 7.0f);
  CHECK_EQ(Stream::read(z)[2], 8.0f);
  for (auto* block : {x, y, z, good}) drop(block);
  CHECK_EQ(s.heap.idle.size(), s.heap.all.size());
}

// While a program runs its blocks are recorded on, and only then turn out to have failed.
TEST(window_rule_16_an_operand_fails_after_the_instruction_was_recorded) {
  FailingStream s;
  for (int round = 0; round < 3; ++round) {  // the program that reads has a plan in the cache
    auto* x = s.filled({1, 2, 3, 4});
    auto* z = s.make(3);
    const bool fails = round == 2;
    s.backend.refuse_from = fails ? 16 : ~size_t{0};
    auto* y = s.through_scratch(x);
    s.backend.meanwhile = [&] {
      s.window.record(binary(Op::add, 3, dense(z), dense(y), number(1)));
    };
    const std::string error = s.flush_error();
    s.backend.meanwhile = nullptr;
    s.backend.refuse_from = ~size_t{0};
    CHECK_EQ(contains(error, "out of memory"), fails);
    CHECK_EQ(FailingStream::read_error(z), error);
    CHECK_EQ(FailingStream::read_error(y), error);
    if (!fails) CHECK_EQ(Stream::read(z)[0], 7.0f);
    for (auto* block : {x, y, z}) drop(block);
  }
  CHECK_EQ(s.heap.idle.size(), s.heap.all.size());
}

TEST(window_rule_16_a_group_that_fails_to_run) {
  FailingStream s;
  auto* x = s.filled({1, 2, 3, 4});
  auto* other = s.filled({1, 2});
  auto* y = s.through_scratch(x);
  auto* z = s.make(2);
  s.window.record(binary(Op::add, 2, dense(z), dense(other), number(1)));
  s.backend.fail_run = 0;
  CHECK_EQ(s.flush_error(), std::string("run failed"));
  int failed = 0;
  for (auto* block : {y, z}) failed += !FailingStream::read_error(block).empty();
  CHECK_EQ(failed, 1);
  const WindowStats stats = s.window.stats();
  CHECK_EQ(stats.executed + stats.failed, stats.recorded);
  for (auto* block : {x, y, z, other}) drop(block);
  CHECK_EQ(s.backend.held, 0);
  CHECK_EQ(s.heap.idle.size(), s.heap.all.size());
}

TEST(window_rule_16_a_program_without_a_plan) {
  FailingStream s;
  auto* x = s.filled({1, 2, 3, 4});
  auto* y = s.through_scratch(x);
  s.backend.fail_compile = true;
  CHECK_EQ(s.flush_error(), std::string("compile failed"));
  CHECK_EQ(FailingStream::read_error(y), std::string("compile failed"));
  CHECK_EQ(FailingStream::read_error(x), std::string());
  s.backend.fail_compile = false;
  drop(y);
  y = s.through_scratch(x);
  CHECK_EQ(Stream::read(y)[0], 6.0f);
  for (auto* block : {x, y}) drop(block);
  CHECK_EQ(s.heap.idle.size(), s.heap.all.size());
}

TEST(window_rule_16_a_failure_while_the_window_is_full_drops_the_call) {
  FailingStream s;
  auto* x = s.filled({1, 2, 3, 4});
  s.backend.refuse_from = 16;
  auto* y = s.through_scratch(x);
  auto* counter = s.filled({0});
  for (size_t i = 2; i < Window::kMostInstructions; ++i) {
    s.window.record(binary(Op::add, 1, dense(counter), dense(counter), number(1)));
  }
  // As a composite would.
  const View temporary{nullptr, 0, DType::f32, Layout::dense, 1};
  const std::array<Operands, 2> list{binary(Op::add, 1, temporary, dense(counter), number(1)),
                                     binary(Op::add, 1, dense(counter), temporary, number(1))};
  CHECK(contains(FailingStream::error_of([&] { s.window.record(list, 1); }), "memory"));
  CHECK_EQ(Stream::read(counter)[0], static_cast<float>(Window::kMostInstructions - 2));
  for (auto* block : {x, y, counter}) drop(block);
  CHECK_EQ(s.heap.idle.size(), s.heap.all.size());
}

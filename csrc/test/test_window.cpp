#include "atlas/window.h"

#include "atlas/checker.h"

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "check.h"
#include "interpreter.h"

using namespace hologram;
using interpreter::Interpreter;

namespace {

// Memory as a backend would hand it out: what is given back is overwritten and used again at once.
struct Heap {
  std::multimap<size_t, char*> idle;
  std::vector<std::unique_ptr<char[]>> all;
  int retired = 0;  // blocks whose owner has gone before the window was done

  Interpreter* queue = nullptr;  // that the memory is used by, if that is late

  char* allocate(size_t bytes) {
    if (const auto found = idle.find(bytes); found != idle.end()) {
      char* memory = found->second;
      idle.erase(found);
      if (queue != nullptr) queue->wait_for_all();  // the host writes to it next
      return memory;
    }
    all.push_back(std::make_unique<char[]>(bytes));
    return all.back().get();
  }
  void give_back(char* memory, size_t bytes) {
    if (queue != nullptr) {
      queue->push([=] { std::memset(memory, 0x7b, bytes); });
    } else {
      std::memset(memory, 0x7b, bytes);
    }
    idle.emplace(bytes, memory);
  }
};

struct TestBlock final : BlockState {
  TestBlock(Heap& from, size_t nbytes) : heap(from) {
    bytes = nbytes;
    data = heap.allocate(nbytes);
  }
  void give_back_memory() noexcept override { heap.give_back(data, bytes); }
  void retire_memory() noexcept override { ++heap.retired; }
  Heap& heap;
};

void drop(TestBlock* block) {
  if (Window::keep(block)) return;
  block->give_back_memory();
  delete block;
}

View dense(TestBlock* block, DType dtype = DType::f32, int64_t offset = 0) {
  return {block, offset, dtype, Layout::dense};
}

View number(float value) {
  return {nullptr, static_cast<int64_t>(std::bit_cast<uint32_t>(value)), DType::f32,
          Layout::scalar};
}

Operands binary(Op op, int64_t count, View out, View a, View b, DType dtype = DType::f32) {
  return {static_cast<Code>(op), dtype, 2, count, {}, out, {a, b, {}}};
}

template <class E>
struct StreamOn {
  Heap heap;
  E backend;
  PlanCache plans{backend};
  Window window{plans, backend, backend};
  TestBlock* make(int64_t count) {
    auto* block = new TestBlock(heap, static_cast<size_t>(count) * 4);
    block->born = window.open_program();
    return block;
  }
  TestBlock* filled(std::vector<float> values) {
    auto* block = make(static_cast<int64_t>(values.size()));
    std::memcpy(block->data, values.data(), values.size() * 4);
    block->born = 0;
    return block;
  }
  static std::vector<float> read(TestBlock* block) {
    Window::finish(*block);
    std::vector<float> values(block->bytes / 4);
    std::memcpy(values.data(), block->data, block->bytes);
    return values;
  }
};
using Stream = StreamOn<Interpreter>;

// A stream whose programs run on a thread, while the gate is open.
struct LateStream : Stream {
  LateStream() {
    heap.queue = &backend;
    backend.be_late([this] { open.wait(false); });
  }
  ~LateStream() { let_run(); }
  void let_run() {
    open = true;
    open.notify_all();
  }
  std::atomic<bool> open{false};
};

// Counts the bytes of scratch that were asked for.
struct Counting final : Interpreter {
  size_t scratch = 0;
  void* allocate_scratch(size_t bytes, Queue& queue) override {
    scratch += bytes;
    return Interpreter::allocate_scratch(bytes, queue);
  }
};

}  // namespace

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

TEST(window_says_when_a_block_is_only_still_used) {
  Stream s;
  auto* x = s.filled({1, -2, 3});
  auto* t = s.make(3);
  auto* y = s.make(3);
  s.window.record(binary(Op::mul, 3, dense(t), dense(x), number(2)));
  s.window.record(binary(Op::add, 3, dense(y), dense(t), dense(x)));
  drop(t);  // gives its memory back at once: its values need none
  CHECK_EQ(s.heap.retired, 0);
  drop(x);  // is read when the program runs
  CHECK_EQ(s.heap.retired, 1);
  CHECK_EQ(Stream::read(y)[1], -6.0f);
  CHECK_EQ(s.heap.retired, 1);
  drop(y);  // not pending
  CHECK_EQ(s.heap.retired, 1);
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

TEST(window_tells_a_watcher_what_runs) {
  struct Log final : Watcher {
    bool on = true;
    std::vector<std::string> lines;
    bool watches() noexcept override { return on; }
    void begin(const std::string& name) override { lines.push_back(name); }
    void end() noexcept override { lines.push_back("end"); }
  } log;
  Window::set_watcher(&log);
  Stream s;
  auto* x = s.filled({1, -2, 3});
  auto* y = s.make(3);
  const auto record = [&] {
    s.window.record(binary(Op::mul, 3, dense(y), dense(x), number(2)));
    s.window.record(binary(Op::add, 3, dense(y), dense(y), dense(x)));
  };
  record();
  s.window.flush(FlushReason::user);
  const std::vector<std::string> expected = {"hologram::flush (user)", "hologram::pass (mul, add)",
                                             "end", "end"};
  CHECK(log.lines == expected);
  s.window.flush(FlushReason::user);  // nothing to run
  log.on = false;
  record();
  s.window.flush(FlushReason::user);
  CHECK_EQ(log.lines.size(), expected.size());
  Window::set_watcher(nullptr);
  drop(x);
  drop(y);
}

TEST(window_asks_before_a_read_runs_it) {
  Stream s;
  auto* x = s.filled({1, -2, 3});
  const auto record = [&] { s.window.record(binary(Op::add, 3, dense(x), dense(x), dense(x))); };
  record();
  Window::set_before_read([] { throw Error("not now"); });
  bool refused = false;
  try {
    Stream::read(x);
  } catch (const Error&) {
    refused = true;
  }
  CHECK(refused);
  CHECK_EQ(s.window.stats().executed, 0u);
  s.window.flush(FlushReason::user);  // asked for
  CHECK_EQ(Stream::read(x)[1], -4.0f);
  Window::set_before_read(nullptr);
  drop(x);
}

// Sets keeping for a scope.
struct Keeping {
  Keeping() { Window::set_keeping(true); }
  ~Keeping() { Window::set_keeping(false); }
};

// What a loop computes and drops: `result` of mul, add and exp, each in a block of its own.
template <class S>
static void turn_of(S& s, TestBlock* x, int64_t count) {
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

TEST(window_merges_equal_groups_over_many_tensors) {
  Stream s;
  std::vector<TestBlock*> parameters, gradients;
  for (int i = 0; i < 50; ++i) {
    parameters.push_back(s.filled(std::vector<float>(static_cast<size_t>(i % 5) + 1, 1.0f)));
    gradients.push_back(s.filled(std::vector<float>(static_cast<size_t>(i % 5) + 1, 2.0f)));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto count = static_cast<int64_t>(i % 5) + 1;
    auto* step = s.make(count);
    s.window.record(binary(Op::mul, count, dense(step), dense(gradients[i]), number(0.5f)));
    s.window.record(
        binary(Op::sub, count, dense(parameters[i]), dense(parameters[i]), dense(step)));
    drop(step);
  }
  for (auto* block : parameters) CHECK_EQ(Stream::read(block)[0], 0.0f);
  CHECK_EQ(s.window.stats().passes, 1u);
  for (auto* block : parameters) drop(block);
  for (auto* block : gradients) drop(block);
}

TEST(window_orders_partial_overlaps) {
  Stream s;
  auto* x = s.filled({1, 2, 3, 4});
  // x[0:3] += x[1:4]: torch refuses it, but through two views written one after the other it
  // occurs.
  auto* t = s.make(3);
  s.window.record(binary(Op::add, 3, dense(t), dense(x), dense(x, DType::f32, 4)));
  s.window.record(binary(Op::mul, 3, dense(x), dense(t), number(10)));
  s.window.record(binary(Op::add, 3, dense(x, DType::f32, 4), dense(x, DType::f32, 4), number(1)));
  drop(t);
  CHECK_EQ(Stream::read(x)[0], 30.0f);
  CHECK_EQ(Stream::read(x)[1], 51.0f);
  CHECK_EQ(Stream::read(x)[2], 71.0f);
  CHECK_EQ(Stream::read(x)[3], 5.0f);
  drop(x);
}

TEST(checker_finds_what_a_pass_gets_wrong) {
  // y = x * x; z = y + x; all live.
  Program program;
  program.counts.push_back(4);
  program.shapes.emplace_back();
  for (uint16_t slot = 0; slot < 3; ++slot) {
    program.slots.push_back({false, true});
    program.accesses.push_back({slot, DType::f32, Layout::dense, 0, 0});
  }
  program.code.push_back({static_cast<Code>(Op::mul), DType::f32, 2, 1, {0, 0, kNothing}, 0});
  program.code.push_back({static_cast<Code>(Op::add), DType::f32, 2, 2, {1, 0, kNothing}, 0});
  validate(program);
  const Plan plan = canonicalise(program);
  validate(plan, program);
  const auto broken = [&](auto&& damage, const char* what) {
    Plan copy = plan;
    damage(copy.batches.front());
    CHECK_THROWS(validate(copy, program), std::logic_error, what);
  };
  broken([](Batch& b) { b.group.nodes.pop_back(); }, "what lives is not stored");
  broken([](Batch& b) { b.group.nodes.front().a = 9; }, "a load has no operand");
  broken([](Batch& b) { b.group.nodes[1].a = 1; }, "used before it is there");
  broken([](Batch& b) { b.group.operands[0].dtype = DType::bf16; }, "not what its group says");
  broken([](Batch& b) { b.members.push_back(b.members.front()); }, "two members of a batch meet");
  broken([](Batch& b) { b.members.front().accesses.pop_back(); }, "operands are missing");
  const auto wrong = [&](auto&& damage, const char* what) {
    Program copy = program;
    damage(copy);
    CHECK_THROWS(validate(copy), std::logic_error, what);
  };
  wrong([](Program& p) { p.code[0].arity = 1; }, "operands are missing");
  wrong([](Program& p) { p.code[0].in[1] = 7; }, "an operand is unknown");
  wrong([](Program& p) { p.accesses[1].slot = 5; }, "an access has no block");
  wrong([](Program& p) { p.overlaps.push_back({2, 1}); }, "of two blocks");
}

TEST(window_merges_views_of_one_flat_buffer) {
  Stream s;
  constexpr int64_t kViews = 300, kEach = 5;
  auto* flat = s.filled(std::vector<float>(kViews * kEach, 1.0f));
  auto* gradients = s.filled(std::vector<float>(kViews * kEach, 2.0f));
  for (int64_t i = 0; i < kViews; ++i) {
    auto* step = s.make(kEach);
    const View own = dense(flat, DType::f32, i * kEach * 4);
    s.window.record(binary(Op::mul, kEach, dense(step), dense(gradients, DType::f32, i * kEach * 4),
                           number(0.5f)));
    s.window.record(binary(Op::sub, kEach, own, own, dense(step)));
    drop(step);
  }
  for (const float value : Stream::read(flat)) CHECK_EQ(value, 0.0f);
  CHECK_EQ(s.window.stats().passes, 1u);
  for (auto* block : {flat, gradients}) drop(block);
}

TEST(window_orders_many_overlapping_views_of_one_block) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    Stream s;
    std::mt19937 random(seed);
    const auto pick = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint32_t>(n));
    };
    constexpr int64_t kCount = 120;
    std::vector<float> expected(kCount);
    for (float& value : expected) value = static_cast<float>(pick(9) - 4);
    auto* block = s.filled(expected);
    for (int i = 0; i < 60; ++i) {
      // Mostly short views, now and then one that joins what was apart.
      const int64_t count = pick(8) == 0 ? kCount / 2 : 1 + pick(6);
      const int64_t to = pick(kCount - count + 1), from = pick(kCount - count + 1);
      auto* t = s.make(count);
      s.window.record(
          binary(Op::mul, count, dense(t), dense(block, DType::f32, from * 4), number(-1)));
      s.window.record(
          binary(Op::add, count, dense(block, DType::f32, to * 4), dense(t), number(1)));
      drop(t);
      std::vector<float> copied(expected.begin() + from, expected.begin() + from + count);
      for (int64_t k = 0; k < count; ++k) {
        expected[static_cast<size_t>(to + k)] = 1 - copied[static_cast<size_t>(k)];
      }
    }
    const auto values = Stream::read(block);
    for (size_t k = 0; k < values.size(); ++k) CHECK_EQ(values[k], expected[k]);
    drop(block);
  }
}

namespace {

// A part of a matrix of floats.
View part(TestBlock* block, int64_t offset, std::span<const int64_t> strides) {
  return {block, 4 * offset, DType::f32, Layout::strided, 0, strides.data()};
}

}  // namespace

TEST(window_merges_columns_of_one_matrix) {
  Stream s;
  constexpr int64_t kRows = 3, kColumns = 300;
  const int64_t sizes[] = {kRows}, strides[] = {4 * kColumns};
  auto* x = s.filled(std::vector<float>(kRows * kColumns, 1.0f));
  for (int64_t i = 0; i < kColumns; ++i) {
    const View column = part(x, i, strides);
    const auto factor = static_cast<float>(i + 2);
    s.window.record({static_cast<Code>(Op::mul),
                     DType::f32,
                     2,
                     kRows,
                     sizes,
                     column,
                     {column, number(factor), {}}});
  }
  const auto values = Stream::read(x);
  for (size_t i = 0; i < values.size(); ++i) {
    CHECK_EQ(values[i], static_cast<float>(i % kColumns + 2));
  }
  CHECK_EQ(s.window.stats().passes, 1u);
  drop(x);
}

// Rows, columns, tiles, diagonals and the whole of one matrix, in place: as one after the other.
TEST(window_orders_strided_views_of_one_matrix) {
  for (uint32_t seed = 0; seed < 150; ++seed) {
    Stream s;
    std::mt19937 random(seed);
    const auto pick = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint32_t>(n));
    };
    constexpr int64_t kSide = 7;
    std::vector<float> expected(kSide * kSide);
    for (float& value : expected) value = static_cast<float>(pick(9) - 4);
    auto* block = s.filled(expected);
    for (int i = 0; i < 50; ++i) {
      // Two parts of one shape.
      const int kind = static_cast<int>(pick(8));
      const int64_t rows = kind == 0 ? kSide : 1 + pick(3),
                    columns = kind == 0 ? kSide : 1 + pick(3);
      const int64_t sizes[] = {rows, columns};
      std::array<std::array<int64_t, 2>, 2> strides;  // elements
      int64_t offsets[2];
      for (size_t k = 0; k < 2; ++k) {
        // A transposed one, one that lies across, or a tile.
        const int64_t form = rows == columns ? pick(3) : 2;
        strides[k] = form == 0   ? std::array<int64_t, 2>{1, kSide}
                     : form == 1 ? std::array<int64_t, 2>{kSide + 1, 3}
                                 : std::array<int64_t, 2>{kSide, 1};
        if (kind == 0 && form == 1) strides[k] = {kSide, 1};
        const int64_t last = (rows - 1) * strides[k][0] + (columns - 1) * strides[k][1];
        offsets[k] = pick(kSide * kSide - last);
      }
      // An operand may be the result exactly, or share nothing with it: by way of a temporary.
      const auto view = [&](size_t k, std::array<int64_t, 2>& bytes) {
        bytes = {4 * strides[k][0], 4 * strides[k][1]};
        return part(block, offsets[k], bytes);
      };
      std::array<int64_t, 2> from, to;
      auto* t = s.make(rows * columns);
      s.window.record({static_cast<Code>(Op::mul),
                       DType::f32,
                       2,
                       rows * columns,
                       sizes,
                       dense(t),
                       {view(0, from), number(-1), {}}});
      s.window.record({static_cast<Code>(Op::add),
                       DType::f32,
                       2,
                       rows * columns,
                       sizes,
                       view(1, to),
                       {dense(t), number(1), {}}});
      drop(t);
      const std::vector<float> before = expected;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          const auto at = [&](size_t k) {
            return static_cast<size_t>(offsets[k] + r * strides[k][0] + c * strides[k][1]);
          };
          expected[at(1)] = 1 - before[at(0)];
        }
      }
    }
    const auto values = Stream::read(block);
    for (size_t k = 0; k < values.size(); ++k) {
      if (values[k] == expected[k]) continue;
      CHECK_EQ(std::string("seed"), std::to_string(seed));
      break;
    }
    drop(block);
  }
}

// Views that do overlap, all of them: the program ends before its overlaps become too many.
TEST(window_is_full_of_overlaps) {
  Stream s;
  constexpr int64_t kViews = 1500, kEach = kViews;
  auto* x = s.filled(std::vector<float>(kViews + kEach, 0.0f));
  for (int64_t i = 0; i < kViews; ++i) {
    const View own = dense(x, DType::f32, 4 * i);
    s.window.record(binary(Op::add, kEach, own, own, number(1)));
  }
  const auto values = Stream::read(x);
  for (int64_t i = 0; i < kViews; ++i) {
    CHECK_EQ(values[static_cast<size_t>(i)], static_cast<float>(i + 1));
  }
  CHECK(s.window.stats().flushes[static_cast<size_t>(FlushReason::full)] > 1);
  drop(x);
}

// A temporary of an operation is a value in flight; what another space reads of it needs memory.
TEST(window_temporaries_of_an_operation) {
  Stream s;
  auto* x = s.filled({1, 2, 3, 4});
  auto* y = s.filled({0, 0, 0, 0});
  auto* z = s.filled({5, 6});
  const size_t idle = s.heap.idle.size();
  const View first{nullptr, 0, DType::f32, Layout::dense, 1};
  const View second{nullptr, 0, DType::f32, Layout::dense, 2};
  const std::array<Operands, 3> inside{binary(Op::mul, 4, first, dense(x), number(2)),
                                       binary(Op::add, 4, second, first, number(1)),
                                       binary(Op::mul, 4, dense(y), second, first)};
  s.window.record(inside, 2);
  // The same numbers are other values in what is recorded next.
  View element = first;
  element.layout = Layout::scalar;
  element.offset = 4;
  const std::array<Operands, 2> across{binary(Op::add, 2, first, dense(z), number(1)),
                                       binary(Op::mul, 4, dense(x), dense(x), element)};
  s.window.record(across, 1);
  CHECK_EQ(s.heap.idle.size(), idle);
  CHECK(Stream::read(y) == std::vector<float>({6, 20, 42, 72}));
  CHECK(Stream::read(x) == std::vector<float>({7, 14, 21, 28}));
  CHECK_EQ(s.window.stats().stores_elided, 2u);
  for (auto* block : {x, y, z}) drop(block);
  CHECK_EQ(s.heap.idle.size(), s.heap.all.size());
}

TEST(window_refuses_more_instructions_than_it_holds) {
  Stream s;
  auto* x = s.filled({0});
  std::vector<Operands> list(Window::kMostInstructions,
                             binary(Op::add, 1, dense(x), dense(x), number(1)));
  s.window.record(list);
  list.push_back(list.front());
  CHECK_THROWS(s.window.record(list), Error, "4097 instructions");
  CHECK_EQ(Stream::read(x)[0], static_cast<float>(Window::kMostInstructions));
  drop(x);
  CHECK_EQ(s.heap.idle.size(), s.heap.all.size());
}

TEST(window_counts_the_bytes_that_an_operand_has) {
  Stream s;
  constexpr int64_t kRows = 32, kColumns = 64;
  auto* x = s.filled(std::vector<float>(kRows * kColumns, 1.0f));
  auto* row = s.filled(std::vector<float>(kColumns, 2.0f));
  auto* y = s.make(kRows * kColumns);
  const int64_t sizes[] = {kRows, kColumns}, strides[] = {0, 4};
  s.window.start_capture();
  s.window.record({static_cast<Code>(Op::add),
                   DType::f32,
                   2,
                   kRows * kColumns,
                   sizes,
                   dense(y),
                   {dense(x), part(row, 0, strides), {}}});
  CHECK_EQ(Stream::read(y)[99], 3.0f);
  constexpr uint64_t kMatrix = 4 * kRows * kColumns;
  CHECK_EQ(s.window.stats().bytes_moved, 2 * kMatrix + 4 * kColumns);
  const auto flushed = s.window.end_capture();
  const auto passes = describe(flushed.front().plan, flushed.front().program);
  CHECK_EQ(passes.front().loaded, kMatrix + 4 * kColumns);
  CHECK_EQ(passes.front().stored, kMatrix);
  for (auto* block : {x, row, y}) drop(block);
}

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

#if defined(__x86_64__) || defined(__aarch64__)
// Each instruction is executed in the mode in which it was recorded.
TEST(window_records_whether_denormals_are_flushed) {
  Stream s;
  const FloatMode ieee = float_mode();
  CHECK_EQ(ieee, 0u);
#if defined(__x86_64__)
  const FloatMode flushing = 0x8040;
#else
  const FloatMode flushing = 1u << 24;
#endif
  const float tiny = 0x1p-130f;
  auto* x = s.filled({tiny});
  const auto bits = [](TestBlock* block) {
    const FloatModeGuard guard(0);
    return Stream::read(block)[0];
  };
  for (int round = 0; round < 3; ++round) {
    auto* kept = s.make(1);
    auto* flushed = s.make(1);
    auto* twice = s.make(1);
    s.window.record(binary(Op::mul, 1, dense(kept), dense(x), number(1)));
    {
      const FloatModeGuard guard(flushing);
      CHECK_EQ(float_mode(), flushing);
      s.window.record(binary(Op::mul, 1, dense(flushed), dense(x), number(1)));
    }
    CHECK_EQ(float_mode(), ieee);
    s.window.record(binary(Op::add, 1, dense(twice), dense(x), dense(x)));
    {
      const FloatModeGuard guard(flushing);  // of the thread that needs the result: of no account
      Window::finish(*twice);
      CHECK_EQ(float_mode(), flushing);
    }
    CHECK_EQ(bits(kept), tiny);
    CHECK_EQ(bits(flushed), 0.0f);
    CHECK_EQ(bits(twice), 2 * tiny);
    for (auto* block : {kept, flushed, twice}) drop(block);
  }
  CHECK_EQ(s.window.stats().flushes[static_cast<size_t>(FlushReason::mode)], 6u);
  drop(x);
}
#endif

TEST(window_flushes_when_it_is_full) {
  Stream s;
  auto* x = s.filled({0});
  const int steps = static_cast<int>(Window::kMostInstructions) + 10;
  for (int i = 0; i < steps; ++i)
    s.window.record(binary(Op::add, 1, dense(x), dense(x), number(1)));
  CHECK_EQ(Stream::read(x)[0], static_cast<float>(steps));
  CHECK_EQ(s.window.stats().flushes[static_cast<size_t>(FlushReason::full)], 1u);
  drop(x);
}

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

namespace {

// A block of the test with threads.
struct SharedBlock final : BlockState {
  SharedBlock(Window& window, size_t nbytes) {
    bytes = nbytes;
    data = new char[nbytes];
    born = window.open_program();
  }
  void give_back_memory() noexcept override {
    std::memset(data, 0x7b, bytes);
    delete[] data;
    data = nullptr;
  }
};

void drop_shared(SharedBlock* block) {
  if (Window::keep(block)) return;
  block->give_back_memory();
  delete block;
}

}  // namespace

// Two threads record on blocks of their own into one window, a third one frees their temporaries
// and flushes: results are those of one thread.
TEST(window_threads_record_on_disjoint_blocks) {
  Interpreter backend;
  PlanCache plans(backend);
  Window window(plans, backend, backend);
  constexpr int kRounds = 300;
  constexpr int64_t kCount = 37;
  std::mutex mutex;
  std::vector<SharedBlock*> to_free;
  std::atomic<int> working{2};
  const auto view = [](SharedBlock* block) { return View{block, 0, DType::f32, Layout::dense}; };
  const auto work = [&](float start) {
    auto* x = new SharedBlock(window, kCount * 4);
    x->born = 0;
    std::vector<float> values(kCount, start);
    std::memcpy(x->data, values.data(), x->bytes);
    for (int round = 0; round < kRounds; ++round) {
      auto* t = new SharedBlock(window, kCount * 4);
      auto* u = new SharedBlock(window, kCount * 4);
      window.record(binary(Op::mul, kCount, view(t), view(x), number(2)));
      window.record(binary(Op::sub, kCount, view(u), view(t), view(x)));  // x again
      window.record(binary(Op::add, kCount, view(x), view(u), number(1)));
      {
        const std::lock_guard guard(mutex);
        to_free.push_back(t);
      }
      drop_shared(u);
      if (round % 7 == 0) {
        Window::finish(*x);
        float value;
        std::memcpy(&value, x->data + 4 * (kCount - 1), 4);
        CHECK_EQ(value, start + static_cast<float>(round) + 1);
      }
    }
    Window::finish(*x);
    float value;
    std::memcpy(&value, x->data, 4);
    CHECK_EQ(value, start + kRounds);
    drop_shared(x);
    --working;
  };
  std::thread first(work, 1.0f), second(work, 1000.0f);
  std::thread third([&] {
    for (int i = 0; working != 0 || i == 0; ++i) {
      std::vector<SharedBlock*> mine;
      {
        const std::lock_guard guard(mutex);
        mine.swap(to_free);
      }
      for (SharedBlock* block : mine) drop_shared(block);
      if (i % 5 == 0) window.flush(FlushReason::user);
    }
  });
  first.join();
  second.join();
  third.join();
  for (SharedBlock* block : to_free) drop_shared(block);
  window.flush(FlushReason::exit);
  const WindowStats stats = window.stats();
  CHECK_EQ(stats.recorded, 2u * 3 * kRounds);
  CHECK_EQ(stats.executed, stats.recorded);
}

namespace {

// One of two worlds that run the same random program, one of them operation by operation.
struct World {
  explicit World(bool at_once, bool late = false) : eager(at_once) {
    if (!late) return;
    s.heap.queue = &s.backend;
    s.backend.be_late([] { std::this_thread::yield(); });
  }
  bool eager;
  Stream s;
  std::vector<TestBlock*> blocks;

  void record(const Operands& operands) {
    s.window.record(operands);
    if (eager) s.window.flush(FlushReason::eager);
  }
};

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f64, DType::i64};
constexpr int64_t kBlockElements = 24;  // of 8 bytes

struct Step {
  enum Kind { make, free, compute, read } kind;
  Op op;
  DType dtype;
  size_t out, a, b;  // blocks
  DType out_dtype, a_dtype, b_dtype;
  int64_t out_offset, a_offset, b_offset;  // elements
  int64_t count;
  bool immediate, a_scalar, copy;
  double value;
  int a_strides;  // 0: dense; 1: the rows of kSizes broadcast, 2: its transpose
};

constexpr int64_t kSizes[] = {2, 3};  // of the spaces with strided operands

View view(const World& world, size_t block, DType dtype, int64_t offset, bool scalar) {
  return {world.blocks[block], offset * static_cast<int64_t>(dtype_size(dtype)), dtype,
          scalar ? Layout::scalar : Layout::dense};
}

uint64_t immediate_bits(DType dtype, double value) {
  switch (compute_type_of(dtype)) {
    case ComputeType::f32: return std::bit_cast<uint32_t>(static_cast<float>(value));
    case ComputeType::f64: return std::bit_cast<uint64_t>(value);
    case ComputeType::i64: return std::bit_cast<uint64_t>(static_cast<int64_t>(value));
  }
  return 0;
}

void apply(World& world, const Step& step) {
  switch (step.kind) {
    case Step::make: {
      auto* block = world.s.make(kBlockElements * 2);
      // Older contents are part of the program only if they are the same in both worlds.
      std::memset(block->data, 0, block->bytes);
      block->born = 0;
      world.blocks.push_back(block);
      return;
    }
    case Step::free:
      drop(world.blocks[step.out]);
      world.blocks.erase(world.blocks.begin() + static_cast<ptrdiff_t>(step.out));
      return;
    case Step::read: Window::finish(*world.blocks[step.out]); return;
    case Step::compute: break;
  }
  Operands operands{step.copy ? kCopy : static_cast<Code>(step.op),
                    step.dtype,
                    step.copy ? 1 : op_info(step.op).arity,
                    step.count,
                    {},
                    view(world, step.out, step.out_dtype, step.out_offset, false),
                    {}};
  operands.in[0] = view(world, step.a, step.a_dtype, step.a_offset, step.a_scalar);
  const auto item = static_cast<int64_t>(dtype_size(step.a_dtype));
  const int64_t rows[] = {0, item}, transposed[] = {item, 2 * item};
  if (step.a_strides != 0) {
    operands.sizes = kSizes;
    operands.in[0].layout = Layout::strided;
    operands.in[0].strides = step.a_strides == 1 ? rows : transposed;
  }
  if (operands.arity == 2) {
    operands.in[1] =
        step.immediate ? View{nullptr, static_cast<int64_t>(immediate_bits(step.dtype, step.value)),
                              step.dtype, Layout::scalar}
                       : view(world, step.b, step.b_dtype, step.b_offset, false);
  }
  world.record(operands);
}

class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed) {}

  // With `only_f32` all memory is read and written as f32: it holds a NaN, whose bits are free.
  Step next(size_t blocks, bool only_f32) {
    Step step{};
    const int kind = pick(20);
    if (blocks < 3 || (kind == 0 && blocks < 8)) {
      step.kind = Step::make;
      return step;
    }
    step.out = pick(blocks);
    if (kind == 1 && blocks > 3) {
      step.kind = Step::free;
      return step;
    }
    if (kind == 2) {
      step.kind = Step::read;
      return step;
    }
    step.kind = Step::compute;
    step.count = 1 + static_cast<int64_t>(pick(3)) * 5;
    step.a = pick(blocks);
    step.b = pick(blocks);
    const bool plain =
        only_f32 || pick(4) != 0;  // mostly whole blocks of one dtype, so that things fuse
    step.dtype = plain ? DType::f32 : kDTypes[pick(4)];
    step.out_dtype = plain ? DType::f32 : kDTypes[pick(4)];
    step.a_dtype = plain ? DType::f32 : kDTypes[pick(4)];
    step.b_dtype = plain ? DType::f32 : kDTypes[pick(4)];
    if (plain) step.count = 11;
    step.out_offset = offset(plain);
    step.a_offset = offset(plain);
    step.b_offset = offset(plain);
    do {
      step.op = static_cast<Op>(pick(static_cast<int>(Op::reciprocal) + 1));
    } while (!op_info(step.op).supports(step.dtype == DType::bf16 ? DType::f32 : step.dtype));
    step.copy = pick(12) == 0;
    step.immediate = pick(3) == 0;
    step.a_scalar = pick(8) == 0;
    constexpr double kValues[] = {0, 1, -1, 2, 0.5, 3};
    step.value = kValues[pick(6)];
    if (pick(6) == 0) {
      step.count = kSizes[0] * kSizes[1];
      step.a_strides = 1 + static_cast<int>(pick(2));
      step.a_scalar = false;
      if (step.a == step.out) return next(blocks, only_f32);
    }
    // As the front end does: an operand that shares a part of the result's bytes is refused.
    if (clashes(step, step.a, step.a_dtype, step.a_offset, step.a_scalar)) step.a_offset = -1;
    if (clashes(step, step.b, step.b_dtype, step.b_offset, false)) step.b_offset = -1;
    if (step.a_offset < 0 || step.b_offset < 0) return next(blocks, only_f32);
    return step;
  }

  size_t pick(size_t count) { return random_() % count; }

 private:
  int64_t offset(bool plain) { return plain && pick(6) != 0 ? 0 : static_cast<int64_t>(pick(10)); }
  static bool clashes(const Step& step, size_t block, DType dtype, int64_t offset, bool scalar) {
    if (block != step.out) return false;
    const auto size = [](DType type) { return static_cast<int64_t>(dtype_size(type)); };
    const int64_t begin = offset * size(dtype),
                  end = begin + size(dtype) * (scalar ? 1 : step.count);
    const int64_t out = step.out_offset * size(step.out_dtype);
    const int64_t out_end = out + size(step.out_dtype) * step.count;
    const bool exact = begin == out && dtype == step.out_dtype && !scalar;
    return !exact && begin < out_end && out < end;
  }
  std::mt19937 random_;
};

// Whether something in memory is a NaN, read in any dtype.
bool has_nan(const World& world) {
  for (const TestBlock* block : world.blocks) {
    for (size_t i = 0; i < block->bytes; i += 2) {
      const auto starts = [&](size_t size, auto value) {
        if (i % size != 0) return false;
        std::memcpy(&value, block->data + i, size);
        return value != value;
      };
      uint16_t half;
      std::memcpy(&half, block->data + i, 2);
      const bool bf16_nan = (half & 0x7f80) == 0x7f80 && (half & 0x7f) != 0;
      if (bf16_nan || starts(4, 0.0f) || starts(8, 0.0)) return true;
    }
  }
  return false;
}

// NaN at the same places; every other element equal in bits.
bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y) || (x != x && y != y);
  });
}

}  // namespace

static void compare_random_programs(uint32_t count, bool late) {
  uint64_t executed = 0, passes = 0;
  for (uint32_t seed = 0; seed < count; ++seed) {
    World fused(false, late), eager(true);
    Window::set_keeping(seed % 4 == 3);
    Generator generator(seed);
    const size_t length = 2 + generator.pick(60);
    bool only_f32 = false;
    for (size_t i = 0; i < length; ++i) {
      const Step step = generator.next(fused.blocks.size(), only_f32);
      apply(fused, step);
      apply(eager, step);
      if (step.kind == Step::compute && !only_f32) only_f32 = has_nan(eager);
      if (step.kind == Step::make) {
        for (World* world : {&fused, &eager}) {
          auto* block = world->blocks.back();
          std::mt19937 contents(seed * 100 + static_cast<uint32_t>(i));
          for (size_t k = 0; k < block->bytes / 4; ++k) {
            const float value = static_cast<float>(static_cast<int>(contents() % 17) - 8) / 4;
            std::memcpy(block->data + k * 4, &value, 4);
          }
        }
      }
    }
    for (size_t i = 0; i < fused.blocks.size(); ++i) {
      if (!same(Stream::read(fused.blocks[i]), Stream::read(eager.blocks[i]))) {
        CHECK_EQ(std::string("seed"), std::to_string(seed));
        break;
      }
    }
    executed += fused.s.window.stats().executed;
    passes += fused.s.window.stats().passes;
    for (World* world : {&fused, &eager}) {
      for (auto* block : world->blocks) drop(block);
      world->s.window.flush(FlushReason::exit);
    }
  }
  Window::set_keeping(false);
  CHECK(static_cast<double>(executed) / static_cast<double>(passes) > 1.3);
  std::cerr << "instructions per pass: "
            << static_cast<double>(executed) / static_cast<double>(passes) << "\n";
}

TEST(window_random_programs_equal_operation_by_operation) {
  compare_random_programs(3000, false);
}

TEST(window_threads_of_queues_run_random_programs) {
  compare_random_programs(1000, true);
}

TEST(window_threads_of_queues_are_waited_for_in_finish_only) {
  LateStream s;
  auto* x = s.filled({1, -2, 3});
  auto* y = s.make(3);
  s.window.record(binary(Op::mul, 3, dense(y), dense(x), number(2)));
  Window::submit(*y);
  CHECK(!s.window.pending(*y));
  CHECK_EQ(y->data[0], 0);  // it waits at the gate
  // Another program that reads what is on its way, and a block that is freed while it is.
  auto* z = s.make(3);
  s.window.record(binary(Op::add, 3, dense(z), dense(y), dense(x)));
  s.window.flush(FlushReason::user);
  drop(y);
  // The code is kept by whoever needs it.
  s.window.drop_plan();
  s.plans.clear();
  s.let_run();
  CHECK_EQ(Stream::read(z)[1], -6.0f);
  CHECK(z->last_use.empty());
  s.window.submitted().wait();
  drop(x);
  drop(z);
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

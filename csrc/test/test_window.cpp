// The window: when it runs what it holds, what becomes of its blocks, and threads that share it.
#include "atlas/window.h"

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "atlas/float_mode.h"
#include "check.h"
#include "streams.h"

using namespace hologram;
using namespace hologram::test;

TEST(window_says_when_a_block_is_only_still_used) {
  Stream s;
  auto* x = s.filled({1, -2, 3});
  auto* t = s.make(3);
  auto* y = s.make(3);
  s.window.record(binary(Op::mul, 3, dense(t), dense(x), number(2)));
  s.window.record(binary(Op::add, 3, dense(y), dense(t), dense(x)));
  CHECK(!Window::keep(t));  // its values need no memory
  std::memset(t->data, 0x7b, t->bytes);
  t->give_back_memory();
  delete t;
  CHECK_EQ(s.heap.retired, 0);
  drop(x);  // is read when the program runs
  CHECK_EQ(s.heap.retired, 1);
  CHECK_EQ(Stream::read(y)[1], -6.0f);
  CHECK_EQ(s.heap.retired, 1);
  drop(y);  // not pending
  CHECK_EQ(s.heap.retired, 1);
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

namespace {
struct Limited : Interpreter {
  using Interpreter::Interpreter;
  size_t most_bytes() const noexcept override { return 4096; }
};
}  // namespace

// A chain over large tensors stays one program, however long: only what somebody has counts, and
// what was there before the program does not.
TEST(window_is_full_of_results_that_somebody_has) {
  StreamOn<Limited> s;
  constexpr int64_t kCount = 256;  // 1,024 bytes
  constexpr int kSteps = 100;
  auto* x = s.filled(std::vector<float>(kCount, 1.0f));
  TestBlock* last = nullptr;
  for (int i = 0; i < kSteps; ++i) {
    auto* y = s.make(kCount);
    s.window.record(
        binary(Op::add, kCount, dense(y), dense(last != nullptr ? last : x), number(1)));
    if (last != nullptr) drop(last);
    last = y;
    s.window.record(binary(Op::add, kCount, dense(x), dense(x), number(1)));
  }
  CHECK_EQ(s.window.stats().executed, 0u);
  CHECK_EQ(Stream::read(last)[0], 1.0f + kSteps);
  CHECK_EQ(Stream::read(x)[0], 1.0f + kSteps);
  const auto full = [&] {
    return s.window.stats().flushes[static_cast<size_t>(FlushReason::full)];
  };
  CHECK_EQ(full(), 0u);
  std::vector<TestBlock*> kept;
  for (int i = 0; i < 5; ++i) {
    kept.push_back(s.make(kCount));
    s.window.record(binary(Op::add, kCount, dense(kept.back()), dense(x), number(1)));
  }
  CHECK_EQ(full(), 1u);
  for (auto* block : kept) CHECK_EQ(Stream::read(block)[0], 2.0f + kSteps);
  for (auto* block : kept) drop(block);
  drop(last);
  drop(x);
  CHECK_EQ(s.heap.idle.size(), s.heap.all.size());
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

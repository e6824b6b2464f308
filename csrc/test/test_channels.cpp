#include "atlas/channels.h"

#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "atlas/memory.h"
#include "check.h"
#include "interpreter.h"
#include "operands.h"

using namespace hologram;
using namespace hologram::test;
using interpreter::Interpreter;

namespace {

// Programs of a queue wait for it.
struct Gate {
  void close() { open = false; }
  void let_run() {
    open = true;
    open.notify_all();
  }
  std::atomic<bool> open{true};
};

// Its queues are threads, the one with number i in the order of their making behind gate i.
struct SlowBackend final : Backend {
  explicit SlowBackend(bool asynchronous = true) {
    properties_.backend = "slow";
    properties_.total_memory = size_t{1} << 30;
    properties_.asynchronous = asynchronous;
  }
  const DeviceProperties& properties() const noexcept override { return properties_; }
  void* allocate_segment(size_t bytes) noexcept override {
    return std::aligned_alloc(kSegmentAlignment,
                              (bytes + kSegmentAlignment - 1) & ~(kSegmentAlignment - 1));
  }
  void free_segment(void* data, size_t) noexcept override { std::free(data); }
  size_t available_memory() const noexcept override { return properties_.total_memory; }
  std::unique_ptr<PlanCode> compile(const Plan& plan) override { return compiler_.compile(plan); }
  std::shared_ptr<Moment> make_moment() override { return nullptr; }
  std::unique_ptr<Queue> make_queue(int) override {
    auto queue = std::make_unique<Interpreter>();
    Gate& gate = gates[static_cast<size_t>(queues++)];
    if (properties_.asynchronous) {
      queue->be_late([&gate] {
        gate.open.wait(false);
        std::this_thread::yield();
      });
    }
    return queue;
  }

  int queues = 0;
  std::array<Gate, 8> gates;

 private:
  DeviceProperties properties_;
  Interpreter compiler_;
};

struct PoolBlock final : BlockState {
  explicit PoolBlock(MemoryPool& its) : pool(its) {}
  void give_back_memory() noexcept override { pool.deallocate({data, 0, last_use.load()}); }
  void retire_memory() noexcept override { pool.retire(data); }
  MemoryPool& pool;
};

struct SlowDevice {
  explicit SlowDevice(bool asynchronous = true) : backend(asynchronous) {}
  ~SlowDevice() {
    for (Gate& gate : backend.gates) gate.let_run();
    try {
      channels.synchronize();
    } catch (const Error&) {
    }
  }
  SlowBackend backend;
  MemoryPool pool{backend, size_t{1} << 30};
  PlanCache plans{backend};
  Channels channels{backend, plans, pool};

  Window& window(StreamId stream) { return channels.of(stream).window; }

  PoolBlock* make(int64_t count, StreamId stream = kDefaultStream) {
    auto* block = new PoolBlock(pool);
    const Allocation taken =
        pool.allocate(static_cast<size_t>(count) * 4, channels.of(stream).queue.get());
    block->data = static_cast<char*>(taken.data);
    block->bytes = static_cast<size_t>(count) * 4;
    block->born = window(stream).open_program();
    if (taken.fence.outstanding()) block->last_use.store(taken.fence);
    return block;
  }
  // Written by the host.
  PoolBlock* filled(std::vector<float> values) {
    PoolBlock* block = make(static_cast<int64_t>(values.size()));
    block->born = 0;
    Window::finish(*block);
    std::memcpy(block->data, values.data(), values.size() * 4);
    return block;
  }
};

Operands binary(Op op, BlockState* out, BlockState* a, View b) {
  return test::binary(op, static_cast<int64_t>(out->bytes / 4), dense(out), dense(a), b);
}

constexpr StreamId kFirst = 2, kSecond = 4;  // of the pool

}  // namespace

TEST(channels_are_made_when_streams_are_used) {
  SlowDevice d;
  CHECK(d.channels.several());
  CHECK_EQ(d.backend.queues, 1);
  CHECK_EQ(d.channels.if_used(kDefaultStream), &d.channels.first());
  CHECK_EQ(d.channels.if_used(kFirst), nullptr);
  CHECK(d.channels.idle(kFirst));
  d.channels.synchronize(kFirst);
  d.channels.flush(FlushReason::user);
  CHECK_EQ(d.backend.queues, 1);
  Channel& channel = d.channels.of(kFirst);
  CHECK_EQ(&d.channels.of(kFirst), &channel);
  CHECK_EQ(d.channels.if_used(kFirst), &channel);
  CHECK(&channel != &d.channels.first());
  CHECK_EQ(d.backend.queues, 2);
  CHECK(&d.channels.of(1) != &channel);        // of high priority
  CHECK_EQ(&d.channels.of(2 + 64), &channel);  // one of those that come later
  CHECK(&d.channels.of(2 + 62) != &channel);
  CHECK_EQ(&d.channels.of(1 + 64), &d.channels.of(1));
  CHECK_EQ(d.backend.queues, 4);
}

TEST(channels_are_one_where_nothing_is_asynchronous) {
  SlowDevice d(false);
  CHECK(!d.channels.several());
  CHECK_EQ(&d.channels.of(kFirst), &d.channels.first());
  CHECK_EQ(d.channels.if_used(1), &d.channels.first());
  CHECK_EQ(d.backend.queues, 1);
}

TEST(channels_submit_what_another_stream_touches) {
  SlowDevice d;
  auto* x = d.filled({1, 2, 3});
  auto* y = d.make(3);
  auto* z = d.make(3, kFirst);
  d.window(kDefaultStream).record(binary(Op::mul, y, x, number(2)));
  CHECK(d.window(kDefaultStream).pending(*y));
  d.window(kFirst).record(binary(Op::add, z, y, number(1)));
  CHECK(d.window(kDefaultStream).empty());
  CHECK(d.window(kFirst).pending(*y));
  CHECK(!d.channels.empty());
  // Reading is touching, too, and so is being a temporary's operand.
  d.window(kDefaultStream).record(binary(Op::add, x, y, number(1)));
  CHECK(d.window(kFirst).empty());
  CHECK(read(z) == (std::vector<float>{3, 5, 7}));
  CHECK(read(x) == (std::vector<float>{3, 5, 7}));
  const WindowStats stats = d.channels.stats();
  CHECK_EQ(stats.recorded, 3u);
  CHECK_EQ(stats.executed, 3u);
  CHECK_EQ(stats.flushes[static_cast<size_t>(FlushReason::stream)], 2u);
  CHECK_EQ(stats.flushes[static_cast<size_t>(FlushReason::read)], 1u);
  CHECK_EQ(stats.plan_bytes, d.plans.bytes());
  d.channels.reset_stats();
  CHECK_EQ(d.channels.stats().recorded, 0u);
  for (auto* block : {x, y, z}) drop(block);
}

TEST(channels_queues_wait_for_one_another) {
  SlowDevice d;
  auto* x = d.filled({1, 2, 3});
  auto* y = d.make(3);
  auto* z = d.make(3, kFirst);
  auto* other = d.filled({5});
  auto* independent = d.make(1, kSecond);
  d.backend.gates[0].close();  // the default stream's
  d.window(kDefaultStream).record(binary(Op::mul, y, x, number(2)));
  d.window(kFirst).record(binary(Op::add, z, y, number(1)));
  d.window(kSecond).record(binary(Op::add, independent, other, number(1)));
  d.channels.flush(FlushReason::user);
  CHECK(read(independent) == std::vector<float>{6});
  d.channels.synchronize(kSecond);
  CHECK(d.channels.idle(kSecond));
  CHECK(!d.channels.idle(kDefaultStream) && !d.channels.idle(kFirst) && !d.channels.idle());
  d.backend.gates[0].let_run();
  d.channels.synchronize(kFirst);
  CHECK(d.channels.idle(kFirst));
  CHECK(!z->last_use.load().outstanding());
  CHECK(read(z) == (std::vector<float>{3, 5, 7}));
  d.channels.synchronize();
  CHECK(d.channels.idle());
  // What has only been read is overwritten when everybody has read it.
  d.backend.gates[1].close();
  d.window(kFirst).record(binary(Op::mul, z, x, number(3)));
  d.window(kSecond).record(binary(Op::add, x, x, number(100)));
  d.window(kSecond).flush(FlushReason::user);
  CHECK(!d.channels.idle(kSecond));
  d.backend.gates[1].let_run();
  CHECK(read(x) == (std::vector<float>{101, 102, 103}));
  CHECK(read(z) == (std::vector<float>{3, 6, 9}));
  for (auto* block : {x, y, z, other, independent}) drop(block);
}

TEST(channels_memory_is_not_overwritten_while_another_queue_reads_it) {
  for (const int64_t count : {int64_t{8}, int64_t{8000}, int64_t{300'000}}) {
    SlowDevice d;
    auto* x = d.filled(std::vector<float>(static_cast<size_t>(count), 1));
    auto* y = d.make(count, kFirst);
    d.channels.of(kSecond);
    d.backend.gates[1].close();
    d.window(kFirst).record(binary(Op::add, y, x, number(1)));
    d.channels.flush(FlushReason::user);
    const void* const freed = x->data;
    drop(x);
    // The memory may be used again, after the one that reads it.
    std::vector<BlockState*> blocks;
    auto* one = d.filled({1});
    for (int i = 0; i < 20; ++i) {
      blocks.push_back(d.make(count, i % 2 ? kSecond : kDefaultStream));
      CHECK(blocks.back()->data != freed || blocks.back()->last_use.load().outstanding());
      View broadcast{one, 0, DType::f32, Layout::scalar};
      d.window(i % 2 ? kSecond : kDefaultStream)
          .record({kCopy, DType::f32, 1, count, {}, dense(blocks.back()), {broadcast, {}, {}}});
    }
    d.channels.flush(FlushReason::user);
    d.backend.gates[1].let_run();
    CHECK(read(y) == std::vector<float>(static_cast<size_t>(count), 2));
    for (BlockState* block : blocks) {
      CHECK(read(block) == std::vector<float>(static_cast<size_t>(count), 1));
      drop(block);
    }
    drop(y);
    drop(one);
  }
}

TEST(channels_scratch_is_not_overwritten_while_another_queue_uses_it) {
  SlowDevice d;
  auto* x = d.filled({1, 2, 3, 4});
  // What passes from one group to the next in memory that nobody else has.
  const auto through_scratch = [&](StreamId stream, float factor) {
    auto* t = d.make(4, stream);
    auto* y = d.make(3, stream);
    Operands product = binary(Op::mul, t, x, number(factor));
    d.window(stream).record(product);
    View shifted{t, 4, DType::f32, Layout::dense};
    d.window(stream).record({static_cast<Code>(Op::add),
                             DType::f32,
                             2,
                             3,
                             {},
                             dense(y),
                             {View{t, 0, DType::f32, Layout::dense}, shifted, {}}});
    drop(t);
    return y;
  };
  std::vector<std::pair<BlockState*, float>> all;
  for (int i = 0; i < 300; ++i) {
    const auto factor = static_cast<float>(i + 1);
    all.emplace_back(through_scratch(i % 3 * 2, factor), factor);
  }
  for (const auto& [y, factor] : all) {
    CHECK(read(y) == (std::vector<float>{3 * factor, 5 * factor, 7 * factor}));
    drop(y);
  }
  drop(x);
}

TEST(channels_order_what_is_enqueued_beside_programs) {
  SlowDevice d;
  auto* x = d.filled({1, 2, 3});
  auto* y = d.make(3, kFirst);
  auto& copier = static_cast<Interpreter&>(*d.channels.of(kSecond).queue);
  Window& window = d.window(kSecond);
  std::array<float, 3> host{};
  // It comes after the program that another window holds.
  d.backend.gates[1].close();
  d.window(kFirst).record(binary(Op::mul, y, x, number(2)));
  window.begin_use(*y);
  CHECK(d.channels.empty());
  const Ticket ticket = copier.push([&] { std::memcpy(host.data(), y->data, sizeof host); });
  window.end_use(*y, ticket);
  CHECK((y->last_use.load() == Fence{&copier, ticket}));
  CHECK(y->last_use.load().outstanding());
  d.backend.gates[1].let_run();
  // And before what overwrites the block afterwards, on any queue.
  d.window(kFirst).record(binary(Op::add, y, y, number(100)));
  CHECK(read(y) == (std::vector<float>{102, 104, 106}));
  CHECK((host == std::array<float, 3>{2, 4, 6}));
  // Somebody else reads the block between the two: both are waited for.
  d.backend.gates[1].close();
  window.begin_use(*y);
  auto* z = d.make(3, kFirst);
  d.window(kFirst).record(binary(Op::add, z, y, number(1)));
  d.channels.flush(FlushReason::user);
  window.end_use(*y, copier.push([] {}));
  CHECK_EQ(y->last_use.load().queue, static_cast<Queue*>(&copier));
  d.window(kDefaultStream).record(binary(Op::sub, y, y, dense(y)));
  d.channels.flush(FlushReason::user);
  d.backend.gates[1].let_run();
  CHECK(read(z) == (std::vector<float>{103, 105, 107}));
  CHECK(read(y) == (std::vector<float>{0, 0, 0}));
  for (auto* block : {x, y, z}) drop(block);
}

// Additions, products and frees at random on three streams, against the same on the host.
TEST(channels_random_programs_equal_those_of_one_stream) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SlowDevice d;
    std::minstd_rand random(seed);
    struct Value {
      PoolBlock* block;
      std::vector<float> expected;
    };
    std::vector<Value> values;
    const size_t count = seed % 3 == 0 ? 5000 : 6;
    const auto fresh = [&] {
      std::vector<float> numbers(count);
      for (float& n : numbers) n = static_cast<float>(random() % 100);
      values.push_back({d.filled(numbers), numbers});
    };
    for (int i = 0; i < 3; ++i) fresh();
    for (int step = 0; step < 60; ++step) {
      const StreamId stream = random() % 3 * 2;
      Value& a = values[random() % values.size()];
      Value& b = values[random() % values.size()];
      switch (random() % 8) {
        case 0:
          if (values.size() > 2) {
            drop(a.block);
            values.erase(values.begin() + (&a - values.data()));
          }
          break;
        case 1: CHECK(read(a.block) == a.expected); break;
        case 2: d.window(stream).flush(FlushReason::user); break;
        case 3: fresh(); break;
        case 4: {  // in place
          d.window(stream).record(binary(Op::add, a.block, a.block, dense(b.block)));
          const std::vector<float> addend = b.expected;
          for (size_t i = 0; i < count; ++i) a.expected[i] += addend[i];
          break;
        }
        default: {
          PoolBlock* out = d.make(static_cast<int64_t>(count), stream);
          d.window(stream).record(binary(Op::sub, out, a.block, dense(b.block)));
          std::vector<float> expected(count);
          for (size_t i = 0; i < count; ++i) expected[i] = a.expected[i] - b.expected[i];
          values.push_back({out, std::move(expected)});
        }
      }
    }
    bool equal = true;
    for (const Value& value : values) {
      equal = equal && read(value.block) == value.expected;
      drop(value.block);
    }
    if (!equal) CHECK_EQ(std::string("seed"), std::to_string(seed));
    d.channels.finish(FlushReason::user);
    CHECK_EQ(d.pool.stats().allocation.current, 0);
  }
}

TEST(channels_failures_reach_readers_on_other_streams) {
  struct Pool final : Scratch {
    void* allocate_scratch(size_t bytes, Queue&) override { throw OutOfMemory(bytes, 1, 1, 1); }
    void free_scratch(void*, Fence) noexcept override {}
  };
  SlowBackend backend;
  MemoryPool memory(backend, size_t{1} << 30);
  PlanCache plans(backend);
  Pool none;
  Channels channels(backend, plans, none);
  const auto make = [&](int64_t count) {
    auto* block = new PoolBlock(memory);
    block->data = static_cast<char*>(memory.allocate(static_cast<size_t>(count) * 4).data);
    block->bytes = static_cast<size_t>(count) * 4;
    return block;
  };
  auto *x = make(4), *y = make(3), *z = make(3), *w = make(3);
  std::memset(x->data, 0, 16);
  std::memset(w->data, 0, 12);
  auto* t = make(4);
  t->born = channels.first().window.open_program();
  channels.first().window.record(binary(Op::mul, t, x, number(2)));
  View low{t, 0, DType::f32, Layout::dense}, high{t, 4, DType::f32, Layout::dense};
  channels.first().window.record(
      {static_cast<Code>(Op::add), DType::f32, 2, 3, {}, dense(y), {low, high, {}}});
  drop(t);  // passes through scratch, which there is none of
  Window& window = channels.of(kFirst).window;
  window.record(binary(Op::add, w, w, number(1)));
  // The flush that it needs says what has failed, once.
  CHECK_THROWS(window.record(binary(Op::add, z, y, number(1))), Error, "out of memory");
  window.record(binary(Op::add, z, y, number(1)));
  CHECK_THROWS(Window::finish(*z), Error, "out of memory");
  CHECK_THROWS(Window::finish(*y), Error, "out of memory");
  CHECK(read(w) == (std::vector<float>{1, 1, 1}));
  window.record(binary(Op::add, y, w, number(1)));
  CHECK(read(y) == (std::vector<float>{2, 2, 2}));
  for (auto* block : {x, y, z, w}) drop(block);
}

TEST(channels_captures_are_in_the_order_of_flushes) {
  SlowDevice d;
  auto* x = d.filled({1});
  d.window(kFirst);
  d.channels.start_capture();
  const StreamId streams[] = {kFirst, kDefaultStream, kSecond, kFirst};
  for (size_t i = 0; i < std::size(streams); ++i) {
    for (size_t k = 0; k <= i; ++k) {
      d.window(streams[i]).record(binary(Op::add, x, x, number(1)));
    }
    d.window(streams[i]).flush(FlushReason::user);
  }
  const std::vector<Flushed> flushed = d.channels.end_capture();
  CHECK_EQ(flushed.size(), 4u);
  for (size_t i = 0; i < flushed.size(); ++i) {
    CHECK_EQ(flushed[i].program.code.size(), i + 1);
  }
  drop(x);
}

TEST(channels_are_locked_for_a_fork) {
  SlowDevice d;
  auto* x = d.filled({1});
  auto* y = d.make(1, kFirst);
  d.window(kDefaultStream).record(binary(Op::add, x, x, number(1)));
  d.window(kFirst).record(binary(Op::add, y, x, number(1)));
  d.channels.lock_for_fork();
  CHECK(d.channels.empty() && !x->last_use.load().outstanding() &&
        !y->last_use.load().outstanding());
  d.channels.unlock_after_fork();
  CHECK(read(y) == std::vector<float>{3});
  drop(x);
  drop(y);
}

TEST(channels_threads_record_on_streams_of_their_own) {
  constexpr int kThreads = 4, kSteps = 300;
  SlowDevice d;
  auto* shared = d.filled({1, 1});
  std::vector<PoolBlock*> sums;
  for (int i = 0; i < kThreads; ++i) sums.push_back(d.filled({0, 0}));
  std::atomic<bool> stop{false};
  std::thread onlooker([&] {
    while (!stop) {
      CHECK(read(shared) == (std::vector<float>{1, 1}));
      d.channels.stats();
      d.channels.flush(FlushReason::user);
    }
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const StreamId stream = 2 * i;  // one has the default stream
      PoolBlock* const sum = sums[static_cast<size_t>(i)];
      for (int step = 0; step < kSteps; ++step) {
        PoolBlock* const twice = d.make(2, stream);
        d.window(stream).record(binary(Op::mul, twice, shared, number(2)));
        d.window(stream).record(binary(Op::add, sum, sum, dense(twice)));
        drop(twice);
        if (step % 50 == i) {
          const auto expected = static_cast<float>(2 * (step + 1));
          CHECK(read(sum) == (std::vector<float>{expected, expected}));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop = true;
  onlooker.join();
  for (PoolBlock* sum : sums) {
    CHECK(read(sum) == (std::vector<float>{2 * kSteps, 2 * kSteps}));
    drop(sum);
  }
  drop(shared);
  d.channels.finish(FlushReason::user);
  CHECK_EQ(d.pool.stats().allocation.current, 0);
}

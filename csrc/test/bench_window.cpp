// What the stream's window costs without torch, as a Markdown table: nanoseconds and their bounds.
//   make bench-window
//
// Figures are those of the quickest of several rounds, to see past other processes; the first
// execution is a median over programs, because each can be executed first only once.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "atlas/backends.h"
#include "atlas/op_table.h"
#include "atlas/window.h"
#include "cpu/compiled_group.h"
#include "operands.h"

namespace {

using namespace hologram;
using namespace hologram::test;

constexpr int kRounds = 31;
constexpr int kOps = 10;
constexpr int64_t kCount = 16;

uint64_t now() noexcept {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

struct Heap : Scratch {
  void* allocate_scratch(size_t bytes, Queue&) override { return std::malloc(bytes); }
  void free_scratch(void* memory, Fence) noexcept override { std::free(memory); }
};

// Compiles and runs nothing.
struct Idle final : PlanCompiler, Queue, Heap {
  struct Code final : PlanCode {
    size_t bytes() const noexcept override { return 0; }
  };
  std::unique_ptr<PlanCode> compile(const Plan&) override { return std::make_unique<Code>(); }
  Ticket submit(const std::shared_ptr<const Compiled>&, Frame&) override { return 1; }
  Ticket copy(void*, const void*, size_t, Direction) override { return 1; }
  Ticket fill(void*, const void*, size_t, size_t) override { return 1; }
  Ticket record(std::shared_ptr<Moment>) override { return 1; }
  void wait_for(const Fence&) override {}
  Ticket last() noexcept override { return 1; }
  bool done(Ticket) noexcept override { return true; }
  void wait(Ticket) override {}
};

// The CPU backend's.
struct Real final : PlanCompiler, Queue, Heap {
  std::unique_ptr<Backend> backend = make_cpu_backend(0, 1);
  std::unique_ptr<Queue> queue = backend->make_queue(0);
  std::unique_ptr<PlanCode> compile(const Plan& plan) override { return backend->compile(plan); }
  Ticket submit(const std::shared_ptr<const Compiled>& compiled, Frame& frame) override {
    return queue->submit(compiled, frame);
  }
  Ticket copy(void* to, const void* from, size_t bytes, Direction direction) override {
    return queue->copy(to, from, bytes, direction);
  }
  Ticket fill(void* to, const void* element, size_t element_bytes, size_t count) override {
    return queue->fill(to, element, element_bytes, count);
  }
  Ticket record(std::shared_ptr<Moment> moment) override { return queue->record(moment); }
  void wait_for(const Fence& fence) override { queue->wait_for(fence); }
  Ticket last() noexcept override { return queue->last(); }
  bool done(Ticket ticket) noexcept override { return queue->done(ticket); }
  void wait(Ticket ticket) override { queue->wait(ticket); }
};

// A block whose memory outlives it. Objects are used again, as the device's are.
struct BenchBlock final : BlockState {
  void give_back_memory() noexcept override {}
  static void* operator new(size_t size) {
    if (unused.empty()) return ::operator new(size);
    void* memory = unused.back();
    unused.pop_back();
    return memory;
  }
  static void operator delete(void* memory) { unused.push_back(memory); }
  static std::vector<void*> unused;
};
std::vector<void*> BenchBlock::unused;

struct Stream {
  template <class B>
  explicit Stream(B& backend) : plans(backend), window(plans, backend, backend) {}
  PlanCache plans;
  Window window;

  BlockState* make(float* data, int64_t count, bool old = false) {
    auto* block = new BenchBlock;
    block->data = reinterpret_cast<char*>(data);
    block->bytes = static_cast<size_t>(count) * sizeof(float);
    block->born = old ? 0 : window.open_program();
    return block;
  }
  static void drop(BlockState* block) {
    if (!Window::keep(block)) delete block;
  }
};

Operands unary(Op op, int64_t count, View out, View x) {
  return {static_cast<Code>(op), DType::f32, 1, count, {}, out, {x, {}, {}}};
}

void line(const char* what, double nanoseconds, double bound = 0) {
  std::printf("| %s | %.1f |", what, nanoseconds);
  std::printf(bound > 0 ? " %g |\n" : " |\n", bound);
}

// What asking for the time costs.
double clock_overhead() {
  double best = std::numeric_limits<double>::max();
  for (int round = 0; round < kRounds; ++round) {
    uint64_t sum = 0;
    for (int i = 0; i < 1000; ++i) {
      const uint64_t start = now();
      sum += now() - start;
    }
    best = std::min(best, static_cast<double>(sum) / 1000);
  }
  return best;
}

struct Costs {
  double record, free, flush;  // of all operations of one program
};

// A chain of `operations` on 16 elements: y = x * 2; y = y + x; ... Each result is a block of its
// own; all but the last die before the flush, or with `keep` after it.
template <class B = Idle>
Costs chain(int operations, bool keep, double clock) {
  B backend;
  Stream stream(backend);
  std::vector<float> memory(kCount);
  BlockState* x = stream.make(memory.data(), kCount, true);
  std::vector<BlockState*> results(static_cast<size_t>(operations));
  const int programs = std::max(1, 4000 / operations);
  Costs best{1e18, 1e18, 1e18};
  for (int round = 0; round < kRounds; ++round) {
    uint64_t record = 0, free = 0, flush = 0;
    for (int k = 0; k < programs; ++k) {
      for (BlockState*& result : results) result = stream.make(memory.data(), kCount);
      const uint64_t t0 = now();
      BlockState* last = x;
      for (size_t i = 0; i < results.size(); ++i) {
        stream.window.record(binary(i % 2 ? Op::add : Op::mul, kCount, dense(results[i]),
                                    dense(last), i % 2 ? dense(x) : number(2)));
        last = results[i];
      }
      const uint64_t t1 = now();
      if (!keep) {
        for (size_t i = 0; i + 1 < results.size(); ++i) Stream::drop(results[i]);
      }
      const uint64_t t2 = now();
      stream.window.flush(FlushReason::user);
      const uint64_t t3 = now();
      record += t1 - t0;
      free += t2 - t1;
      flush += t3 - t2;
      for (BlockState* result : results) {
        if (keep || result == last) Stream::drop(result);
      }
    }
    const auto mean = [&](uint64_t sum) { return static_cast<double>(sum) / programs - clock; };
    best.record = std::min(best.record, mean(record));
    best.free = std::min(best.free, mean(free));
    best.flush = std::min(best.flush, mean(flush));
  }
  Stream::drop(x);
  return best;
}

// Programs that are executed for the first time, and later, with the CPU.
struct Program60 {
  std::vector<Operands> code;
  std::vector<BlockState*> blocks;  // made by the program
  std::vector<bool> kept;
};

// 60 operations on four old tensors; the last four results live on.
void random_program(Stream& stream, unsigned seed, const std::vector<BlockState*>& inputs,
                    std::vector<float>& memory, Program60& program) {
  constexpr Op kBinary[] = {Op::add, Op::sub, Op::mul, Op::div};
  constexpr Op kUnary[] = {Op::tanh, Op::sqrt, Op::relu, Op::neg, Op::exp, Op::sigmoid};
  std::minstd_rand random(seed);
  program = {};
  std::vector<BlockState*> values = inputs;
  const auto pick = [&] {
    const size_t recent = std::min<size_t>(values.size(), 8);
    return dense(values[values.size() - 1 - random() % recent]);
  };
  for (int i = 0; i < 60; ++i) {
    BlockState* out =
        stream.make(memory.data() + (static_cast<int64_t>(inputs.size()) + i) * kCount, kCount);
    const unsigned kind = random() % 4;
    if (kind == 0) {
      program.code.push_back(
          unary(kUnary[random() % std::size(kUnary)], kCount, dense(out), pick()));
    } else {
      const View left = pick();
      program.code.push_back(binary(kBinary[random() % std::size(kBinary)], kCount, dense(out),
                                    left, kind == 1 ? number(1.5f) : pick()));
    }
    values.push_back(out);
    program.blocks.push_back(out);
    program.kept.push_back(i >= 56);
  }
}

// Adam's step on four tensors, 12 operations each, and 12 more that make the program a new one.
void adam_program(Stream& stream, unsigned seed, const std::vector<BlockState*>& inputs,
                  std::vector<float>& memory, Program60& program) {
  program = {};
  int64_t used = static_cast<int64_t>(inputs.size());
  const auto temporary = [&] {
    BlockState* block = stream.make(memory.data() + used++ * kCount, kCount);
    program.blocks.push_back(block);
    program.kept.push_back(false);
    return dense(block);
  };
  const auto emit = [&](Op op, View out, View x, View y) {
    program.code.push_back(binary(op, kCount, out, x, y));
  };
  for (size_t i = 0; i < 4; ++i) {
    const View p = dense(inputs[4 * i]), g = dense(inputs[4 * i + 1]);
    const View m = dense(inputs[4 * i + 2]), v = dense(inputs[4 * i + 3]);
    const View a = temporary(), b = temporary(), c = temporary(), d = temporary();
    const View e = temporary(), f = temporary(), h = temporary();
    emit(Op::mul, m, m, number(0.9f));
    emit(Op::mul, a, g, number(0.1f));
    emit(Op::add, m, m, a);
    emit(Op::mul, v, v, number(0.999f));
    emit(Op::mul, b, g, g);
    emit(Op::mul, c, b, number(0.001f));
    emit(Op::add, v, v, c);
    emit(Op::mul, d, m, number(1e-3f));
    program.code.push_back(unary(Op::sqrt, kCount, e, v));
    emit(Op::add, f, e, number(1e-8f));
    emit(Op::div, h, d, f);
    emit(Op::sub, p, p, h);
    if (i == 3) {
      for (unsigned bit = 0; bit < 12; ++bit) {
        emit(seed >> bit & 1 ? Op::add : Op::mul, p, p, g);
      }
    }
  }
}

struct First {
  double first, later;
};

template <class Make>
First first_execution(Make&& make, size_t inputs) {
  Real real;
  Stream stream(real);
  std::vector<float> memory(256 * kCount, 0.5f);
  std::vector<BlockState*> old;
  for (size_t i = 0; i < inputs; ++i) {
    old.push_back(stream.make(memory.data() + static_cast<int64_t>(i) * kCount, kCount, true));
  }
  Program60 program;
  std::vector<double> first, later;
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::vector<double> again;
    for (int run = 0; run < 8; ++run) {
      make(stream, seed, old, memory, program);
      for (const Operands& operands : program.code) stream.window.record(operands);
      for (size_t i = 0; i < program.blocks.size(); ++i) {
        if (!program.kept[i]) Stream::drop(program.blocks[i]);
      }
      const uint64_t start = now();
      stream.window.flush(FlushReason::user);
      const auto elapsed = static_cast<double>(now() - start);
      for (size_t i = 0; i < program.blocks.size(); ++i) {
        if (program.kept[i]) Stream::drop(program.blocks[i]);
      }
      if (run == 0) first.push_back(elapsed);
      if (run > 1) again.push_back(elapsed);  // the second sight is a miss too
    }
    std::ranges::sort(again);
    later.push_back(again[again.size() / 2]);
  }
  for (BlockState* block : old) Stream::drop(block);
  std::ranges::sort(first);
  std::ranges::sort(later);
  return {first[first.size() / 2], later[later.size() / 2]};
}

// Memory where the boundary pool has it: classes begin at multiples of 4 KiB.
struct Aligned {
  explicit Aligned(int64_t count)
      : data(static_cast<float*>(
            std::aligned_alloc(4096, (static_cast<size_t>(count) * 4 + 4095) / 4096 * 4096))) {
    std::fill_n(data, count, 1.f);
  }
  ~Aligned() { std::free(data); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  float* data;
};

// Ten operations compiled, on `count` elements in the cache: nanoseconds. Either x = x * s + t five
// times over, whose equal jumps the processor cannot tell apart, or one of each kind.
double prepared(int64_t count, bool varied) {
  Group group;
  group.compute_type = ComputeType::f32;
  group.operands = {{DType::f32, Layout::dense, 0}, {DType::f32, Layout::dense, 1}};
  group.immediates = 2;
  const auto add = [&](Node node) {
    group.nodes.push_back(node);
    return static_cast<uint16_t>(group.nodes.size() - 1);
  };
  const auto op = [&](Op op, uint16_t a, uint16_t b = 0) {
    return add({NodeKind::compute, op, DType::f32, a, b});
  };
  const uint16_t x = add({NodeKind::load, Op::add, DType::f32, 0});
  const uint16_t s = add({NodeKind::immediate, Op::add, DType::f32, 0});
  const uint16_t t = add({NodeKind::immediate, Op::add, DType::f32, 1});
  uint16_t y = x;
  if (varied) {
    y = op(Op::add, op(Op::mul, op(Op::mul, y, y), s), x);
    y = op(Op::sub, op(Op::relu, op(Op::add, y, t)), x);
    y = op(Op::mul, op(Op::sub, op(Op::neg, op(Op::mul, y, x)), s), t);
  } else {
    for (int i = 0; i < kOps; ++i) y = op(i % 2 ? Op::add : Op::mul, y, i % 2 ? t : s);
  }
  add({NodeKind::store, Op::add, DType::f32, y, 1});
  const auto code = cpu::compile(group);
  const Aligned in(count), out(count);
  void* operands[] = {in.data, out.data};
  const uint64_t immediates[] = {std::bit_cast<uint32_t>(0.75f), std::bit_cast<uint32_t>(0.01f)};
  const Binding binding{operands, immediates, count, 0, nullptr, nullptr};
  double best = std::numeric_limits<double>::max();
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t start = now();
    for (int i = 0; i < 1000; ++i) cpu::run(*code, binding);
    best = std::min(best, static_cast<double>(now() - start) / 1000);
  }
  return best;
}

}  // namespace

int main() {
  const double clock = clock_overhead();
  std::printf("| what | ns | bound |\n| --- | ---: | ---: |\n");
  const Costs ten = chain(kOps, false, clock), kept = chain(kOps, true, clock);
  const Costs many = chain(4000, false, clock);
  line("recording, per operation, programs of 10", ten.record / kOps, 20);
  line("recording, per operation, programs of 4000", many.record / 4000, 20);
  line("the end of a temporary", ten.free / (kOps - 1));
  line("cache-hit flush of 10 operations without execution, 9 temporaries", ten.flush, 150);
  line("cache-hit flush of 10 operations without execution, 10 results", kept.flush, 150);
  line("cache-hit flush of 4000 operations without execution, per operation", many.flush / 4000);
  line("flush with execution of 2 operations of 16 floats", chain<Real>(2, false, clock).flush,
       250);
  const First random = first_execution(random_program, 4);
  const First adam = first_execution(adam_program, 16);
  line("first execution of 60 random operations, above later ones", random.first - random.later,
       50'000);
  line("later executions of 60 random operations", random.later);
  line("first execution of Adam on 4 tensors, above later ones", adam.first - adam.later, 50'000);
  line("later executions of Adam on 4 tensors", adam.later);
  line("prepared program of 10 operations on 12288 bytes, per operation",
       prepared(3072, true) / kOps, 40);
  line("the same, x * s + t five times", prepared(3072, false) / kOps, 40);
  line("prepared program of 10 operations on 64 bytes, per operation", prepared(16, true) / kOps);
}

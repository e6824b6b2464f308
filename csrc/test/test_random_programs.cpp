// Random programs: recorded and run at once they compute what one operation after the other does.
#include <algorithm>
#include <bit>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "atlas/call.h"
#include "atlas/canonicalise.h"
#include "atlas/op_table.h"
#include "check.h"
#include "streams.h"

using namespace hologram;
using namespace hologram::test;

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
  RandomSource random{RandomState(5)};

  void record(const Operands& operands) {
    s.window.record(operands);
    if (eager) s.window.flush(FlushReason::eager);
  }
};

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f64, DType::i64};
constexpr int64_t kBlockElements = 24;  // of 8 bytes

struct Step {
  enum Kind { make, free, compute, read, call } kind;
  Op op;
  DType dtype;
  size_t out, a, b;  // blocks
  DType out_dtype, a_dtype, b_dtype;
  int64_t out_offset, a_offset, b_offset;  // elements
  int64_t count;
  bool immediate, a_scalar, copy, draws;
  Draw draw;
  double value;
  int a_strides;  // 0: dense; 1: the rows of kSizes broadcast, 2: its transpose
  Spread scans;   // the axis, kOne for none
};

// out[i] = a[n - 1 - i] * 2 + b[i]
class Reverse final : public Call {
 public:
  explicit Reverse(int64_t count) : count_(static_cast<size_t>(count)) {}
  void run(std::span<void* const> memory) override {
    const auto* const a = static_cast<const float*>(memory[0]);
    const auto* const b = static_cast<const float*>(memory[1]);
    auto* const out = static_cast<float*>(memory[2]);
    for (size_t i = 0; i < count_; ++i) out[i] = a[count_ - 1 - i] * 2 + b[i];
  }

 private:
  size_t count_;
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
    case Step::call: {
      const auto range = [&](size_t block, int64_t offset) -> Range {
        return {world.blocks[block], 4 * offset, DType::f32, step.count};
      };
      const Range reads[] = {range(step.a, step.a_offset), range(step.b, step.b_offset)};
      const Range writes[] = {range(step.out, step.out_offset)};
      CallOperands call{"test::reverse", reads, writes, std::make_shared<Reverse>(step.count)};
      world.s.window.record(call);
      if (world.eager) world.s.window.flush(FlushReason::eager);
      return;
    }
    case Step::compute: break;
  }
  const bool scans = step.scans != kOne;
  Operands operands{step.copy ? kCopy
                    : scans   ? scan_of(step.op, step.scans)
                              : static_cast<Code>(step.op),
                    step.dtype,
                    step.copy || scans ? 1 : op_info(step.op).arity,
                    step.count,
                    {},
                    view(world, step.out, step.out_dtype, step.out_offset, false),
                    {}};
  if (step.draws) {
    operands.code = code_of(step.draw);
    operands.arity = kDrawImmediates;
    const RandomState from = world.random.reserve(100);
    // As a device says it: the range of integers.
    const uint64_t immediates[] = {from.seed, from.offset, step.draw == Draw::integer ? 7u : 0u};
    for (size_t k = 0; k < operands.in.size(); ++k) {
      operands.in[k] = {nullptr, static_cast<int64_t>(immediates[k]), DType::i64, Layout::scalar};
    }
    if (step.a_strides != 0) {
      operands.sizes = kSizes;
      operands.out.layout = Layout::strided;
      const auto size = static_cast<int64_t>(dtype_size(step.out_dtype));
      const int64_t transposed[] = {size, 2 * size};
      operands.out.strides = transposed;
      return world.record(operands);
    }
    return world.record(operands);
  }
  operands.in[0] = view(world, step.a, step.a_dtype, step.a_offset, step.a_scalar);
  const auto item = static_cast<int64_t>(dtype_size(step.a_dtype));
  const int64_t rows[] = {0, item}, transposed[] = {item, 2 * item};
  if (step.a_strides != 0) {
    operands.sizes = kSizes;
    operands.in[0].layout = Layout::strided;
    operands.in[0].strides = step.a_strides == 1 ? rows : transposed;
  }
  if (scans) {
    const int64_t rows = step.count % 2 == 0 ? 2 : 1;
    operands.dimensions = {1, rows, step.count / rows};
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
  Generator(uint32_t seed, bool calls) : calls_(calls), random_(seed) {}

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
    if (kind == 3 && calls_) {
      step.kind = Step::call;
      step.a = pick(blocks);
      step.b = pick(blocks);
      step.count = 11;
      step.out_offset = offset(true);
      step.a_offset = offset(true);
      step.b_offset = offset(true);
      if (step.a == step.out || step.b == step.out) return next(blocks, only_f32);
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
    if (pick(10) == 0 && step.a_strides == 0) {
      step.scans = pick(2) == 0 ? kColumns : kMiddle;
      step.op = pick(2) == 0 ? Op::add : Op::mul;
      step.out_dtype = step.dtype;
      step.copy = step.a_scalar = false;
    }
    if (pick(8) == 0) {
      step.draws = true;
      step.scans = kOne;
      const bool whole = step.dtype == DType::i64;
      step.draw = pick(2) == 0 ? (whole ? Draw::integer : Draw::uniform)
                               : (whole ? Draw::long_integer : Draw::normal);
      step.a = step.b = step.out;  // there are none
      step.a_offset = step.b_offset = 0;
      return step;
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
  bool calls_;  // the queue makes calls
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
    Generator generator(seed, !late);
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

// Runs of groups: tails, broadcasts, threads, batches.
#include <algorithm>
#include <bit>
#include <vector>

#include "atlas/float_mode.h"
#include "check.h"
#include "groups.h"
#include "interpret.h"
#include "threads.h"

using namespace hologram;
using namespace hologram::cpu;
using namespace hologram::test;

TEST(group_tails_of_every_length) {
  Random random(2);
  for (const ComputeType c : kComputeTypes) {
    for (int64_t count = 0; count <= 300; ++count) {
      Builder b(c);
      const uint16_t x = b.load(b.operand(b.own())), y = b.load(b.operand(b.own()));
      const uint16_t sum = b.op(Op::add, b.own(), x, y);
      b.store(b.op(Op::mul, b.own(), sum, b.immediate(b.own())), b.operand(b.own()));
      b.store(b.op(Op::lt, DType::b8, x, sum), b.operand(DType::b8));
      if (!check_group(b.group, make_scene(b.group, {count}, random), "tail")) return;
    }
  }
}

// Rows around the lengths of tiles, beside operands that are contiguous, repeated and neither in
// them; of one thread, and of several, which begin anywhere in a row.
TEST(group_rows_of_every_length) {
  Random random(13);
  Threads threads(4);
  for (const int64_t row : {1, 31, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300, 1025}) {
    for (const int64_t rows : {int64_t{5}, 40'000 / row}) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::b8}) {
        Builder b(ComputeType::f32);
        const uint16_t x = b.load(b.operand(DType::f32));
        const uint16_t bias = b.load(b.operand(dtype, Layout::strided), DType::f32);
        const uint16_t scale = b.load(b.operand(dtype, Layout::strided), DType::f32);
        const uint16_t turned = b.load(b.operand(DType::f32, Layout::strided));
        const uint16_t sum = b.op(Op::add, DType::f32, b.op(Op::mul, DType::f32, x, scale), bias);
        b.store(b.op(Op::maximum, DType::f32, sum, turned), b.operand(DType::f32));
        b.store(sum, b.operand(DType::bf16, Layout::strided));
        Scene scene = make_scene(b.group, {rows, row}, random, false);
        const auto size = static_cast<int64_t>(dtype_size(dtype));
        // Of a matrix of these rows, in elements: bias, scale, transposed, and rows with a gap.
        const int64_t strides[][3] = {{0, 1, size}, {1, 0, size}, {1, rows, 4}, {row + 3, 1, 2}};
        for (size_t k = 0; k < 4; ++k) {
          const size_t operand = k < 3 ? k + 1 : 5;
          const auto [down, along, bytes] = strides[k];
          const int64_t extent = down * (rows - 1) + along * (row - 1) + 1;
          scene.memory[operand] = Memory(static_cast<size_t>(extent * bytes));
          fill_random(scene.memory[operand],
                      k < 2    ? dtype
                      : k == 2 ? DType::f32
                               : DType::bf16,
                      random);
          scene.first[operand] = 0;
          scene.strides[operand * 2] = down * bytes;
          scene.strides[operand * 2 + 1] = along * bytes;
        }
        if (!check_group(b.group, scene, "row")) return;
        if (!check_group(b.group, scene, "row of threads", threads)) return;
      }
    }
  }
}

TEST(group_broadcasts) {
  Random random(8);
  const std::vector<int64_t> sizes = {3, 5, 400};
  // Strides in elements of bias, row scale, both and whole, the last of them reversed.
  const int64_t cases[][3] = {{0, 0, 1}, {5, 1, 0}, {1, 0, 0}, {2000, 400, 1}, {2000, 400, -1}};
  for (const auto& c : cases) {
    for (const DType dtype : {DType::b8, DType::bf16, DType::f32, DType::f64}) {
      Builder b(ComputeType::f32);
      const uint16_t x = b.load(b.operand(DType::f32));
      const uint16_t y = b.load(b.operand(dtype, Layout::strided), DType::f32);
      b.store(b.op(Op::mul, DType::f32, x, y), b.operand(DType::f32));
      Scene scene = make_scene(b.group, sizes, random);
      scene.memory[1] = Memory(6000 * dtype_size(dtype));
      fill_random(scene.memory[1], dtype, random);
      const auto size = static_cast<int64_t>(dtype_size(dtype));
      scene.first[1] = c[2] < 0 ? 399 * dtype_size(dtype) : 0;
      for (size_t d = 0; d < 3; ++d) scene.strides[3 + d] = c[d] * size;
      check_group(b.group, scene, "broadcast");
    }
  }
}

TEST(group_threads_share_the_work) {
  Random random(5);
  Threads threads(4);
  for (const int64_t count : {32'767, 32'768, 100'001, 131'072}) {
    for (const Layout layout : {Layout::dense, Layout::strided}) {
      Builder b(ComputeType::f32);
      const uint16_t x = b.load(b.operand(DType::f32, layout));
      const uint16_t y = b.load(b.operand(DType::bf16), DType::f32);
      const uint16_t s = b.load(b.operand(DType::f64, Layout::scalar), DType::f32);
      const uint16_t e = b.op(Op::maximum, DType::f32, x, y);
      b.store(b.op(Op::add, DType::f32, b.op(Op::mul, DType::f32, e, s), e), b.operand(DType::f32));
      if (!check_group(b.group, make_scene(b.group, {count}, random), "threads", threads)) return;
    }
  }
}

// One run over many bindings, of one group: by one thread and by several.
TEST(group_threads_share_the_members_of_a_batch) {
  Random random(11);
  Threads threads(4);
  for (const Layout layout : {Layout::dense, Layout::strided}) {
    Builder b(ComputeType::f32);
    const uint16_t x = b.load(b.operand(DType::f32, layout)), y = b.load(b.operand(DType::bf16));
    const uint16_t s = b.load(b.operand(DType::f16, Layout::scalar), DType::f32);
    const uint16_t product = b.op(Op::mul, DType::f32, x, b.immediate(DType::f32));
    const uint16_t sum = b.op(Op::add, DType::f32, product, b.op(Op::div, DType::f32, y, s));
    b.store(sum, b.operand(DType::f32));
    b.store(b.op(Op::mul, DType::bf16, y, y), b.operand(DType::bf16));
    std::vector<Scene> scenes;
    // Together they are more than 4 MiB: one thread fetches the members ahead, too.
    for (const int64_t count : {0, 1, 3072, 3071, 0, 0, 3073, 120'000, 0}) {
      for (int copies = 0; copies < 3; ++copies) {
        scenes.push_back(make_scene(b.group, {count}, random));
      }
    }
    std::vector<Scene> expected = scenes;
    std::vector<void*> pointers;
    for (Scene& scene : expected) interpret(b.group, scene.binding(pointers));
    for (const Isa isa : sets()) {
      const auto code = compile(b.group, isa);
      for (Parallel* parallel : {&serial(), static_cast<Parallel*>(&threads)}) {
        std::vector<Scene> actual = scenes;
        std::vector<std::vector<void*>> addresses(actual.size());
        std::vector<Binding> bindings;
        for (size_t i = 0; i < actual.size(); ++i) {
          bindings.push_back(actual[i].binding(addresses[i]));
        }
        cpu::run(*code, bindings, *parallel);
        for (size_t i = 0; i < actual.size(); ++i) {
          if (!compare_scenes(actual[i], expected[i], b.group, "member")) return;
        }
      }
    }
  }
}

#if defined(__x86_64__) || defined(__aarch64__)
TEST(group_threads_flush_denormals_as_the_caller) {
  Threads threads(4);
  Builder b(ComputeType::f32);
  const uint16_t x = b.load(b.operand(DType::f32));
  b.store(b.op(Op::mul, DType::f32, x, b.immediate(DType::f32)), b.operand(DType::f32));
  const auto code = compile(b.group);
  std::vector<float> in(100'000, 0x1p-126f), out(in.size());
  const uint64_t half = std::bit_cast<uint32_t>(0.5f);
  void* operands[] = {in.data(), out.data()};
  const Binding binding{operands, &half, static_cast<int64_t>(in.size()), 0, nullptr, nullptr};
  {
    const FloatModeGuard guard(static_cast<FloatMode>(detail::kFloatModeBits));
    cpu::run(*code, binding, threads);
  }
  CHECK(std::all_of(out.begin(), out.end(), [](float y) { return y == 0; }));
  cpu::run(*code, binding, threads);
  CHECK(std::all_of(out.begin(), out.end(), [](float y) { return y == 0x1p-127f; }));
}
#endif

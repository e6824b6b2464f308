// Launches planned once for all runs of a shape, against those planned for each run.
#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "atlas/error.h"
#include "check.h"
#include "gpu/launch.h"
#include "gpu/pieces.h"
#include "gpu/prepared.h"
#include "random_groups.h"
#include "rows.h"

using namespace hologram;
using namespace hologram::test;

namespace {

constexpr gpu::Target kEmitted{.threads = 64, .enough_threads = 2048};
constexpr gpu::Target kCold{.cold = true, .threads = 64, .enough_threads = 2048};

// A group's bindings at other addresses and with other numbers.
struct Run {
  std::deque<std::vector<void*>> pointers;
  std::deque<std::vector<uint64_t>> numbers;
  std::vector<Binding> bindings;

  void add(const Group& group, Binding binding, uintptr_t distance, Random& random) {
    auto& own = pointers.emplace_back(binding.operands, binding.operands + group.operands.size());
    for (void*& pointer : own) pointer = static_cast<char*>(pointer) + distance;
    auto& drawn = numbers.emplace_back();
    for (int i = 0; i < group.immediates; ++i) drawn.push_back(random());
    binding.operands = own.data();
    binding.immediates = drawn.data();
    bindings.push_back(binding);
  }
};

// What a run has of prepared launches.
gpu::Launches launches_of(const gpu::Prepared& prepared, std::span<const Binding> bindings) {
  gpu::Launches result;
  result.scratch_bytes = prepared.scratch_bytes();
  for (const gpu::Prepared::Launch& its : prepared.launches()) {
    gpu::Launch& launch =
        result.list.emplace_back(gpu::Launch{its.kernel, its.blocks, its.threads, {}, {}, {}});
    launch.arguments = its.arguments;
    for (const auto& place : its.addresses) {
      launch.arguments[place.at].address = gpu::Prepared::address(place, bindings);
    }
    launch.parameters.resize(its.parameters.bytes.size());
    its.parameters.write(launch.parameters.data(), bindings);
    launch.table.resize(its.table.bytes.size());
    its.table.write(launch.table.data(), bindings);
  }
  return result;
}

bool same(const gpu::Launches& x, const gpu::Launches& y) {
  const auto same_argument = [](const gpu::Argument& a, const gpu::Argument& b) {
    return a.address == b.address && (a.address != nullptr || a.scratch == b.scratch) &&
           a.is_program == b.is_program && a.is_table == b.is_table &&
           a.is_counters == b.is_counters;
  };
  const auto same_launch = [&](const gpu::Launch& a, const gpu::Launch& b) {
    return a.kernel == b.kernel && a.blocks == b.blocks && a.threads == b.threads &&
           std::ranges::equal(a.arguments, b.arguments, same_argument) &&
           a.parameters == b.parameters && a.table == b.table;
  };
  return x.scratch_bytes == y.scratch_bytes && std::ranges::equal(x.list, y.list, same_launch);
}

// Prepares one run and looks at others of the same shape. Returns how many launches have a table.
size_t check_runs(const Group& group, const std::vector<Binding>& bindings,
                  const gpu::Prepared::Planner& planner, Random& random) {
  std::deque<Run> runs(3);
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const Binding& binding : bindings) runs[i].add(group, binding, 4096 * i, random);
  }
  const gpu::Prepared prepared(group, runs[0].bindings, planner);
  for (const Run& run : runs) {
    CHECK(prepared.fits(run.bindings));
    CHECK(same(launches_of(prepared, run.bindings), planner(run.bindings)));
  }
  return static_cast<size_t>(std::ranges::count_if(
      prepared.launches(), [](const auto& launch) { return !launch.table.bytes.empty(); }));
}

std::vector<int64_t> random_sizes(Random& random) {
  return {static_cast<int64_t>(1 + random() % 5), static_cast<int64_t>(1 + random() % 90)};
}

Group random_run_group(Random& random, bool strided) {
  return random_group(6, random, strided, [](Op, ComputeType) { return true; });
}

}  // namespace

TEST(gpu_prepared_runs_are_those_that_are_planned) {
  Random random(71);
  size_t checked = 0, tables = 0;
  for (int i = 0; i < 200; ++i) {
    const Group group = random_run_group(random, i % 3 == 0);
    for (const gpu::Target& target : {kEmitted, kCold}) {
      std::deque<Scene> scenes;
      std::deque<std::vector<void*>> pointers;
      std::vector<Binding> bindings;
      for (uint64_t n = 1 + random() % 3; n > 0; --n) {
        scenes.push_back(make_scene(group, random_sizes(random), random));
        bindings.push_back(scenes.back().binding(pointers.emplace_back()));
      }
      try {
        const gpu::GroupCode code(group, target);
        tables += check_runs(
            group, bindings, [&](auto all) { return code.launches(all); }, random);
        ++checked;
      } catch (const Error&) {  // more values than the target has places for
      }
    }
  }
  CHECK(checked > 250);
  CHECK(tables > 20);
}

TEST(gpu_prepared_runs_of_rows_and_of_pieces) {
  Random random(72);
  const auto all_are_there = [](const gpu::Kernel&) { return true; };
  for (const Shape shape : {Shape{1, 64, 10}, Shape{1, 3, 100'000}, Shape{1, 100'000, 3}}) {
    for (const Spread spread : {kRows, kColumns}) {
      const Group group = fold_of(Op::add, ComputeType::f32, spread, DType::bf16);
      const gpu::GroupCode code(group, kEmitted);
      Scene scene = scene_of(group, shape, random);
      std::vector<void*> pointers;
      const std::vector<Binding> bindings = {bind(scene, shape, pointers)};
      check_runs(
          group, bindings, [&](auto all) { return code.launches(all[0]); }, random);
    }
  }
  size_t taken_apart = 0;
  for (int i = 0; i < 60; ++i) {
    const Group group = random_run_group(random, i % 2 == 0);
    auto pieces = gpu::take_apart(group);
    if (!pieces) continue;
    const gpu::PieceCode code(group, *std::move(pieces), kEmitted, kCold);
    Scene scene = make_scene(group, random_sizes(random), random);
    std::vector<void*> pointers;
    const std::vector<Binding> bindings = {scene.binding(pointers)};
    check_runs(
        group, bindings, [&](auto all) { return code.launches(all[0], all_are_there); }, random);
    ++taken_apart;
  }
  CHECK(taken_apart > 20);
}

// Whatever a plan may depend on.
TEST(gpu_prepared_fits_runs_of_the_same_shape_only) {
  Random random(73);
  Builder b(ComputeType::f32);
  const uint16_t x = b.operand(DType::f32, Layout::strided), y = b.operand(DType::f32);
  const uint16_t sum = b.op(Op::add, DType::f32, b.load(x), b.load(y));
  b.store(b.op(Op::mul, DType::f32, sum, b.immediate(DType::f32)), y);
  const gpu::GroupCode code(b.group, kEmitted);
  std::vector<void*> pointers = {reinterpret_cast<void*>(4096), reinterpret_cast<void*>(8192)};
  const uint64_t number = 7;
  const std::vector<int64_t> sizes = {5, 6}, strides = {100, 4, 24, 4};
  Binding binding{pointers.data(), &number, 30, 2, sizes.data(), strides.data()};
  const gpu::Prepared prepared(b.group, {&binding, 1},
                               [&](auto all) { return code.launches(all); });
  const auto fits = [&](const Binding& its) { return prepared.fits({&its, 1}); };
  CHECK(fits(binding));
  for (const size_t i : {size_t{0}, size_t{1}}) {
    std::vector<void*> moved = pointers;
    Binding other = binding;
    other.operands = moved.data();
    moved[i] = static_cast<char*>(pointers[i]) + 32;
    CHECK(fits(other));
    moved[i] = static_cast<char*>(pointers[i]) + 8;
    CHECK(!fits(other));
  }
  Binding other = binding;
  other.count = 31;
  CHECK(!fits(other));
  other = binding;
  const std::vector<int64_t> other_sizes = {6, 5}, other_strides = {104, 4, 24, 4};
  other.sizes = other_sizes.data();
  CHECK(!fits(other));
  other = binding;
  other.strides = other_strides.data();
  CHECK(!fits(other));
  other = binding;
  other.rank = 1;
  CHECK(!fits(other));
  for (int64_t Binding::*const field : {&Binding::planes, &Binding::rows, &Binding::columns}) {
    other = binding;
    other.*field += 1;
    CHECK(!fits(other));
  }
  const Binding two[] = {binding, binding};
  CHECK(!prepared.fits(two));
  CHECK(!prepared.fits({}));
}

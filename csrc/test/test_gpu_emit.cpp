// Kernel text of groups, their names, how groups are taken apart, and the launches of runs.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "atlas/error.h"
#include "atlas/op_table.h"
#include "check.h"
#include "gpu/emit.h"
#include "gpu/launch.h"
#include "gpu/op_text.h"
#include "gpu/pieces.h"
#include "gpu/steps.h"
#include "rows.h"

using namespace hologram;
using namespace hologram::gpu;
using hologram::test::Builder;
using hologram::test::RowBuilder;

namespace {

constexpr size_t kFar = 1 << 20;  // bytes between operands

// Addresses that nobody reads.
struct Addresses {
  explicit Addresses(size_t count, size_t off = 0) {
    for (size_t i = 0; i < count; ++i) {
      all.push_back(reinterpret_cast<void*>((i + 1) * kFar + off));
    }
  }
  std::vector<void*> all;
};

Group sum_group(DType dtype, Op op = Op::add, Layout second = Layout::dense) {
  Builder b(ComputeType::f32);
  const uint16_t x = b.operand(dtype), y = b.operand(dtype, second), out = b.operand(dtype);
  const uint16_t scaled = b.op(Op::mul, DType::f32, b.load(x), b.immediate(DType::f32));
  b.store(b.op(op, dtype, scaled, b.load(y)), out);
  return b.group;
}

Group softmax_group() {
  RowBuilder b(ComputeType::f32);
  const DType f = DType::f32;
  const uint16_t x = b.load(b.operand(f)), out = b.spread(f, kEach);
  const uint16_t e = b.op(Op::exp, f, b.op(Op::sub, f, x, b.fold(Op::maximum, x)));
  b.store(b.op(Op::div, f, e, b.fold(Op::add, e)), out);
  return b.group;
}

std::string name_of(const Group& group, const Variant& variant = {}) {
  return emit(split(group, false), 0, variant).name;
}

Binding bind(const Addresses& addresses, int64_t count, const uint64_t* immediates = nullptr) {
  Binding binding;
  binding.operands = addresses.all.data();
  binding.immediates = immediates;
  binding.count = count;
  return binding;
}
Binding bind_rows(const Addresses& addresses, test::Shape shape) {
  Binding binding = bind(addresses, shape.planes * shape.rows * shape.columns);
  binding.planes = shape.planes, binding.rows = shape.rows, binding.columns = shape.columns;
  return binding;
}

size_t loads_and_stores(const Step& step) {
  std::set<uint16_t> operands;
  for (const Node& node : step.nodes) {
    if (node.kind == NodeKind::load) operands.insert(node.a);
    if (node.kind == NodeKind::store) operands.insert(node.b);
  }
  return operands.size();
}

uint32_t word(const Launch& launch, size_t at) {
  uint32_t x = 0;
  std::memcpy(&x, launch.parameters.data() + at, sizeof x);
  return x;
}

// Where a parameter of a kernel lies.
size_t place_of(const Kernel& kernel, Parameter::Kind kind, uint16_t index = 0, int dimension = 0) {
  size_t at = 0;
  for (const Parameter& its : kernel.parameters) {
    if (its.kind == kind && its.index == index && its.dimension == dimension) return at;
    at += its.bytes;
  }
  check::fail(__FILE__, __LINE__, "no such parameter");
  return 0;
}

}  // namespace

TEST(gpu_ops_are_the_rows_of_the_table) {
  CHECK_EQ(op_text(op_info(Op::sub)),
           std::string("template <class T>\nHG_DEV T hg_op_sub(T x, T y, T z) {\n"
                       "  return wrap_sub(x, y);\n}\n"));
  const std::string all = op_table_text();
  for (const OpInfo& info : kOpInfos) {
    CHECK(all.find(std::string(" hg_op_") + info.name + "(") != std::string::npos);
    CHECK(all.find(info.expression) != std::string::npos);
  }
}

TEST(gpu_text_depends_on_the_group_alone) {
  const Kernel first = emit(split(sum_group(DType::bf16), false), 0, {});
  const Kernel second = emit(split(sum_group(DType::bf16), false), 0, {});
  CHECK_EQ(first.text, second.text);
  CHECK_EQ(first.name, second.name);
  CHECK_EQ(first.name.size(), size_t{19});
  CHECK_EQ(first.name.substr(0, 3), std::string("hg_"));
  CHECK(first.text.find("HG_KERNEL(" + first.name) != std::string::npos);
  CHECK(first.text.find('@') == std::string::npos);
  CHECK_EQ(library_text(first).substr(0, 26), std::string("#include \"hologram_gpu.h\"\n"));

  // Neither its areas nor what nobody needs are in the text.
  Group other = sum_group(DType::bf16);
  other.operands[1].area = 7;
  other.nodes.insert(other.nodes.end() - 1, {NodeKind::cast, Op{}, DType::f32, 0});
  CHECK_EQ(name_of(other), first.name);
}

// A number in the program is one of a pair only where it says that bf16 has it.
TEST(gpu_pairs_have_numbers_of_bf16) {
  const auto multiplies_pairs = [](bool is_held) {
    Builder b(ComputeType::f32);
    const uint16_t x = b.load(b.operand(DType::bf16)), number = b.immediate(DType::bf16);
    b.group.nodes[number].b = is_held;
    b.store(b.op(Op::mul, DType::bf16, x, number), b.operand(DType::bf16));
    Variant variant;
    variant.vectors = true;
    const std::string text = emit(split(b.group, false), 0, variant).text;
    return text.find("= hg_pair_mul(") != std::string::npos;
  };
  CHECK(multiplies_pairs(true));
  CHECK(!multiplies_pairs(false));
}

TEST(gpu_names_tell_groups_apart) {
  std::set<std::string> names;
  size_t count = 0;
  const auto add = [&](const std::string& name) { names.insert(name), ++count; };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const Op op : {Op::add, Op::sub, Op::maximum}) {
      for (const Layout layout : {Layout::dense, Layout::scalar, Layout::strided}) {
        for (const bool wide : {false, true}) {
          Variant variant;
          variant.wide = wide;
          variant.rank = 2;
          add(name_of(sum_group(dtype, op, layout), variant));
          variant.vectors = true;
          if (layout != Layout::strided) add(name_of(sum_group(dtype, op, layout), variant));
        }
      }
    }
  }
  for (const Team team : {Team::warp, Team::block}) {
    for (const bool several : {false, true}) {
      Variant variant;
      variant.team = team, variant.several = several;
      add(name_of(softmax_group(), variant));
    }
  }
  CHECK_EQ(names.size(), count);
}

TEST(gpu_library_has_each_operation_once) {
  const Kernel a = emit(split(sum_group(DType::f32), false), 0, {});
  const Kernel b = emit(split(sum_group(DType::bf16), false), 0, {});
  const Kernel* const both[] = {&a, &b};
  const std::string text = library_text(both);
  const std::string op = "T hg_op_add(";
  const size_t at = text.find(op);
  CHECK(at != std::string::npos);
  CHECK(text.find(op, at + 1) == std::string::npos);
  CHECK(text.find(a.name) != std::string::npos && text.find(b.name) != std::string::npos);
}

// ---- steps ----

TEST(gpu_steps_have_no_more_buffers_than_there_are) {
  // Many stores of what is loaded, and one store of a value of all.
  for (const int count : {10, 29, 30, 31, 60, 200}) {
    for (const bool structured : {false, true}) {
      RowBuilder b(ComputeType::f32);
      uint16_t sum = 0;
      for (int i = 0; i < count; ++i) {
        const uint16_t x = b.load(b.spread(DType::f32, kEach));
        sum = i == 0 ? x : b.op(Op::add, DType::f32, sum, x);
        if (i % 3 == 0) b.store(x, b.spread(DType::bf16, kEach));
      }
      b.store(sum, b.spread(DType::f32, kEach));
      if (structured) {
        b.store(b.fold(Op::add, sum), b.spread(DType::f32, kRows));
        b.store(b.fold(Op::add, sum, kColumns), b.spread(DType::f32, kColumns));
      }
      const Steps steps = split(b.group, false);
      for (size_t i = 0; i < steps.list.size(); ++i) {
        CHECK(loads_and_stores(steps.list[i]) < kMostBuffers);
        CHECK(emit(steps, i, {}).buffers.size() < kMostBuffers);
      }
      CHECK(steps.list.size() > (count > 30 ? 1u : 0u));
      size_t stores = 0;
      for (const Step& step : steps.list) {
        for (const Node& node : step.nodes) {
          stores += node.kind == NodeKind::store && !steps.is_scratch(node.b);
        }
      }
      CHECK_EQ(stores, static_cast<size_t>((count + 2) / 3 + 1 + (structured ? 2 : 0)));
    }
  }
}

// A store does not come before what another step loads of its memory.
TEST(gpu_steps_store_last_what_others_load) {
  RowBuilder b(ComputeType::f32);
  const DType f = DType::f32;
  const uint16_t in = b.spread(f, kEach), weight_at = b.spread(f, kColumns);
  const uint16_t x = b.load(in), weight = b.load(weight_at);
  b.store(b.op(Op::mul, f, x, weight), in);
  b.store(b.op(Op::add, f, weight, weight), weight_at);
  b.store(b.fold(Op::add, x, kColumns), b.spread(f, kColumns));
  const Steps steps = split(b.group, false);
  for (size_t i = 0; i < steps.list.size(); ++i) {
    for (const Node& store : steps.list[i].nodes) {
      if (store.kind != NodeKind::store) continue;
      for (size_t j = i + 1; j < steps.list.size(); ++j) {
        for (const Node& load : steps.list[j].nodes) {
          CHECK(load.kind != NodeKind::load || load.a != store.b || steps.is_scratch(load.a));
        }
      }
    }
  }
  CHECK_EQ(steps.list.size(), size_t{3});  // none of them a copy
  CHECK_EQ(steps.operands.size(), steps.given);
}

// What is folded along rows before it is folded down them goes through scratch memory.
TEST(gpu_steps_keep_what_skeletons_share) {
  RowBuilder b(ComputeType::f32);
  const DType f = DType::f32;
  const uint16_t x = b.load(b.operand(f));
  const uint16_t rest = b.op(Op::sub, f, x, b.fold(Op::maximum, x));
  b.store(b.fold(Op::add, rest, kColumns), b.spread(f, kColumns));
  const Steps steps = split(b.group, false);
  CHECK_EQ(steps.list.size(), size_t{2});
  CHECK(steps.list[0].skeleton == Skeleton::rows);
  CHECK(steps.list[1].skeleton == Skeleton::fold_down);
  CHECK_EQ(steps.operands.size(), steps.given + 1);
  CHECK_EQ(static_cast<int>(steps.operands.back().spread), static_cast<int>(kRows));
}

// ---- launches ----

TEST(gpu_launches_have_exact_grids) {
  const GroupCode code(sum_group(DType::f32), {});
  const Addresses addresses(3), unaligned(3, 4);
  float scale = 2.5f;
  uint64_t immediate = 0;
  std::memcpy(&immediate, &scale, sizeof scale);
  for (const int64_t count : {1, 3, 4, 31, 128, 1023, 1024, 1025, 1'000'003}) {
    for (const bool aligned : {true, false}) {
      const auto launches =
          code.launches(bind(aligned ? addresses : unaligned, count, &immediate)).list;
      CHECK_EQ(launches.size(), size_t{1});
      const Launch& launch = launches[0];
      CHECK_EQ(launch.kernel->vector, aligned ? 4u : 1u);
      CHECK_EQ(launch.kernel->vectors, aligned ? 2u : 1u);
      const int64_t of_thread = launch.kernel->vector * launch.kernel->vectors;
      const int64_t needed = (count + of_thread - 1) / of_thread;
      CHECK_EQ(launch.threads % 32, 0u);
      CHECK(launch.threads <= (aligned ? kSmallBlock : kMostThreads));
      const auto threads = static_cast<int64_t>(launch.blocks) * launch.threads;
      CHECK(threads >= needed && threads - launch.threads < needed);
      CHECK_EQ(launch.arguments.size(), size_t{3});
      CHECK(launch.arguments[0].address == (aligned ? addresses : unaligned).all[0]);
      CHECK_EQ(launch.parameters.size(), size_t{8});
      const Kernel& kernel = *launch.kernel;
      CHECK_EQ(word(launch, place_of(kernel, Parameter::Kind::threads)), count);
      CHECK_EQ(word(launch, place_of(kernel, Parameter::Kind::immediate)), immediate);
    }
  }
  CHECK(code.launches(bind(addresses, 0, &immediate)).list.empty());
}

TEST(gpu_launches_of_many_elements_are_wide) {
  const GroupCode code(sum_group(DType::bf16), {});
  const uint64_t immediate = 0;
  const auto launches = code.launches(bind(Addresses(3), int64_t{1} << 32, &immediate)).list;
  CHECK_EQ(launches[0].kernel->parameters[0].bytes, 8);
  CHECK_EQ(launches[0].blocks, (uint32_t{1} << 29) / 256);
}

TEST(gpu_launches_of_strides_join_dimensions) {
  const GroupCode code(sum_group(DType::f32, Op::add, Layout::strided), {});
  const Addresses addresses(3);
  const uint64_t immediate = 0;
  const std::vector<int64_t> sizes = {2, 1, 3, 4, 5};
  // The second operand has rows of 32 elements, of which 20 are there.
  std::vector<int64_t> strides(15, 0);
  const int64_t its[] = {3 * 32 * 4, 99, 32 * 4, 5 * 4, 4};
  std::copy_n(its, 5, strides.begin() + 5);
  Binding binding = bind(addresses, 120, &immediate);
  binding.rank = 5;
  binding.sizes = sizes.data();
  binding.strides = strides.data();
  const auto launches = code.launches(binding).list;
  const Launch& launch = launches[0];
  const Kernel& kernel = *launch.kernel;
  using Kind = Parameter::Kind;
  CHECK_EQ(kernel.vector, 1u);
  CHECK_EQ(word(launch, place_of(kernel, Kind::size, 0, 1)), 20u);
  CHECK_EQ(word(launch, place_of(kernel, Kind::stride, 1, 0)), 32u);
  CHECK_EQ(word(launch, place_of(kernel, Kind::stride, 1, 1)), 1u);
  CHECK_EQ(std::ranges::count_if(kernel.parameters,
                                 [](const Parameter& p) { return p.kind == Kind::stride; }),
           2);

  const std::vector<int64_t> many(200, 2);
  std::vector<int64_t> odd(600, 0);
  for (size_t d = 0; d < 200; ++d) odd[200 + d] = d % 2 == 0 ? 4 : 0;
  binding.rank = 200, binding.sizes = many.data(), binding.strides = odd.data();
  CHECK_EQ(code.launches(binding).list[0].parameters.size() % 4, size_t{0});
  const std::vector<int64_t> half = {0, 2, 0};
  binding.rank = 1, binding.sizes = &binding.count, binding.strides = half.data();
  CHECK_THROWS(code.launches(binding), Error, "part of an element");
}

TEST(gpu_launches_of_rows_choose_threads) {
  const GroupCode code(softmax_group(), {});
  const Addresses addresses(2);
  const auto of = [&](test::Shape shape) { return code.launches(bind_rows(addresses, shape)); };
  const Launches many = of({1, 40000, 300});
  CHECK_EQ(many.list.size(), size_t{1});
  CHECK_EQ(many.list[0].threads, 96u);  // of three rows, some 1,024 elements
  CHECK_EQ(many.list[0].blocks, 13334u);
  const Launches few = of({2, 50, 1000});
  CHECK_EQ(few.list[0].threads, 32u);
  CHECK_EQ(few.list[0].blocks, 100u);
  CHECK_EQ(of({1, 40000, 10}).list[0].threads, kSmallBlock);
  const Launches longer = of({1, 100, 7000});  // a block for each, of three classes
  CHECK_EQ(longer.list[0].threads, 96u);
  CHECK_EQ(longer.list[0].blocks, 100u);
  CHECK_EQ(few.scratch_bytes, size_t{0});
  // Of one row, many blocks, and one that joins what they have, of two folds, and the elements.
  const Launches one = of({1, 1, 1'000'000});
  CHECK_EQ(one.list.size(), size_t{5});
  CHECK_EQ(one.list[1].threads, 64u);
  CHECK_EQ(one.list[1].blocks, 1u);
  // More partial results than its threads can join one after the other, some first.
  CHECK_EQ(of({1, 1, 2'000'000'000}).list.size(), size_t{7});
  CHECK_EQ(one.list[0].blocks, (326u + 7) / 8);
  CHECK(one.scratch_bytes >= 41 * 4);
  CHECK(one.list[0].arguments[1].address == nullptr);
}

TEST(gpu_launches_of_long_rows_count_blocks) {
  const GroupCode code(softmax_group(), {.counts = true});
  const Addresses addresses(2);
  const auto counting = [&](int64_t rows) {
    int64_t count = 0;
    for (const Launch& launch : code.launches(bind_rows(addresses, {1, rows, 1'000'000})).list) {
      count += std::ranges::count_if(launch.arguments,
                                     [](const Argument& its) { return its.is_counters; });
    }
    return count;
  };
  // Two folds, and the elements.
  CHECK_EQ(code.launches(bind_rows(addresses, {1, 1, 1'000'000})).list.size(), size_t{3});
  CHECK_EQ(counting(1), 2);
  CHECK_EQ(counting(static_cast<int64_t>(kCounters) - 1), 2);
  CHECK_EQ(counting(1000), 0);  // a block for each
}

TEST(gpu_launches_fold_down_in_parts) {
  RowBuilder b(ComputeType::f32);
  b.store(b.fold(Op::add, b.load(b.operand(DType::f32)), kColumns), b.spread(DType::f32, kColumns));
  const GroupCode code(b.group, {});
  const Addresses addresses(2);
  const auto few = code.launches(bind_rows(addresses, {1, 64, 10}));
  CHECK_EQ(few.list.size(), size_t{1});
  const auto wide = code.launches(bind_rows(addresses, {1, 3000, 3'000'000}));
  CHECK_EQ(wide.list.size(), size_t{1});
  const auto tall = code.launches(bind_rows(addresses, {1, 100'000, 100}));
  // Each thread makes one of some chunks; many threads join these.
  CHECK_EQ(tall.list.size(), size_t{3});
  const auto of = [&](size_t launch, Parameter::Kind kind) {
    return word(tall.list[launch], place_of(*tall.list[launch].kernel, kind));
  };
  const uint32_t rows = of(0, Parameter::Kind::part_rows), chunks = rows / 16;
  CHECK_EQ(rows % 16, 0u);
  CHECK_EQ(chunks & (chunks - 1), 0u);  // a power of two
  const uint32_t parts = (100'000 + rows - 1) / rows, joined = of(1, Parameter::Kind::joined);
  CHECK_EQ(of(0, Parameter::Kind::threads), parts * 25);  // four columns each
  CHECK_EQ(of(1, Parameter::Kind::parts), parts);
  CHECK_EQ(joined, (parts + 63) / 64);
  CHECK_EQ(of(1, Parameter::Kind::threads), joined * 100);
  CHECK_EQ(of(2, Parameter::Kind::parts), joined);
  CHECK_EQ(of(2, Parameter::Kind::threads), 100u);
  CHECK(tall.scratch_bytes >= (parts + joined) * 100 * 4);
}

// A piece is the operation as it is recorded alone, with its numbers in float.
TEST(gpu_pieces_of_halves_are_single_operations) {
  const auto ratio = [](Builder& b, uint16_t y) {
    return b.cast(b.op(Op::div, DType::f32, y, b.immediate(DType::f32)), DType::bf16);
  };
  Builder alone(ComputeType::f32);
  const uint16_t x = alone.load(alone.operand(DType::bf16), DType::f32);
  alone.store(ratio(alone, x), alone.operand(DType::bf16));
  Builder both(ComputeType::f32);
  const uint16_t y = both.load(both.operand(DType::bf16), DType::f32);
  const uint16_t negative = both.op(Op::neg, DType::bf16, ratio(both, y));
  both.store(ratio(both, negative), both.operand(DType::bf16));
  both.group.operands[1].area = 1;  // other memory
  const auto pieces = take_apart(both.group);
  CHECK(pieces.has_value());
  CHECK_EQ(pieces->list.size(), size_t{3});
  CHECK_EQ(name_of(pieces->list[0].group), name_of(alone.group));
  CHECK_EQ(name_of(pieces->list[2].group), name_of(alone.group));
}

TEST(gpu_refuses_what_the_target_has_not) {
  const Target no_f64{false};
  Builder b(ComputeType::f64);
  b.store(b.load(b.operand(DType::f64)), b.operand(DType::f64));
  CHECK_THROWS(GroupCode(b.group, no_f64), Error, "no f64");
  CHECK(emit(split(b.group, false), 0, {}).needs_f64);
  (void)GroupCode(b.group, {});
  RowBuilder c(ComputeType::f32);  // whose sum is one of f64, and so is an operand
  c.store(c.scan(Op::add, DType::f32, c.load(c.operand(DType::f64), DType::f32), kColumns),
          c.spread(DType::f32, kEach));
  (void)GroupCode(c.group, no_f64);
  CHECK(!emit(split(c.group, false), 0, {}).needs_f64);
}

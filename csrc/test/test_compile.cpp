// Groups as code: every operation, conversion and form, and what is refused.
#include <cmath>
#include <vector>

#include "atlas/error.h"
#include "check.h"
#include "groups.h"
#include "interpret.h"

using namespace hologram;
using namespace hologram::cpu;
using namespace hologram::test;

TEST(group_every_operation_in_every_form) {
  Random random(1);
  // How an operand of the operation comes about.
  enum { memory, computed, immediate, scalar, strided, half, kinds };
  for (const ComputeType c : kComputeTypes) {
    for (int i = 0; i < kOpCount; ++i) {
      const Op op = static_cast<Op>(i);
      const OpInfo& info = op_info(op);
      if (!computed_in(info, c)) continue;
      const bool logical = !info.supports(own_dtype(c));
      int forms = 1;
      for (int k = 0; k < info.arity; ++k) forms *= kinds;
      for (int form = 0; form < forms; ++form) {
        Builder b(c);
        uint16_t args[3] = {};
        for (int k = 0, rest = form; k < info.arity; ++k, rest /= kinds) {
          const DType dtype = logical || (k == 0 && info.has(kCondition)) ? DType::b8 : b.own();
          const DType narrow = dtype == DType::f32 ? (k == 1 ? DType::f16 : DType::bf16) : dtype;
          switch (rest % kinds) {
            case memory: args[k] = b.load(b.operand(dtype)); break;
            case computed: {
              const uint16_t x = b.load(b.operand(dtype));
              args[k] =
                  dtype == DType::b8 ? b.op(Op::logical_not, dtype, x) : b.op(Op::neg, dtype, x);
              break;
            }
            case immediate: args[k] = b.immediate(dtype); break;
            case scalar: args[k] = b.load(b.operand(dtype, Layout::scalar)); break;
            case strided: args[k] = b.load(b.operand(dtype, Layout::strided)); break;
            default: args[k] = b.load(b.operand(narrow), dtype);
          }
        }
        const DType result = info.has(kPredicate) ? DType::b8 : b.own();
        const uint16_t y = b.op(op, result, args[0], args[1], args[2]);
        b.store(y, b.operand(form % 2 == 0 ? result : b.own()));
        const Scene scene = make_scene(b.group, {7, static_cast<int64_t>(30 + form % 17)}, random);
        if (!check_group(b.group, scene, "form")) return;
      }
      // Both operands the same value, in the accumulator and in memory.
      if (info.arity >= 2) {
        Builder b(c);
        const DType dtype = logical || info.has(kCondition) ? DType::b8 : b.own();
        const DType result = info.has(kPredicate) || info.has(kCondition) ? DType::b8 : b.own();
        const uint16_t x = b.load(b.operand(dtype));
        const uint16_t n =
            dtype == DType::b8 ? b.op(Op::logical_not, dtype, x) : b.op(Op::neg, dtype, x);
        b.store(b.op(op, result, n, n, n), b.operand(result));
        b.store(b.op(op, result, x, x, x), b.operand(result));
        if (!check_group(b.group, make_scene(b.group, {333}, random), "same")) return;
      }
    }
  }
}

// An operation alone on dense memory, or beside numbers, is a loop, whose results are those of the
// operation in a longer program.
TEST(group_operations_alone_are_loops) {
  Random random(21);
  const auto is_alone = [&](const Group& group, bool loop) {
    for (const Isa isa : sets()) {
      if (loop && isa != Isa::baseline) CHECK(compile(group, isa)->is_loop());
    }
    for (const int64_t count : {1, 63, 64, 65, 128, 1000, 4097}) {
      if (!check_group(group, make_scene(group, {count}, random), "alone")) return false;
    }
    return true;
  };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::b8}) {
    for (int i = 0; i < kOpCount; ++i) {
      const Op op = static_cast<Op>(i);
      const OpInfo& info = op_info(op);
      const bool logical = !info.supports(DType::f32);
      if (logical != (dtype == DType::b8) || !info.supports_in_group(dtype)) continue;
      const bool heavy = info.cost >= Cost::short_function;
      const bool common = dtype != DType::f16 || info.exact == Exact::real;
      for (const bool number : {false, true}) {
        Builder b(ComputeType::f32);
        uint16_t args[3] = {};
        for (int k = 0; k < info.arity; ++k) {
          const DType own = k == 0 && info.has(kCondition) ? DType::b8 : dtype;
          args[k] = number && k > 0 ? b.immediate(own) : b.load(b.operand(own));
        }
        const DType result = info.has(kPredicate) ? DType::b8 : dtype;
        b.store(b.op(op, result, args[0], args[1], args[2]), b.operand(result));
        // Two numbers beside a tensor are what clamp has, two tensors the others.
        const bool clamp = info.exact == Exact::always && !info.has(kCondition);
        const bool usual = info.arity < 3 ? !number || !logical : number == clamp;
        if (!is_alone(b.group, usual && !heavy && common)) return;
      }
    }
    // Copies and fills.
    Builder copy(ComputeType::f32), fill(ComputeType::f32);
    copy.store(copy.load(copy.operand(dtype)), copy.operand(dtype));
    fill.store(fill.immediate(dtype), fill.operand(dtype));
    if (!is_alone(copy.group, true) || !is_alone(fill.group, true)) return;
  }
}

namespace {

// The algebra of a row that only groups have, on pairs of numbers of its dtypes.
template <class T>
void check_algebra(Op op) {
  const OpInfo& info = op_info(op);
  const bool logical = !info.supports(DType::f32);
  Random random(9);
  const auto same = [](T a, T b) {
    return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
  };
  const auto number = [&] {
    return logical ? static_cast<T>(random() % 2) : convert<T>(random_number(random));
  };
  for (int i = 0; i < 3000; ++i) {
    const T x = number(), y = number(), z = number();
    const auto f = [&](T a, T b) { return interpret_op<T>(op, a, b, z); };
    bool holds = true;
    if (info.has(kCommutative)) holds = holds && same(f(x, y), f(y, x));
    if (info.has(kInvolution)) holds = holds && same(f(f(x, y), y), x);
    if (info.has(kIdempotent)) {
      holds = holds && (info.arity == 1 ? same(f(f(x, y), y), f(x, y)) : same(f(x, x), x));
    }
    if (info.has_identity()) holds = holds && same(f(x, static_cast<T>(info.identity)), x);
    if (info.has(kPredicate)) holds = holds && (f(x, y) == T(0) || f(x, y) == T(1));
    if (!holds) return check::fail(__FILE__, __LINE__, info.name);
  }
}

}  // namespace

TEST(group_rows_of_groups_have_their_algebra) {
  for (int i = 0; i < kOpCount; ++i) {
    check_algebra<float>(static_cast<Op>(i));
    check_algebra<double>(static_cast<Op>(i));
  }
}

TEST(group_conversions_of_every_dtype) {
  Random random(3);
  for (const ComputeType c : kComputeTypes) {
    for (int from = 0; from < static_cast<int>(DType::c64); ++from) {
      for (int to = 0; to < static_cast<int>(DType::c64); ++to) {
        for (int value = 0; value < static_cast<int>(DType::c64); ++value) {
          const DType dtype = static_cast<DType>(value);
          if ((held_dtypes(c) & dtype_bit(dtype)) == 0) continue;
          for (const Layout layout : {Layout::dense, Layout::scalar, Layout::strided}) {
            Builder b(c);
            const uint16_t x = b.load(b.operand(static_cast<DType>(from), layout), dtype);
            b.store(x, b.operand(static_cast<DType>(to)));
            b.store(b.cast(x, DType::b8), b.operand(DType::b8));
            try {
              (void)compile(b.group);
            } catch (const Error&) {
              continue;  // the class cannot hold what lies between; tested elsewhere
            }
            if (!check_group(b.group, make_scene(b.group, {5, 61}, random), "conversion")) return;
          }
        }
      }
    }
  }
}

// A product that was to be computed by its consumer, whose other operand moves a factor of it.
TEST(group_keeps_the_operand_beside_a_product_that_does_not_join) {
  Random random(11);
  Builder b(ComputeType::f32);
  const auto load = [&](uint16_t area) {
    const uint16_t o = b.operand(DType::bf16);
    b.group.operands[o].area = area;
    return b.load(o);
  };
  const uint16_t x = load(0), y = load(1), w = load(2);
  const uint16_t s = b.immediate(DType::f32), t = b.immediate(DType::f32);
  const uint16_t out = b.operand(DType::bf16), product = b.operand(DType::bf16);
  b.group.operands[out].area = 3;
  b.group.operands[product].area = 4;
  const uint16_t g = b.op(Op::mul, DType::bf16, x, s);
  const uint16_t p = b.op(Op::mul, DType::bf16, w, g);
  const uint16_t d = b.cast(b.op(Op::fma, DType::f32, t, y, g), DType::bf16);
  b.store(g, out);
  b.store(b.op(Op::div, DType::bf16, p, d), product);
  check_group(b.group, make_scene(b.group, {300}, random), "product");
}

TEST(group_compiles_long_and_wide_groups) {
  Random random(7);
  {
    Builder b(ComputeType::f32);  // a chain of nearly as many nodes as a group may have
    const uint16_t x = b.load(b.operand(DType::f32));
    uint16_t y = x;
    for (int i = 0; i < 4000; ++i) y = b.op(i % 2 ? Op::sub : Op::add, DType::f32, y, x);
    b.store(y, b.operand(DType::f32));
    check_group(b.group, make_scene(b.group, {1000}, random), "chain");
    for (int i = 0; i < 100; ++i) y = b.op(Op::neg, DType::f32, y);
    CHECK_THROWS(compile(b.group), Error, "too many nodes");
  }
  {
    // 200 values alive at once: more memory than a small frame has.
    Builder b(ComputeType::f32);
    const uint16_t x = b.load(b.operand(DType::f32));
    std::vector<uint16_t> values = {b.op(Op::neg, DType::f32, x)};
    for (int i = 0; i < 200; ++i) values.push_back(b.op(Op::sub, DType::f32, values.back(), x));
    uint16_t sum = values[0];
    for (size_t i = 0; i < values.size(); ++i) {
      sum = b.op(Op::maximum, DType::f32, b.op(Op::sin, DType::f32, sum), values[i]);
    }
    b.store(sum, b.operand(DType::f32));
    check_group(b.group, make_scene(b.group, {40'000}, random), "wide");
  }
}

TEST(group_refuses_what_breaks_the_rules) {
  const auto refused = [](const Group& group, const char* part) {
    CHECK_THROWS(compile(group), Error, part);
  };
  Builder b(ComputeType::f32);
  const uint16_t o = b.operand(DType::f32), out = b.operand(DType::f32);
  const uint16_t x = b.load(o);
  b.store(x, out);
  {
    Builder c = b;
    c.op(Op::add, DType::f32, x, 9);
    refused(c.group, "earlier value");
  }
  {
    Builder c = b;
    c.op(Op::add, DType::f64, x, x);
    refused(c.group, "dtype");
  }
  {
    Builder c = b;
    c.op(Op::eq, DType::f32, x, x);
    refused(c.group, "b8");
  }
  {
    Builder c = b;
    c.op(Op::logical_not, DType::b8, x);
    refused(c.group, "b8");
  }
  {
    Builder c = b;
    c.store(x, c.operand(DType::f32, Layout::scalar));
    refused(c.group, "scalar");
  }
  {
    Builder c = b;
    c.load(7, DType::f32);
    refused(c.group, "operand");
  }
  {
    Builder c = b;
    c.operand(DType::c64);
    refused(c.group, "dtype");
  }
  {
    Builder c(ComputeType::i64);
    const uint16_t i = c.load(c.operand(DType::i64));
    c.op(Op::exp, DType::i64, i);
    refused(c.group, "operation");
  }
  {
    Builder c = b;
    c.load(c.operand(DType::f64), DType::b8);
    refused(c.group, "conversion");
  }
}

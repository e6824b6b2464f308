// Writes kernels of all kinds that csrc/gpu emits, and those that move elements, for the compilers
// of GPUs (tools/compile_kernels.py): a text for each.
//
//   test FOLDER    writes FOLDER/KIND/GROUP.hgk, and texts of several kernels, which say in their
//                  first line which: FOLDER/libraries/NAME.hgk
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "atlas/op_table.h"
#include "gpu/cold.h"
#include "gpu/emit.h"
#include "gpu/moves.h"
#include "gpu/steps.h"
#include "gpu/variants.h"
#include "rows.h"

using namespace hologram;
using namespace hologram::test;

namespace {

class Texts {
 public:
  explicit Texts(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // Every kernel of a group; `wide`: of so many elements that their numbers need 64 bits.
  void add(const std::string& name, const Group& group, bool wide = false) {
    const bool folds = std::ranges::any_of(group.nodes, gpu::is_row_fold);
    for (const bool long_rows : {false, true}) {
      if (long_rows && !folds) continue;
      const gpu::Steps steps = gpu::split(group, long_rows);
      for (size_t i = 0; i < steps.list.size(); ++i) {
        for (auto& [kind, variant] : gpu::variants_of(steps, i, 3)) {
          variant.wide = wide;
          add(kind + (wide ? "_wide" : ""), name, gpu::emit(steps, i, variant));
        }
      }
    }
  }
  void add(const std::string& kind, const std::string& name, const gpu::Kernel& kernel) {
    if (kernels_.insert(kernel.name).second) write(kind, name, gpu::library_text(kernel));
  }
  void add_library(const std::string& name, const std::vector<std::string>& kernels,
                   const std::string& text) {
    std::string names;
    for (const std::string& kernel : kernels) {
      kernels_.insert(kernel);
      names += " " + kernel;
    }
    write("libraries", name, "// kernels:" + names + "\n" + text);
  }
  size_t count() const { return kernels_.size(); }

 private:
  void write(const std::string& kind, const std::string& name, const std::string& text) {
    std::filesystem::create_directories(folder_ / kind);
    std::filesystem::path path;
    for (int n = 1; path.empty() || std::filesystem::exists(path); ++n) {
      path = folder_ / kind / (name + (n == 1 ? "" : "-" + std::to_string(n)) + ".hgk");
    }
    std::ofstream file(path);
    file << text;
    file.close();
    if (!file) throw std::runtime_error("cannot write " + path.string());
  }

  const std::filesystem::path folder_;
  std::set<std::string> kernels_;
};

// As compute_type_of (atlas/canonicalise.h), which is linked with all of the core.
ComputeType type_of(DType dtype) {
  if (dtype == DType::f64) return ComputeType::f64;
  const bool whole = (dtype_bit(dtype) & kReal) == 0 && dtype != DType::b8;
  return whole ? ComputeType::i64 : ComputeType::f32;
}
std::string named(const std::string& what, DType dtype) {
  return what + "_" + dtype_name(dtype);
}
std::string named(const std::string& what, ComputeType type) {
  return named(what, own_dtype(type));
}

// ---- elements ----

Group chain(DType dtype, Layout layout = Layout::dense) {
  Builder b(type_of(dtype));
  const uint16_t x = b.load(b.operand(dtype, layout)), y = b.load(b.operand(dtype));
  const uint16_t product = b.op(Op::mul, dtype, x, b.immediate(b.own()));
  const uint16_t sum = b.op(Op::add, dtype, product, y);
  const uint16_t positive = b.op(Op::gt, DType::b8, sum, b.load(b.operand(dtype, Layout::scalar)));
  b.store(b.op(Op::where, dtype, positive, sum, y), b.operand(dtype, layout));
  return b.group;
}

Group one_op(Op op, ComputeType type) {
  Builder b(type);
  const uint16_t x = b.load(b.operand(b.own())), y = b.load(b.operand(b.own()));
  b.store(b.op(op, b.own(), x, y, y), b.operand(b.own()));
  return b.group;
}

// Of one operand or of several in one pass.
Group adam(DType dtype, int count) {
  Builder b(ComputeType::f32);
  const DType f = DType::f32;
  for (int i = 0; i < count; ++i) {
    const uint16_t weight_at = b.operand(dtype), mean_at = b.operand(f), square_at = b.operand(f);
    const uint16_t grad = b.load(b.operand(dtype), f);
    const auto average = [&](uint16_t at, uint16_t next) {
      const uint16_t old = b.op(Op::mul, f, b.load(at), b.immediate(f));
      const uint16_t result = b.op(Op::add, f, old, b.op(Op::mul, f, next, b.immediate(f)));
      b.store(result, at);
      return result;
    };
    const uint16_t mean = average(mean_at, grad);
    const uint16_t square = average(square_at, b.op(Op::mul, f, grad, grad));
    const uint16_t root = b.op(Op::sqrt, f, b.op(Op::mul, f, square, b.immediate(f)));
    const uint16_t step = b.op(Op::div, f, mean, b.op(Op::add, f, root, b.immediate(f)));
    const uint16_t weight = b.load(weight_at, f);
    b.store(b.op(Op::sub, f, weight, b.op(Op::mul, f, step, b.immediate(f))), weight_at);
  }
  return b.group;
}

Group gelu(DType dtype) {
  Builder b(ComputeType::f32);
  const DType f = DType::f32;
  const uint16_t x = b.load(b.operand(dtype), f);
  const uint16_t erf = b.op(Op::erf, f, b.op(Op::mul, f, x, b.immediate(f)));
  const uint16_t half = b.op(Op::mul, f, x, b.immediate(f));
  b.store(b.op(Op::mul, f, half, b.op(Op::add, f, erf, b.immediate(f))), b.operand(dtype));
  return b.group;
}

Group draws(Draw draw, ComputeType type, DType dtype, bool folds = false) {
  RowBuilder b(type);
  const uint16_t x = b.load(b.spread(dtype, kEach)), drawn = b.draw(draw, dtype);
  b.store(b.op(Op::add, dtype, x, drawn), b.spread(dtype, kEach));
  if (folds) b.store(b.fold(Op::maximum, drawn), b.spread(dtype, kRows));
  return b.group;
}

Group broadcast(DType dtype, Spread spread) {
  RowBuilder b(ComputeType::f32);
  const uint16_t x = b.load(b.operand(dtype)), v = b.load(b.spread(dtype, spread));
  b.store(b.op(Op::mul, dtype, b.op(Op::add, dtype, x, v), v), b.operand(dtype));
  return b.group;
}

// A lower triangle.
Group triangle(DType dtype) {
  RowBuilder b(type_of(dtype));
  const uint16_t is_below = b.op(Op::le, DType::b8, b.position(kColumns), b.position(kRows));
  const uint16_t x = b.load(b.operand(dtype));
  b.store(b.op(Op::where, dtype, is_below, x, b.immediate(dtype)), b.operand(dtype));
  return b.group;
}

// ---- rows ----

Group softmax(DType dtype) {
  RowBuilder b(type_of(dtype));
  const uint16_t x = b.load(b.operand(dtype), b.own());
  const uint16_t e = b.op(Op::exp, b.own(), b.op(Op::sub, b.own(), x, b.fold(Op::maximum, x)));
  b.store(b.op(Op::div, b.own(), e, b.fold(Op::add, e)), b.spread(dtype, kEach));
  return b.group;
}

Group layer_norm(DType dtype) {
  RowBuilder b(ComputeType::f32);
  const DType f = DType::f32;
  const uint16_t x = b.load(b.operand(dtype), f), count = b.immediate(f);
  const uint16_t weight = b.load(b.spread(dtype, kColumns), f),
                 bias = b.load(b.spread(dtype, kColumns), f);
  const uint16_t mean = b.op(Op::mul, f, b.fold(Op::add, x), count);
  const uint16_t rest = b.op(Op::sub, f, x, mean);
  const uint16_t sum = b.fold(Op::add, b.op(Op::mul, f, rest, rest));
  const uint16_t variance = b.op(Op::mul, f, sum, count);
  const uint16_t scale = b.op(Op::rsqrt, f, b.op(Op::add, f, variance, b.immediate(f)));
  const uint16_t normal = b.op(Op::mul, f, rest, scale);
  b.store(b.op(Op::add, f, b.op(Op::mul, f, normal, weight), bias), b.spread(dtype, kEach));
  b.store(mean, b.spread(f, kRows));
  b.store(scale, b.spread(f, kRows));
  return b.group;
}

Group layer_norm_backward(DType dtype) {
  RowBuilder b(ComputeType::f32);
  const DType f = DType::f32;
  const uint16_t x = b.load(b.operand(dtype), f), grad = b.load(b.spread(dtype, kEach), f),
                 weight = b.load(b.spread(dtype, kColumns), f), mean = b.load(b.spread(f, kRows)),
                 scale = b.load(b.spread(f, kRows));
  const uint16_t normal = b.op(Op::mul, f, b.op(Op::sub, f, x, mean), scale);
  const uint16_t g = b.op(Op::mul, f, grad, weight);
  const uint16_t a = b.fold(Op::add, g), c = b.fold(Op::add, b.op(Op::mul, f, g, normal));
  const uint16_t rest = b.op(Op::add, f, b.op(Op::mul, f, c, normal), a);
  b.store(b.op(Op::mul, f, b.op(Op::sub, f, g, rest), scale), b.spread(dtype, kEach));
  b.store(b.fold(Op::add, b.op(Op::mul, f, grad, normal), kColumns), b.spread(f, kColumns));
  b.store(b.fold(Op::add, grad, kColumns), b.spread(f, kColumns));
  return b.group;
}

// The loss of each row, of which one column is right.
Group cross_entropy(DType dtype) {
  RowBuilder b(ComputeType::f32);
  const DType f = DType::f32;
  const uint16_t x = b.load(b.operand(dtype), f), at = b.load(b.spread(DType::i8, kRows), f);
  const uint16_t rest = b.op(Op::sub, f, x, b.fold(Op::maximum, x));
  const uint16_t log = b.op(Op::log, f, b.fold(Op::add, b.op(Op::exp, f, rest)));
  const uint16_t right = b.add({NodeKind::pick, Op::add, f, rest, at});
  b.store(b.op(Op::sub, f, log, right), b.spread(f, kRows));
  return b.group;
}

Group pick(ComputeType type) {
  RowBuilder b(type);
  const uint16_t at = b.load(b.spread(DType::i8, kRows), b.own());
  const uint16_t x = b.load(b.spread(b.own(), kEach));
  b.store(b.add({NodeKind::pick, Op::add, b.own(), x, at}), b.spread(b.own(), kRows));
  return b.group;
}

Group fold(Op op, DType dtype, Spread spread) {
  RowBuilder b(type_of(dtype));
  const uint16_t x = b.load(b.operand(dtype), b.own());
  b.store(b.fold(op, b.op(Op::mul, b.own(), x, x), spread), b.spread(b.own(), spread));
  return b.group;
}

Group scan(DType dtype, Spread axis) {
  RowBuilder b(type_of(dtype));
  const uint16_t x = b.load(b.spread(dtype, kEach));
  const uint16_t bias = b.load(b.spread(dtype, kColumns));
  const uint16_t sum = b.op(Op::add, dtype, x, bias);
  b.store(b.scan(Op::add, dtype, sum, axis), b.spread(dtype, kEach));
  return b.group;
}

void emit_all(Texts& texts) {
  for (const DType dtype : {DType::b8, DType::u8, DType::i8, DType::i16, DType::i32, DType::i64,
                            DType::f16, DType::bf16, DType::f32, DType::f64}) {
    texts.add(named("chain", dtype), chain(dtype));
  }
  for (const DType dtype : {DType::bf16, DType::f32}) {
    texts.add(named("adam", dtype), adam(dtype, 1));
    texts.add(named("adam_of_four", dtype), adam(dtype, 4));
    texts.add(named("gelu", dtype), gelu(dtype));
    texts.add(named("chain", dtype), chain(dtype), true);
    texts.add(named("chain", dtype), chain(dtype, Layout::strided));
    texts.add(named("chain", dtype), chain(dtype, Layout::strided), true);
    for (const auto& [name, spread] : {std::pair{"rows", kRows}, {"columns", kColumns}}) {
      texts.add(named(name, dtype), broadcast(dtype, spread));
    }
    texts.add(named("channels", dtype), broadcast(dtype, kMiddle));
    texts.add(named("triangle", dtype), triangle(dtype));
  }
  texts.add(named("columns", DType::f32), broadcast(DType::f32, kColumns), true);
  for (const ComputeType type : {ComputeType::f32, ComputeType::f64}) {
    for (const OpInfo& info : kOpInfos) {
      const auto op = static_cast<Op>(&info - &kOpInfos[0]);
      if (info.cost == Cost::function || info.cost == Cost::short_function) {
        texts.add(named(info.name, type), one_op(op, type));
      }
    }
    const DType own = own_dtype(type);
    texts.add(named("uniform", type), draws(Draw::uniform, type, own));
    texts.add(named("normal", type), draws(Draw::normal, type, own));
    texts.add(named("normal_folded", type), draws(Draw::normal, type, own, true));
  }
  texts.add("uniform_bf16", draws(Draw::uniform, ComputeType::f32, DType::bf16));
  texts.add("integer_i64", draws(Draw::integer, ComputeType::i64, DType::i64));
  texts.add("long_integer_i64", draws(Draw::long_integer, ComputeType::i64, DType::i64));
  for (const ComputeType type : kComputeTypes) texts.add(named("pick", type), pick(type));
  for (const DType dtype : {DType::bf16, DType::f32}) {
    texts.add(named("softmax", dtype), softmax(dtype));
    texts.add(named("layer_norm", dtype), layer_norm(dtype));
    texts.add(named("layer_norm_backward", dtype), layer_norm_backward(dtype));
    texts.add(named("cross_entropy", dtype), cross_entropy(dtype));
  }
  texts.add("softmax_f64", softmax(DType::f64));
  texts.add("softmax_f32", softmax(DType::f32), true);
  texts.add("layer_norm_backward_f32", layer_norm_backward(DType::f32), true);
  for (const DType dtype : {DType::f16, DType::f32, DType::f64, DType::i64}) {
    for (const Op op : {Op::add, Op::maximum}) {
      const std::string name = named(op == Op::add ? "sum_of_squares" : "greatest_square", dtype);
      texts.add(name, fold(op, dtype, kRows));
      texts.add(name, fold(op, dtype, kColumns));
    }
    texts.add(named("running_sum", dtype), scan(dtype, kColumns));
    texts.add(named("running_sum", dtype), scan(dtype, kMiddle));
  }
  std::vector<std::string> cold;
  for (const ComputeType type : kComputeTypes) {
    for (const char* const skeleton :
         {"elements", "rows", "classes", "fold_down", "scan", "joins"}) {
      cold.push_back("hg_cold_" + named(skeleton, type));
    }
  }
  texts.add_library("cold", cold, gpu::cold_library_text());
  for (const gpu::MoveKernels& its : gpu::move_kernels()) {
    for (const gpu::Kernel* const kernel : its.kernels) {
      texts.add(std::string("moves_") + its.name, kernel->name, *kernel);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  try {
    // What is not emitted any more is not to be there.
    if (std::filesystem::exists(argv[1]) && !std::filesystem::is_empty(argv[1])) {
      throw std::runtime_error(std::string(argv[1]) + " is not empty");
    }
    Texts texts(argv[1]);
    emit_all(texts);
    std::printf("%zu kernels\n", texts.count());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

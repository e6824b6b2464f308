#include "cpu/executor.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "atlas/error.h"
#include "check.h"
#include "interpret.h"

using namespace hologram;
using namespace hologram::cpu;

namespace {

std::vector<Isa> sets() {
  switch (best_isa()) {
    case Isa::avx512: return {Isa::avx512, Isa::avx2, Isa::baseline};
    case Isa::avx2: return {Isa::avx2, Isa::baseline};
    default: return {best_isa()};
  }
}

DType own_dtype(ComputeClass c) {
  return c == ComputeClass::f32 ? DType::f32 : c == ComputeClass::f64 ? DType::f64 : DType::i64;
}

// A group while it is written.
struct Builder {
  Group group;

  explicit Builder(ComputeClass c) { group.compute_class = c; }
  DType own() const { return own_dtype(group.compute_class); }
  uint16_t operand(DType dtype, Layout layout = Layout::dense) {
    group.operands.push_back({dtype, layout});
    return static_cast<uint16_t>(group.operands.size() - 1);
  }
  uint16_t add(Node node) {
    group.nodes.push_back(node);
    return static_cast<uint16_t>(group.nodes.size() - 1);
  }
  uint16_t load(uint16_t operand, DType dtype) {
    return add({NodeKind::load, Op::add, dtype, operand});
  }
  uint16_t load(uint16_t operand) { return load(operand, group.operands[operand].dtype); }
  uint16_t immediate(DType dtype) {
    return add({NodeKind::immediate, Op::add, dtype, static_cast<uint16_t>(group.immediates++)});
  }
  uint16_t op(Op op, DType dtype, uint16_t a, uint16_t b = 0, uint16_t c = 0) {
    return add({NodeKind::compute, op, dtype, a, b, c});
  }
  uint16_t cast(uint16_t a, DType dtype) { return add({NodeKind::cast, Op::add, dtype, a}); }
  void store(uint16_t value, uint16_t operand) {
    add({NodeKind::store, Op::add, group.operands[operand].dtype, value, operand});
  }
};

// Memory of exactly some bytes between pages that may not be touched; it ends at the second.
struct Memory {
  explicit Memory(size_t bytes) : size(bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inside = (bytes + page - 1) / page * page;
    mapped = inside + 2 * page;
    base = static_cast<char*>(mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base + page, inside, PROT_READ | PROT_WRITE);
    data = base + page + inside - bytes;
  }
  Memory(const Memory& other) : Memory(other.size) { std::memcpy(data, other.data, size); }
  Memory(Memory&& other) noexcept
      : data(other.data), size(other.size), base(other.base), mapped(other.mapped) {
    other.base = nullptr;
  }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data, other.data);
    std::swap(size, other.size);
    std::swap(base, other.base);
    std::swap(mapped, other.mapped);
    return *this;
  }
  ~Memory() {
    if (base != nullptr) munmap(base, mapped);
  }
  char* data;
  size_t size;
  char* base;
  size_t mapped;
};

using Random = std::mt19937_64;

double random_number(Random& random) {
  static const double special[] = {0.0,
                                   -0.0,
                                   1.0,
                                   -1.0,
                                   0.5,
                                   2.0,
                                   3.0,
                                   -3.0,
                                   1e-40,
                                   -1e-45,
                                   1e38,
                                   -1e38,
                                   65519.,
                                   65520.,
                                   1e-7,
                                   6e-8,
                                   3.4e38,
                                   1e300,
                                   1e-300,
                                   100.0,
                                   -100.0,
                                   127.5,
                                   255.,
                                   1e10,
                                   std::numeric_limits<double>::infinity(),
                                   -std::numeric_limits<double>::infinity(),
                                   std::numeric_limits<double>::quiet_NaN()};
  switch (random() % 4) {
    case 0: return special[random() % std::size(special)];
    case 1:
      return std::ldexp(static_cast<double>(static_cast<int64_t>(random())),
                        -static_cast<int>(random() % 90) - 20);
    default: return static_cast<double>(static_cast<int64_t>(random())) * 0x1p-61;
  }
}

void fill_random(Memory& memory, DType dtype, Random& random) {
  const size_t size = dtype_size(dtype);
  for (size_t i = 0; i + size <= memory.size; i += size) {
    with_element(dtype, [&]<class D>() {
      D x;
      if constexpr (std::is_same_v<D, bool>) {
        x = random() % 2 == 0;
      } else if constexpr (std::is_integral_v<D>) {
        x = random() % 3 == 0 ? static_cast<D>(random()) : static_cast<D>(random() % 7) - D(3);
        if (random() % 32 == 0) x = std::numeric_limits<D>::min();
      } else {
        x = convert<D>(random_number(random));
      }
      std::memcpy(memory.data + i, &x, sizeof x);
    });
  }
}

// Equal in bits, NaNs being one. Returns the first element that differs, or -1.
int64_t first_difference(const Memory& a, const Memory& b, DType dtype) {
  const size_t size = dtype_size(dtype);
  for (size_t i = 0; i + size <= a.size; i += size) {
    if (std::memcmp(a.data + i, b.data + i, size) == 0) continue;
    bool both_nan = false;
    with_element(dtype, [&]<class D>() {
      if constexpr (!std::is_integral_v<D>) {
        D x, y;
        std::memcpy(&x, a.data + i, sizeof x);
        std::memcpy(&y, b.data + i, sizeof y);
        both_nan = std::isnan(convert<double>(x)) && std::isnan(convert<double>(y));
      }
    });
    if (!both_nan) return static_cast<int64_t>(i / size);
  }
  return -1;
}

// What a group runs on: memory of each operand, and the shape.
struct Scene {
  std::vector<Memory> memory;  // by place
  std::vector<size_t> place;   // of each operand: several may share one
  std::vector<size_t> first;   // byte of element 0
  std::vector<uint64_t> immediates;
  std::vector<int64_t> sizes, strides;
  int64_t count = 0;
  std::vector<DType> dtypes;  // of places

  Binding binding(std::vector<void*>& pointers) {
    pointers.clear();
    for (size_t i = 0; i < place.size(); ++i) {
      pointers.push_back(memory[place[i]].data + first[i]);
    }
    return {pointers.data(), immediates.data(), count, static_cast<int>(sizes.size()),
            sizes.data(),    strides.data()};
  }
};

// Strides of a layout chosen at random, its extent in elements and the first element's index.
void random_strides(const std::vector<int64_t>& sizes, bool distinct, Random& random,
                    std::vector<int64_t>& strides, int64_t& extent, int64_t& first) {
  const size_t rank = sizes.size();
  std::vector<size_t> order(rank);
  for (size_t d = 0; d < rank; ++d) order[d] = d;
  if (random() % 2 == 0) std::shuffle(order.begin(), order.end(), random);
  strides.assign(rank, 0);
  int64_t step = random() % 3 == 0 ? 2 : 1, low = 0, high = 0;
  for (size_t k = rank; k-- > 0;) {
    const size_t d = order[k];
    if (!distinct && random() % 3 == 0) continue;  // broadcast
    strides[d] = random() % 5 == 0 ? -step : step;
    step *= sizes[d];
    if (random() % 4 == 0) step += 3;
  }
  for (size_t d = 0; d < rank; ++d) {
    (strides[d] < 0 ? low : high) += strides[d] * (sizes[d] - 1);
  }
  extent = high - low + 1;
  first = -low;
}

// Memory for every operand; a store's may be a load's in place.
Scene make_scene(const Group& group, std::vector<int64_t> sizes, Random& random,
                 bool in_place = true) {
  Scene scene;
  scene.sizes = std::move(sizes);
  scene.count = 1;
  for (const int64_t size : scene.sizes) scene.count *= size;
  const size_t rank = scene.sizes.size();
  std::vector<bool> stored(group.operands.size()), loaded(group.operands.size());
  for (const Node& node : group.nodes) {
    if (node.kind == NodeKind::store) stored[node.b] = true;
    if (node.kind == NodeKind::load) loaded[node.a] = true;
  }
  std::vector<bool> taken(group.operands.size());
  for (size_t i = 0; i < group.operands.size(); ++i) {
    const auto [dtype, layout, area] = group.operands[i];
    const auto size = static_cast<int64_t>(dtype_size(dtype));
    std::vector<int64_t> strides(rank, 0);
    int64_t extent = layout == Layout::scalar ? 1 : scene.count, first = 0;
    if (layout == Layout::strided && scene.count > 0) {
      random_strides(scene.sizes, stored[i], random, strides, extent, first);
    }
    size_t place = scene.memory.size();
    if (in_place && stored[i] && !loaded[i] && random() % 2 == 0) {
      for (size_t j = 0; j < i; ++j) {
        if (group.operands[j].dtype != dtype || group.operands[j].layout != layout || stored[j] ||
            taken[j] || area != group.operands[j].area) {
          continue;
        }
        if (layout == Layout::strided) {
          // Its elements have to be distinct.
          bool distinct = true;
          for (size_t d = 0; d < rank; ++d) {
            distinct = distinct && scene.strides[j * rank + d] != 0;
          }
          if (!distinct) continue;
          for (size_t d = 0; d < rank; ++d) strides[d] = scene.strides[j * rank + d] / size;
          first = static_cast<int64_t>(scene.first[j]) / size;
        }
        place = scene.place[j];
        taken[j] = true;
        break;
      }
    }
    if (place == scene.memory.size()) {
      scene.memory.emplace_back(static_cast<size_t>(extent * size));
      scene.dtypes.push_back(dtype);
      fill_random(scene.memory.back(), dtype, random);
    }
    scene.place.push_back(place);
    scene.first.push_back(static_cast<size_t>(first * size));
    for (const int64_t stride : strides) scene.strides.push_back(stride * size);
  }
  for (int i = 0; i < group.immediates; ++i) scene.immediates.push_back(0);
  for (const Node& node : group.nodes) {
    if (node.kind != NodeKind::immediate) continue;
    const double x = random_number(random);
    const auto set = [&](auto value) {
      std::memcpy(&scene.immediates[node.a], &value, sizeof value);
    };
    switch (group.compute_class) {
      case ComputeClass::f32: set(interpret_round(static_cast<float>(x), node.dtype)); break;
      case ComputeClass::f64: set(interpret_round(x, node.dtype)); break;
      case ComputeClass::i64: set(interpret_round(convert<int64_t>(x), node.dtype)); break;
    }
  }
  return scene;
}

std::string describe(const Group& group) {
  std::string text = group.compute_class == ComputeClass::f32   ? "f32:"
                     : group.compute_class == ComputeClass::f64 ? "f64:"
                                                                : "i64:";
  for (const Operand& o : group.operands) {
    text += std::string(" ") + dtype_name(o.dtype) +
            (o.layout == Layout::dense    ? ""
             : o.layout == Layout::scalar ? "(scalar)"
                                          : "(strided)");
  }
  for (size_t i = 0; i < group.nodes.size(); ++i) {
    const Node& n = group.nodes[i];
    text += "\n    " + std::to_string(i) + " " + dtype_name(n.dtype) + " ";
    switch (n.kind) {
      case NodeKind::load: text += "load " + std::to_string(n.a); break;
      case NodeKind::immediate: text += "immediate " + std::to_string(n.a); break;
      case NodeKind::cast: text += "cast " + std::to_string(n.a); break;
      case NodeKind::store:
        text += "store " + std::to_string(n.a) + " to " + std::to_string(n.b);
        break;
      case NodeKind::compute:
        text += std::string(op_info(n.op).name) + " " + std::to_string(n.a) + " " +
                std::to_string(n.b) + " " + std::to_string(n.c);
    }
  }
  return text;
}

bool compare_scenes(const Scene& actual, const Scene& expected, const Group& group,
                    const std::string& what) {
  for (size_t p = 0; p < actual.memory.size(); ++p) {
    const int64_t at = first_difference(actual.memory[p], expected.memory[p], actual.dtypes[p]);
    if (at < 0) continue;
    std::string bytes;
    for (const Scene* s : {&actual, &expected}) {
      with_element(actual.dtypes[p], [&]<class D>() {
        D x;
        std::memcpy(&x, s->memory[p].data + static_cast<size_t>(at) * sizeof(D), sizeof x);
        char text[64];
        std::snprintf(text, sizeof text, " %a", convert<double>(x));
        bytes += text;
      });
    }
    check::fail(__FILE__, __LINE__,
                what + ": memory " + std::to_string(p) + " differs at " + std::to_string(at) +
                    " of " + std::to_string(actual.count) + ":" + bytes + "\n  " + describe(group));
    return false;
  }
  return true;
}

// The group on every instruction set against the interpreter.
bool check_group(const Group& group, const Scene& scene, const char* what,
                 Parallel& parallel = serial()) {
  Scene expected = scene;
  std::vector<void*> pointers;
  interpret(group, expected.binding(pointers));
  for (const Isa isa : sets()) {
    Scene actual = scene;
    cpu::run(*compile(group, isa), actual.binding(pointers), parallel);
    if (!compare_scenes(actual, expected, group, std::string(what) + " on " + isa_name(isa))) {
      return false;
    }
  }
  return true;
}

DTypeSet class_dtypes(ComputeClass c) {
  const DTypeSet small =
      dtype_bit(DType::b8) | dtype_bit(DType::u8) | dtype_bit(DType::i8) | dtype_bit(DType::i16);
  switch (c) {
    case ComputeClass::f32: return small | kHalves | dtype_bit(DType::f32);
    case ComputeClass::f64: return small | kHalves | kFloating | dtype_bit(DType::i32);
    case ComputeClass::i64: break;
  }
  return small | kIntegral;
}

constexpr ComputeClass kClasses[] = {ComputeClass::f32, ComputeClass::f64, ComputeClass::i64};

bool in_class(const OpInfo& info, ComputeClass c) {
  return info.supports(own_dtype(c)) || info.supports(DType::b8);
}

}  // namespace

TEST(executor_every_operation_in_every_form) {
  Random random(1);
  // How an operand of the operation comes about.
  enum { memory, computed, immediate, scalar, strided, half, kinds };
  for (const ComputeClass c : kClasses) {
    for (int i = 0; i < kOpCount; ++i) {
      const Op op = static_cast<Op>(i);
      const OpInfo& info = op_info(op);
      if (!in_class(info, c)) continue;
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
TEST(executor_operations_alone_are_loops) {
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
        Builder b(ComputeClass::f32);
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
    Builder copy(ComputeClass::f32), fill(ComputeClass::f32);
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

TEST(executor_rows_of_groups_have_their_algebra) {
  for (int i = 0; i < kOpCount; ++i) {
    check_algebra<float>(static_cast<Op>(i));
    check_algebra<double>(static_cast<Op>(i));
  }
}

TEST(executor_tails_of_every_length) {
  Random random(2);
  for (const ComputeClass c : kClasses) {
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

TEST(executor_conversions_of_every_dtype) {
  Random random(3);
  for (const ComputeClass c : kClasses) {
    for (int from = 0; from < static_cast<int>(DType::c64); ++from) {
      for (int to = 0; to < static_cast<int>(DType::c64); ++to) {
        for (int value = 0; value < static_cast<int>(DType::c64); ++value) {
          const DType dtype = static_cast<DType>(value);
          if ((class_dtypes(c) & dtype_bit(dtype)) == 0) continue;
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

namespace {

// A group of about `size` computing nodes with everything in it.
Group random_group(int size, Random& random, bool strided) {
  const ComputeClass c = kClasses[random() % 4 < 2 ? 0 : random() % 3];
  Builder b(c);
  std::vector<DType> dtypes;
  for (int d = 0; d < kDTypeCount; ++d) {
    if (class_dtypes(c) & dtype_bit(static_cast<DType>(d))) dtypes.push_back(static_cast<DType>(d));
  }
  // As people mix them: a half type and float32. Its values are read from memory as they are, which
  // has instructions of its own.
  if (c == ComputeClass::f32 && random() % 2 == 0) {
    dtypes.assign(1, random() % 3 == 0 ? DType::f16 : DType::bf16);
  }
  const unsigned own_in = 2 + random() % 6;
  const auto any_dtype = [&] {
    if (random() % own_in == 0) return b.own();
    return dtypes[random() % dtypes.size()];
  };
  const auto any_layout = [&](bool store) {
    if (strided && random() % 3 == 0) return Layout::strided;
    return !store && random() % 6 == 0 ? Layout::scalar : Layout::dense;
  };
  const unsigned areas = random() % 2 == 0 ? 1 : random() % 2 == 0 ? 3 : 1000;
  const unsigned stored_in = 2 + random() % 10;
  const auto operand = [&](bool store) {
    const uint16_t o = b.operand(any_dtype(), any_layout(store));
    b.group.operands[o].area = static_cast<uint16_t>(random() % areas);
    return o;
  };
  std::vector<uint16_t> values;
  const int loads = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < loads; ++i) {
    const uint16_t o = operand(false);
    values.push_back(b.load(o, random() % 2 ? b.group.operands[o].dtype : any_dtype()));
  }
  if (random() % 2 == 0) values.push_back(b.immediate(any_dtype()));
  const auto pick = [&] {
    const size_t recent = std::min<size_t>(values.size(), random() % 3 == 0 ? values.size() : 4);
    return values[values.size() - 1 - random() % recent];
  };
  const auto pick_b8 = [&] {
    for (int i = 0; i < 8; ++i) {
      const uint16_t v = pick();
      if (b.group.nodes[v].dtype == DType::b8) return v;
    }
    values.push_back(b.cast(pick(), DType::b8));
    return values.back();
  };
  while (size-- > 0) {
    if (random() % 8 == 0) {
      values.push_back(b.cast(pick(), any_dtype()));
      continue;
    }
    if (random() % 12 == 0) {
      values.push_back(b.immediate(any_dtype()));
      continue;
    }
    const Op op = random() % 8 == 0   ? Op::fma
                  : random() % 2 == 0 ? static_cast<Op>(random() % 5)
                                      : static_cast<Op>(random() % static_cast<unsigned>(kOpCount));
    const OpInfo& info = op_info(op);
    if (!in_class(info, c)) continue;
    const bool logical = !info.supports(b.own());
    DType dtype = info.has(kPredicate) ? DType::b8 : any_dtype();
    if (!info.has(kPredicate) && !info.supports_in_group(dtype)) dtype = b.own();
    uint16_t args[3];
    for (int k = 0; k < 3; ++k) {
      args[k] = logical || (k == 0 && info.has(kCondition)) ? pick_b8() : pick();
    }
    values.push_back(b.op(op, dtype, args[0], args[1], args[2]));
    if (random() % stored_in == 0) b.store(values.back(), operand(true));
  }
  const int stores = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < stores; ++i) b.store(pick(), operand(true));
  b.store(values.back(), operand(true));
  return b.group;
}

std::vector<int64_t> random_sizes(Random& random) {
  switch (random() % 4) {
    case 0: return {static_cast<int64_t>(random() % 300)};
    case 1:
      return {static_cast<int64_t>(1 + random() % 5), static_cast<int64_t>(1 + random() % 300)};
    case 2:
      return {static_cast<int64_t>(1 + random() % 4), static_cast<int64_t>(1 + random() % 9),
              static_cast<int64_t>(1 + random() % 40)};
    default: return {static_cast<int64_t>(1 + random() % 2000)};
  }
}

// Runs node after node, each value in memory of its dtype.
void run_one_by_one(const Group& group, Scene& scene, Isa isa) {
  std::vector<Memory> values;
  std::vector<void*> pointers;
  const Binding whole = scene.binding(pointers);
  // Loads see what memory held before the group, so stores come last.
  for (const bool stores : {false, true}) {
    for (size_t i = 0; i < group.nodes.size(); ++i) {
      const Node& node = group.nodes[i];
      if (!stores) values.emplace_back(static_cast<size_t>(whole.count) * dtype_size(node.dtype));
      if ((node.kind == NodeKind::store) != stores) continue;
      Builder b(group.compute_class);
      std::vector<void*> operands;
      std::vector<int64_t> strides;
      const auto temporary = [&](uint16_t v) {
        operands.push_back(values[v].data);
        strides.insert(strides.end(), scene.sizes.size(), 0);
        return b.operand(group.nodes[v].dtype);
      };
      const auto outside = [&](uint16_t o) {
        operands.push_back(pointers[o]);
        for (size_t d = 0; d < scene.sizes.size(); ++d) {
          strides.push_back(scene.strides[o * scene.sizes.size() + d]);
        }
        return b.operand(group.operands[o].dtype, group.operands[o].layout);
      };
      uint64_t immediate = 0;
      switch (node.kind) {
        case NodeKind::load: {
          const uint16_t x = b.load(outside(node.a), node.dtype);
          b.store(x, temporary(static_cast<uint16_t>(i)));
          break;
        }
        case NodeKind::immediate: {
          immediate = scene.immediates[node.a];
          const uint16_t x = b.immediate(node.dtype);
          b.store(x, temporary(static_cast<uint16_t>(i)));
          break;
        }
        case NodeKind::cast: {
          const uint16_t x = b.cast(b.load(temporary(node.a)), node.dtype);
          b.store(x, temporary(static_cast<uint16_t>(i)));
          break;
        }
        case NodeKind::compute: {
          const int arity = op_info(node.op).arity;
          const uint16_t x = b.load(temporary(node.a));
          const uint16_t y = arity > 1 ? b.load(temporary(node.b)) : x;
          const uint16_t z = arity > 2 ? b.load(temporary(node.c)) : x;
          const uint16_t r = b.op(node.op, node.dtype, x, y, z);
          b.store(r, temporary(static_cast<uint16_t>(i)));
          break;
        }
        case NodeKind::store: {
          const uint16_t x = b.load(temporary(node.a));
          b.store(x, outside(node.b));
          break;
        }
      }
      const Binding binding{operands.data(), &immediate,  whole.count,
                            whole.rank,      whole.sizes, strides.data()};
      cpu::run(*compile(b.group, isa), binding);
    }
  }
}

}  // namespace

TEST(executor_fused_is_one_by_one_bit_for_bit) {
  Random random(4);
  int run = 0, refused = 0;
  for (int i = 0; i < 1500; ++i) {
    const Group group = random_group(2 + static_cast<int>(random() % 59), random, i % 2 == 0);
    try {
      (void)compile(group);
    } catch (const Error&) {
      ++refused;
      continue;
    }
    ++run;
    const Scene scene = make_scene(group, random_sizes(random), random);
    if (!check_group(group, scene, "random")) return;
    Scene expected = scene, actual = scene;
    const Isa isa = sets()[static_cast<size_t>(i) % sets().size()];
    run_one_by_one(group, expected, isa);
    std::vector<void*> pointers;
    cpu::run(*compile(group, isa), actual.binding(pointers));
    if (!compare_scenes(actual, expected, group, "one by one")) return;
  }
  CHECK(run > 5 * refused);
}

// A product that was to be computed by its consumer, whose other operand moves a factor of it.
TEST(executor_keeps_the_operand_beside_a_product_that_does_not_join) {
  Random random(11);
  Builder b(ComputeClass::f32);
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

TEST(executor_compiles_every_value_once) {
  Random random(12);
  for (int i = 0; i < 400'000; ++i) {
    const Group group = random_group(2 + static_cast<int>(random() % 30), random, i % 4 == 0);
    try {
      (void)compile(group);  // asserts
    } catch (const Error&) {
      continue;  // a group with what is refused
    }
  }
}

TEST(executor_compiles_long_and_wide_groups) {
  Random random(7);
  {
    Builder b(ComputeClass::f32);  // a chain of nearly as many nodes as a group may have
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
    Builder b(ComputeClass::f32);
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

TEST(executor_broadcasts) {
  Random random(8);
  const std::vector<int64_t> sizes = {3, 5, 400};
  // Strides in elements of bias, row scale, both and whole, the last of them reversed.
  const int64_t cases[][3] = {{0, 0, 1}, {5, 1, 0}, {1, 0, 0}, {2000, 400, 1}, {2000, 400, -1}};
  for (const auto& c : cases) {
    for (const DType dtype : {DType::b8, DType::bf16, DType::f32, DType::f64}) {
      Builder b(ComputeClass::f32);
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

namespace {

struct Threads : Parallel {
  int threads() const override { return 4; }
  void run(int threads, Body body, void* context) override {
    std::vector<std::thread> all;
    for (int i = 1; i < threads; ++i) all.emplace_back(body, context, i);
    body(context, 0);
    for (std::thread& thread : all) thread.join();
  }
};

}  // namespace

TEST(executor_threads_share_the_work) {
  Random random(5);
  Threads threads;
  for (const int64_t count : {32'767, 32'768, 100'001, 131'072}) {
    for (const Layout layout : {Layout::dense, Layout::strided}) {
      Builder b(ComputeClass::f32);
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
TEST(executor_threads_share_the_members_of_a_batch) {
  Random random(11);
  Threads threads;
  for (const Layout layout : {Layout::dense, Layout::strided}) {
    Builder b(ComputeClass::f32);
    const uint16_t x = b.load(b.operand(DType::f32, layout)), y = b.load(b.operand(DType::bf16));
    const uint16_t s = b.load(b.operand(DType::f16, Layout::scalar), DType::f32);
    const uint16_t product = b.op(Op::mul, DType::f32, x, b.immediate(DType::f32));
    const uint16_t sum = b.op(Op::add, DType::f32, product, b.op(Op::div, DType::f32, y, s));
    b.store(sum, b.operand(DType::f32));
    b.store(b.op(Op::mul, DType::bf16, y, y), b.operand(DType::bf16));
    std::vector<Scene> scenes;
    for (const int64_t count : {0, 1, 3072, 3071, 0, 0, 3073, 100'000, 0}) {
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

#if defined(__x86_64__)
TEST(executor_threads_flush_denormals_as_the_caller) {
  Threads threads;
  Builder b(ComputeClass::f32);
  const uint16_t x = b.load(b.operand(DType::f32));
  b.store(b.op(Op::mul, DType::f32, x, b.immediate(DType::f32)), b.operand(DType::f32));
  const auto code = compile(b.group);
  std::vector<float> in(100'000, 0x1p-126f), out(in.size());
  const uint64_t half = std::bit_cast<uint32_t>(0.5f);
  void* operands[] = {in.data(), out.data()};
  const Binding binding{operands, &half, static_cast<int64_t>(in.size()), 0, nullptr, nullptr};
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040u);
  cpu::run(*code, binding, threads);
  _mm_setcsr(before);
  CHECK(std::all_of(out.begin(), out.end(), [](float y) { return y == 0; }));
  cpu::run(*code, binding, threads);
  CHECK(std::all_of(out.begin(), out.end(), [](float y) { return y == 0x1p-127f; }));
}
#endif

TEST(executor_refuses_what_breaks_the_rules) {
  const auto refused = [](const Group& group, const char* part) {
    CHECK_THROWS(compile(group), Error, part);
  };
  Builder b(ComputeClass::f32);
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
    Builder c(ComputeClass::i64);
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

namespace {

// bf16 or f16 nearest to x by arithmetic: `bits` of the significand, exponents from `least`.
double nearest(double x, int bits, int least, double limit) {
  if (std::isnan(x) || std::isinf(x) || x == 0) return x;
  int exponent;
  std::frexp(x, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - bits, least));
  const double r = std::nearbyint(x / unit) * unit;
  return std::fabs(r) >= limit ? std::copysign(HUGE_VAL, x) : std::copysign(r, x);
}

}  // namespace

// Every bf16, NaNs with all payloads among them, through results that are rounded in each way: by
// the instruction that computes it, by one of its own, by the store; beside f32 values, whose NaNs
// may have low bits.
TEST(executor_rounds_every_bf16_and_every_nan) {
  Random random(10);
  for (const DType other : {DType::bf16, DType::f32, DType::f16}) {
    for (const Op op : {Op::add, Op::sub, Op::mul, Op::div}) {
      Builder b(ComputeClass::f32);
      const DType half = DType::bf16;
      const uint16_t x = b.load(b.operand(half)), y = b.load(b.operand(other), other);
      const uint16_t s = b.immediate(half);
      const uint16_t z = b.op(op, half, x, y);
      const uint16_t scaled = b.op(op, half, s, z);
      const uint16_t product = b.op(Op::mul, half, x, s);
      const uint16_t joined = b.op(op, half, scaled, product);
      const uint16_t back = b.op(op, half, b.op(Op::mul, half, x, x), joined);
      const uint16_t wide = b.op(Op::mul, DType::f32, b.op(op, DType::f32, x, y), s);
      b.store(b.op(Op::exp, half, z), b.operand(half));
      b.store(b.op(Op::maximum, half, joined, z), b.operand(half));
      b.store(back, b.operand(half));
      b.store(wide, b.operand(half));
      b.store(b.cast(wide, half), b.operand(DType::f32));
      b.store(y, b.operand(half));
      Scene scene = make_scene(b.group, {5 * 65536}, random, false);
      for (size_t i = 0; i < 5 * 65536; ++i) {
        const auto word = static_cast<uint16_t>(i);
        std::memcpy(scene.memory[0].data + 2 * i, &word, 2);
        uint32_t bits = static_cast<uint32_t>(random());
        if (random() % 4 == 0) bits |= 0x7f80'0000;
        if (random() % 8 == 0) bits |= 0x7fff'8000;
        std::memcpy(scene.memory[1].data + i * dtype_size(other), &bits, dtype_size(other));
      }
      for (const float number : {1.0f, 0.3f, -0x1p-126f, std::numeric_limits<float>::quiet_NaN()}) {
        scene.immediates[0] = std::bit_cast<uint32_t>(number);
        if (!check_group(b.group, scene, "bf16")) return;
      }
    }
  }
}

TEST(executor_rounds_halves_to_nearest_even) {
  // All halves, everything between two of them that matters, and random bits.
  std::vector<float> in;
  for (uint32_t h = 0; h < 65536; ++h) {
    const float b = convert<float>(Bf16{static_cast<uint16_t>(h)});
    const float f = convert<float>(F16{static_cast<uint16_t>(h)});
    const uint32_t bits = h << 16;
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      in.push_back(std::bit_cast<float>(bits | low));
    }
    in.push_back(b);
    in.push_back(f);
    const float next = convert<float>(F16{static_cast<uint16_t>(h + 1)});
    const float middle = static_cast<float>((static_cast<double>(f) + next) / 2);
    in.push_back(middle);
    in.push_back(std::nextafter(middle, HUGE_VALF));
    in.push_back(std::nextafter(middle, -HUGE_VALF));
  }
  Random random(6);
  for (int i = 0; i < 300'000; ++i) {
    in.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  }
  Builder b(ComputeClass::f32);
  const uint16_t x = b.load(b.operand(DType::f32));
  const uint16_t h = b.cast(x, DType::bf16), f = b.cast(x, DType::f16);
  b.store(h, b.operand(DType::f32));
  b.store(f, b.operand(DType::f32));
  b.store(x, b.operand(DType::bf16));
  b.store(x, b.operand(DType::f16));
  std::vector<float> rounded[2] = {in, in};
  std::vector<uint16_t> halves[2] = {std::vector<uint16_t>(in.size()),
                                     std::vector<uint16_t>(in.size())};
  void* operands[] = {in.data(), rounded[0].data(), rounded[1].data(), halves[0].data(),
                      halves[1].data()};
  const Binding binding{operands, nullptr, static_cast<int64_t>(in.size()), 0, nullptr, nullptr};
  for (const Isa isa : sets()) {
    cpu::run(*compile(b.group, isa), binding);
    int wrong = 0;
    for (size_t i = 0; i < in.size(); ++i) {
      const double expected[2] = {nearest(static_cast<double>(in[i]), 8, -133, 0x1p128),
                                  nearest(static_cast<double>(in[i]), 11, -24, 65520)};
      const float loaded[2] = {convert<float>(Bf16{halves[0][i]}),
                               convert<float>(F16{halves[1][i]})};
      for (int k = 0; k < 2; ++k) {
        for (const float actual : {rounded[k][i], loaded[k]}) {
          const auto e = static_cast<float>(expected[k]);
          const bool same = std::isnan(e) ? std::isnan(actual)
                                          : e == actual && std::signbit(e) == std::signbit(actual);
          if (!same && wrong++ < 5) {
            std::printf("  %s %s: %a -> %a, expected %a\n", isa_name(isa), k ? "f16" : "bf16",
                        static_cast<double>(in[i]), static_cast<double>(actual), expected[k]);
          }
        }
      }
    }
    CHECK_EQ(wrong, 0);
  }
}

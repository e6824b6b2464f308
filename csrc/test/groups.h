// Groups and their memory for tests: built by hand, run on every instruction set, compared with the
// interpreter.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "atlas/op_table.h"
#include "atlas/program.h"
#include "check.h"
#include "cpu/compiled_group.h"
#include "cpu/convert.h"
#include "interpret.h"

namespace hologram::test {

using namespace hologram::cpu;

inline std::vector<Isa> sets() {
  switch (best_isa()) {
    case Isa::avx512: return {Isa::avx512, Isa::avx2, Isa::baseline};
    case Isa::avx2: return {Isa::avx2, Isa::baseline};
    default: return {best_isa()};
  }
}

// A group while it is written.
struct Builder {
  Group group;

  explicit Builder(ComputeType c) { group.compute_type = c; }
  DType own() const { return own_dtype(group.compute_type); }
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
  // Of bf16 every other one says that it is a number of it, as random scenes have them all.
  uint16_t immediate(DType dtype) {
    const auto number = static_cast<uint16_t>(group.immediates++);
    const bool is_held = dtype == DType::bf16 && number % 2 == 0;
    return add({NodeKind::immediate, Op::add, dtype, number, is_held});
  }
  uint16_t op(Op op, DType dtype, uint16_t a, uint16_t b = 0, uint16_t c = 0) {
    return add({NodeKind::compute, op, dtype, a, b, c});
  }
  uint16_t draw(Draw draw, DType dtype) {
    const auto first = static_cast<uint16_t>(group.immediates);
    group.immediates += kDrawImmediates;
    return add({NodeKind::random, Op::add, dtype, first, static_cast<uint16_t>(draw)});
  }
  uint16_t cast(uint16_t a, DType dtype) { return add({NodeKind::cast, Op::add, dtype, a}); }
  void store(uint16_t value, uint16_t operand) {
    add({NodeKind::store, Op::add, group.operands[operand].dtype, value, operand});
  }
};

// Memory of exactly some bytes between pages that may not be touched; it ends at the second, or
// begins after the first.
struct Memory {
  explicit Memory(size_t bytes, bool begins = false) : size(bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inside = (bytes + page - 1) / page * page;
    mapped = inside + 2 * page;
    base = static_cast<char*>(mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base + page, inside, PROT_READ | PROT_WRITE);
    data = base + page + (begins ? 0 : inside - bytes);
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

inline double random_number(Random& random) {
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

inline void fill_random(Memory& memory, DType dtype, Random& random) {
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
inline int64_t first_difference(const Memory& a, const Memory& b, DType dtype) {
  if (std::memcmp(a.data, b.data, a.size) == 0) return -1;  // quicker than each by itself
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
inline void random_strides(const std::vector<int64_t>& sizes, bool distinct, Random& random,
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

// Numbers that the immediates' dtypes have.
inline void add_immediates(const Group& group, Scene& scene, Random& random) {
  for (int i = 0; i < group.immediates; ++i) scene.immediates.push_back(0);
  for (const Node& node : group.nodes) {
    if (node.kind == NodeKind::random) {
      // Also where the offset's halves meet, and of ranges the greatest.
      scene.immediates[node.a] = random();
      scene.immediates[node.a + 1u] = random() % 2 == 0 ? random() % 100 : 0xfffffff0u;
      const bool is_long = static_cast<Draw>(node.b) == Draw::long_integer;
      const uint64_t range = is_long ? random() >> random() % 64 : random() >> (32 + random() % 32);
      scene.immediates[node.a + 2u] =
          random() % 4 == 0 ? (is_long ? 0 : uint64_t{1} << 32) : std::max<uint64_t>(range, 1);
    }
    if (node.kind != NodeKind::immediate) continue;
    const double x = random_number(random);
    const auto set = [&](auto value) {
      std::memcpy(&scene.immediates[node.a], &value, sizeof value);
    };
    switch (group.compute_type) {
      case ComputeType::f32: set(interpret_round(static_cast<float>(x), node.dtype)); break;
      case ComputeType::f64: set(interpret_round(x, node.dtype)); break;
      case ComputeType::i64: set(interpret_round(convert<int64_t>(x), node.dtype)); break;
    }
  }
}

// Memory for every operand; a store's may be a load's in place.
inline Scene make_scene(const Group& group, std::vector<int64_t> sizes, Random& random,
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
    const auto [dtype, layout, area, spread] = group.operands[i];
    (void)spread;
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
  add_immediates(group, scene, random);
  return scene;
}

// A draw of a dtype that the group computes in.
inline uint16_t random_draw(Builder& b, Random& random) {
  constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};
  const bool first = random() % 2 == 0;
  switch (b.group.compute_type) {
    case ComputeType::f32:
      return b.draw(first ? Draw::uniform : Draw::normal, kFloats[random() % 3]);
    case ComputeType::f64: return b.draw(first ? Draw::uniform : Draw::normal, DType::f64);
    case ComputeType::i64: break;
  }
  return b.draw(first ? Draw::integer : Draw::long_integer, DType::i64);
}

inline std::string describe(const Group& group) {
  std::string text = group.compute_type == ComputeType::f32   ? "f32:"
                     : group.compute_type == ComputeType::f64 ? "f64:"
                                                              : "i64:";
  for (const Operand& o : group.operands) {
    text += std::string(" ") + dtype_name(o.dtype) +
            (o.layout == Layout::dense    ? ""
             : o.layout == Layout::scalar ? "(scalar)"
                                          : "(strided)") +
            spread_name(o.spread);
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
      case NodeKind::random:
        text += std::string(draw_name(static_cast<Draw>(n.b))) + " of " + std::to_string(n.a);
        break;
      case NodeKind::pick: text += "pick " + std::to_string(n.a) + " " + std::to_string(n.b); break;
      case NodeKind::position:
        text += std::string("position") + spread_name(static_cast<Spread>(n.b));
        break;
      case NodeKind::scan:
        text += std::string(op_info(n.op).scan) + " " + std::to_string(n.a) +
                scan_axis_name(static_cast<Spread>(n.b));
        break;
      case NodeKind::fold:
        text += std::string(op_info(n.op).fold) + " " + std::to_string(n.a) +
                spread_name(static_cast<Spread>(n.b));
        break;
      case NodeKind::compute:
        text += std::string(op_info(n.op).name) + " " + std::to_string(n.a) + " " +
                std::to_string(n.b) + " " + std::to_string(n.c);
    }
  }
  return text;
}

inline bool compare_scenes(const Scene& actual, const Scene& expected, const Group& group,
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

// Whether the processor says that nothing is in the upper parts of the calling thread's vector
// registers; true where it does not say.
inline bool upper_registers_are_clear() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & bit_OSXSAVE) == 0) return true;
  if (__get_cpuid_count(0xd, 1, &eax, &ebx, &ecx, &edx) == 0 || (eax & 4) == 0) return true;
  asm volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(1));  // which states are in use
  return (eax & 4) == 0;
#else
  return true;
#endif
}

// The group on every instruction set against the interpreter.
inline bool check_group(const Group& group, const Scene& scene, const char* what,
                        Parallel& parallel = serial()) {
  Scene expected = scene;
  std::vector<void*> pointers;
  interpret(group, expected.binding(pointers));
  for (const Isa isa : sets()) {
    Scene actual = scene;
    cpu::run(*compile(group, isa), actual.binding(pointers), parallel);
    CHECK(upper_registers_are_clear());
    if (!compare_scenes(actual, expected, group, std::string(what) + " on " + isa_name(isa))) {
      return false;
    }
  }
  return true;
}

inline DTypeSet held_dtypes(ComputeType c) {
  const DTypeSet small =
      dtype_bit(DType::b8) | dtype_bit(DType::u8) | dtype_bit(DType::i8) | dtype_bit(DType::i16);
  switch (c) {
    case ComputeType::f32: return small | kHalves | dtype_bit(DType::f32);
    case ComputeType::f64: return small | kHalves | kFloating | dtype_bit(DType::i32);
    case ComputeType::i64: break;
  }
  return small | kIntegral;
}

constexpr ComputeType kComputeTypes[] = {ComputeType::f32, ComputeType::f64, ComputeType::i64};

inline bool computed_in(const OpInfo& info, ComputeType c) {
  return info.supports(own_dtype(c)) || info.supports(DType::b8);
}

}  // namespace hologram::test

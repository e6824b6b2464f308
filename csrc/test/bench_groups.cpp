// Groups against loops fused by hand that round where op by op rounds, with the same
// math functions, on one thread.  make bench-groups
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "cpu/compiled_group.h"

#if defined(__x86_64__)
#include <immintrin.h>
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC's own _mm512_undefined_ps
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#include "cpu/kernels.h"

namespace {

using namespace hologram;
using namespace hologram::cpu;

using V = Simd<float, 64>;

// D: the dtype of memory and of every result.
template <DType D>
struct Hand {
  using L = Lanes<float, D, 64>;
  using E = Element<D>;
  static constexpr bool kHalf = D != DType::f32;
  HOLOGRAM_INLINE static V r(V x) {
    if constexpr (D == DType::bf16) {
      return L::round_clean(x);
    } else {
      return kHalf ? L::round(x) : x;
    }
  }
  HOLOGRAM_INLINE static V load(const void* p, long i) {
    return L::load(static_cast<const char*>(p) + i * static_cast<long>(sizeof(E)), 0);
  }
  HOLOGRAM_INLINE static void store(void* p, long i, V x) {
    L::store(static_cast<char*>(p) + i * static_cast<long>(sizeof(E)), 0, x);
  }
  HOLOGRAM_INLINE static void ahead(const void* p, long i) {
    __builtin_prefetch(static_cast<const char*>(p) + i * static_cast<long>(sizeof(E)) + 2048);
  }

  [[gnu::noinline]] static E element(float x) { return convert<E>(x); }

  static void gelu(void* const* p, const float* s, long n) {
    for (long i = 0; i < n; i += 16) {
      ahead(p[0], i), ahead(p[1], i);
      const V x = load(p[0], i);
      const V cube = r(r(x * x) * x);
      const V u = r(r(r(cube * V(s[0])) + x) * V(s[1]));
      store(p[1], i, r(r(r(math_tanh(u)) + V(s[2])) * r(x * V(s[3]))));
    }
  }
  static void swiglu(void* const* p, const float*, long n) {
    for (long i = 0; i < n; i += 16) {
      ahead(p[0], i), ahead(p[1], i), ahead(p[2], i);
      const V x = load(p[0], i), g = load(p[1], i);
      store(p[2], i, r(r(x * r(math_sigmoid(x))) * g));
    }
  }
  static void relu(void* const* p, const float*, long n) {
    for (long i = 0; i < n; i += 16) {
      ahead(p[0], i), ahead(p[1], i), ahead(p[2], i), ahead(p[3], i);
      const V y = r(r(load(p[0], i) * load(p[1], i)) + load(p[2], i));
      store(p[3], i, select(y < V(0), V(0), y));
    }
  }
  static void adam(void* const* p, const float* s, long n) {
    for (long i = 0; i < n; i += 16) {
      ahead(p[0], i), ahead(p[1], i), ahead(p[2], i), ahead(p[3], i);
      const V g = load(p[1], i);
      const V m = r(r(load(p[2], i) * V(s[0])) + r(g * V(s[1])));
      const V v = r(r(load(p[3], i) * V(s[2])) + r(r(g * g) * V(s[3])));
      const V step = r(r(m * V(s[4])) / r(r(math_sqrt(v)) + V(s[5])));
      store(p[0], i, r(load(p[0], i) - step));
      store(p[2], i, m);
      store(p[3], i, v);
    }
  }
  static void light(void* const* p, const float* s, long n) {
    for (long i = 0; i < n; i += 16) {
      ahead(p[0], i), ahead(p[1], i);
      V x = load(p[0], i);
      for (int k = 0; k < 8; ++k) {
        x = r(x * V(s[0]));
        x = r(x + V(s[1]));
      }
      store(p[1], i, x);
    }
  }
};

}  // namespace
#pragma GCC pop_options

namespace {

struct Builder {
  Group group;
  DType dtype;
  uint16_t add(Node node) {
    group.nodes.push_back(node);
    return static_cast<uint16_t>(group.nodes.size() - 1);
  }
  // Each operand is memory of its own.
  uint16_t operand() {
    group.operands.push_back({dtype, Layout::dense, static_cast<uint16_t>(group.operands.size())});
    return static_cast<uint16_t>(group.operands.size() - 1);
  }
  uint16_t load(uint16_t o) { return add({NodeKind::load, Op::add, dtype, o}); }
  uint16_t imm() {
    return add(
        {NodeKind::immediate, Op::add, DType::f32, static_cast<uint16_t>(group.immediates++)});
  }
  uint16_t op(Op op, uint16_t a, uint16_t b = 0) {
    return add({NodeKind::compute, op, dtype, a, b});
  }
  void store(uint16_t v, uint16_t o) { add({NodeKind::store, Op::add, dtype, v, o}); }
};

using Write = void (*)(Builder&);

void write_gelu(Builder& b) {
  const auto x = b.load(b.operand());
  const auto s0 = b.imm(), s1 = b.imm(), s2 = b.imm(), s3 = b.imm();
  const auto cube = b.op(Op::mul, b.op(Op::mul, x, x), x);
  const auto u = b.op(Op::mul, b.op(Op::add, b.op(Op::mul, cube, s0), x), s1);
  const auto t = b.op(Op::add, b.op(Op::tanh, u), s2);
  b.store(b.op(Op::mul, t, b.op(Op::mul, x, s3)), b.operand());
}
void write_swiglu(Builder& b) {
  const auto x = b.load(b.operand()), g = b.load(b.operand());
  b.store(b.op(Op::mul, b.op(Op::mul, x, b.op(Op::sigmoid, x)), g), b.operand());
}
void write_relu(Builder& b) {
  const auto x = b.load(b.operand()), y = b.load(b.operand()), z = b.load(b.operand());
  b.store(b.op(Op::relu, b.op(Op::add, b.op(Op::mul, x, y), z)), b.operand());
}
void write_adam(Builder& b) {
  const auto po = b.operand(), go = b.operand(), mo = b.operand(), vo = b.operand();
  const auto p = b.load(po), g = b.load(go), m0 = b.load(mo), v0 = b.load(vo);
  const auto s0 = b.imm(), s1 = b.imm(), s2 = b.imm(), s3 = b.imm(), s4 = b.imm(), s5 = b.imm();
  const auto m = b.op(Op::add, b.op(Op::mul, m0, s0), b.op(Op::mul, g, s1));
  const auto v = b.op(Op::add, b.op(Op::mul, v0, s2), b.op(Op::mul, b.op(Op::mul, g, g), s3));
  const auto denominator = b.op(Op::add, b.op(Op::sqrt, v), s5);
  const auto step = b.op(Op::div, b.op(Op::mul, m, s4), denominator);
  b.store(m, mo);
  b.store(v, vo);
  b.store(b.op(Op::sub, p, step), po);
}
void write_light(Builder& b) {
  auto x = b.load(b.operand());
  const auto s = b.imm(), t = b.imm();
  for (int k = 0; k < 8; ++k) x = b.op(Op::add, b.op(Op::mul, x, s), t);
  b.store(x, b.operand());
}

double seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Least time of each, in turns.
std::pair<double, double> race(const std::function<void()>& a, const std::function<void()>& b,
                               double budget) {
  double best_a = 1e9, best_b = 1e9;
  a(), b();
  for (double spent = 0; spent < budget;) {
    const double ta = seconds(a), tb = seconds(b);
    best_a = std::min(best_a, ta);
    best_b = std::min(best_b, tb);
    spent += ta + tb;
  }
  return {best_a, best_b};
}

template <DType D>
void chain(const char* name, Write write, int operands,
           void (*hand)(void* const*, const float*, long), std::vector<float> scalars) {
  for (const long n : {16'000L, 1'000'000L, 10'000'000L}) {
    Builder b{{}, D};
    b.group.compute_type = ComputeType::f32;
    write(b);
    const auto code = compile(b.group);
    std::vector<std::vector<Element<D>>> memory[2];
    std::vector<void*> pointers[2];
    for (int side = 0; side < 2; ++side) {
      for (int i = 0; i < operands; ++i) {
        std::vector<Element<D>> data(static_cast<size_t>(n));
        for (size_t k = 0; k < data.size(); ++k) {
          data[k] =
              Hand<D>::element(0.001f * static_cast<float>(k % 3001) + (i < 2 ? -1.5f : 0.1f));
        }
        memory[side].push_back(std::move(data));
        pointers[side].push_back(memory[side].back().data());
      }
    }
    std::vector<uint64_t> immediates;
    for (const float s : scalars) immediates.push_back(std::bit_cast<uint32_t>(s));
    const Binding binding{pointers[0].data(), immediates.data(), n, 0, nullptr, nullptr};
    cpu::run(*code, binding);
    hand(pointers[1].data(), scalars.data(), n);
    const bool same = std::memcmp(pointers[0].back(), pointers[1].back(),
                                  static_cast<size_t>(n) * sizeof(Element<D>)) == 0;
    const auto [fused, by_hand] = race([&] { cpu::run(*code, binding); },
                                       [&] { hand(pointers[1].data(), scalars.data(), n); }, 0.6);
    std::printf("%-12s %-4s %9ld   %8.3f ns/element   %8.3f by hand   ratio %.2f%s\n", name,
                dtype_name(D), n, 1e9 * fused / static_cast<double>(n),
                1e9 * by_hand / static_cast<double>(n), fused / by_hand,
                same ? "" : "   DIFFERENT RESULTS");
  }
}

template <DType D>
void chains() {
  using H = Hand<D>;
  chain<D>("gelu", write_gelu, 2, H::gelu, {0.044715f, 0.7978845f, 1, 0.5f});
  chain<D>("swiglu", write_swiglu, 3, H::swiglu, {});
  chain<D>("relu(a*x+b)", write_relu, 4, H::relu, {});
  chain<D>("adam", write_adam, 4, H::adam, {0.9f, 0.1f, 0.999f, 0.001f, 1e-3f, 1e-8f});
  chain<D>("16 light", write_light, 2, H::light, {0.75f, 0.01f});
}

void overhead() {
  for (const int nodes : {10, 60}) {
    Builder b{{}, DType::f32};
    b.group.compute_type = ComputeType::f32;
    auto x = b.load(b.operand());
    const auto s = b.imm();
    for (int i = 0; i < nodes; ++i) x = b.op(i % 2 ? Op::add : Op::mul, x, s);
    b.store(x, b.operand());
    const auto code = compile(b.group);
    std::vector<float> in(4096, 1.f), out(4096);
    void* pointers[] = {in.data(), out.data()};
    const uint64_t one = std::bit_cast<uint32_t>(1.f);
    double compiling = 1e9;
    for (int k = 0; k < 50; ++k) {
      compiling = std::min(compiling, seconds([&] {
                             for (int i = 0; i < 100; ++i) (void)compile(b.group);
                           }));
    }
    std::printf("%d operations: compile %.2f us; run", nodes, compiling * 1e4);
    for (const int64_t n : {1, 16, 128, 1024, 3072}) {
      const Binding binding{pointers, &one, n, 0, nullptr, nullptr};
      double best = 1e9;
      for (int k = 0; k < 50; ++k) {
        best = std::min(best, seconds([&] {
                          for (int i = 0; i < 1000; ++i) cpu::run(*code, binding);
                        }));
      }
      std::printf("  %lld: %.0f ns", static_cast<long long>(n), best * 1e6);
    }
    std::printf("\n");
  }
}

// ns for 1024 elements in the first-level cache.
void functions() {
  for (int i = 0; i < kOpCount; ++i) {
    const OpInfo& info = op_info(static_cast<Op>(i));
    if (info.arity != 1 || !info.supports(DType::f32)) continue;
    std::printf("%-10s", info.name);
    for (const Isa isa : {Isa::avx512, Isa::avx2, Isa::baseline}) {
      Builder b{{}, DType::f32};
      b.group.compute_type = ComputeType::f32;
      const auto x = b.load(b.operand());
      b.store(b.op(static_cast<Op>(i), x), b.operand());
      const auto code = compile(b.group, isa);
      std::vector<float> in(1024), out(1024);
      for (size_t k = 0; k < in.size(); ++k) in[k] = 0.01f * static_cast<float>(k % 500) + 0.01f;
      void* pointers[] = {in.data(), out.data()};
      const Binding binding{pointers, nullptr, 1024, 0, nullptr, nullptr};
      double best = 1e9;
      for (int k = 0; k < 50; ++k) {
        best = std::min(best, seconds([&] {
                          for (int j = 0; j < 20; ++j) cpu::run(*code, binding);
                        }));
      }
      std::printf("  %s %6.0f", isa_name(isa), best * 1e9 / 20);
    }
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  if (best_isa() != Isa::avx512) {
    std::printf("the loops by hand need AVX-512\n");
    return 0;
  }
  if (only.empty() || only == "overhead") overhead();
  if (only.empty() || only == "functions") functions();
  if (only.empty() || only == "f32") chains<DType::f32>();
  if (only.empty() || only == "bf16") chains<DType::bf16>();
  if (only.empty() || only == "f16") chains<DType::f16>();
}
#else
int main() {}
#endif

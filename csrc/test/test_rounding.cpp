// Rounding to the half types.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "groups.h"

using namespace hologram;
using namespace hologram::cpu;
using namespace hologram::test;

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
TEST(group_rounds_every_bf16_and_every_nan) {
  Random random(10);
  for (const DType other : {DType::bf16, DType::f32, DType::f16}) {
    for (const Op op : {Op::add, Op::sub, Op::mul, Op::div}) {
      Builder b(ComputeType::f32);
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

TEST(group_rounds_halves_to_nearest_even) {
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
  Builder b(ComputeType::f32);
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

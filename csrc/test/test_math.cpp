// The math functions against the C library in a wider type.
#include "cpu/math.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "check.h"

using namespace hologram;
using namespace hologram::cpu;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Distance from the exact value in units of the result's last place.
double ulps(float result, double exact) {
  if (std::isnan(exact)) return std::isnan(result) ? 0 : 1e30;
  const float nearest = static_cast<float>(exact);
  if (result == nearest && std::signbit(result) == std::signbit(nearest)) return 0.5;
  if (result == 0 && nearest == 0) return 1e30;  // the wrong zero
  if (std::isnan(result) || std::isinf(result) || std::isinf(nearest)) return 1e30;
  int exponent;
  std::frexp(exact, &exponent);
  return std::fabs(result - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

using Lanes = Simd<float, 16>;

struct Function {
  const char* name;
  Lanes (*lanes)(Lanes);
  double (*exact)(double);
};

const Function kFunctions[] = {
    {"sqrt", [](Lanes x) { return math_sqrt(x); }, [](double x) { return std::sqrt(x); }},
    {"exp", [](Lanes x) { return math_exp(x); }, [](double x) { return std::exp(x); }},
    {"exp2", [](Lanes x) { return math_exp2(x); }, [](double x) { return std::exp2(x); }},
    {"expm1", [](Lanes x) { return math_expm1(x); }, [](double x) { return std::expm1(x); }},
    {"log", [](Lanes x) { return math_log(x); }, [](double x) { return std::log(x); }},
    {"log2", [](Lanes x) { return math_log2(x); }, [](double x) { return std::log2(x); }},
    {"log1p", [](Lanes x) { return math_log1p(x); }, [](double x) { return std::log1p(x); }},
    {"tanh", [](Lanes x) { return math_tanh(x); }, [](double x) { return std::tanh(x); }},
    {"sigmoid", [](Lanes x) { return math_sigmoid(x); },
     [](double x) { return 1 / (1 + std::exp(-x)); }},
    {"erf", [](Lanes x) { return math_erf(x); }, [](double x) { return std::erf(x); }},
    {"sin", [](Lanes x) { return math_sin(x); }, [](double x) { return std::sin(x); }},
    {"cos", [](Lanes x) { return math_cos(x); }, [](double x) { return std::cos(x); }},
    {"floor", [](Lanes x) { return math_floor(x); }, [](double x) { return std::floor(x); }},
    {"ceil", [](Lanes x) { return math_ceil(x); }, [](double x) { return std::ceil(x); }},
    {"round", [](Lanes x) { return math_round(x); }, [](double x) { return std::nearbyint(x); }},
    {"trunc", [](Lanes x) { return math_trunc(x); }, [](double x) { return std::trunc(x); }},
};

// Every exponent and sign with `each` mantissas, and their neighbours at the hard places.
std::vector<float> arguments(int each) {
  std::vector<float> all;
  std::mt19937 random(7);
  for (uint32_t top = 0; top < 512; ++top) {
    for (int i = 0; i < each; ++i) {
      all.push_back(std::bit_cast<float>((top << 23) | static_cast<uint32_t>(random() & 0x7fffff)));
    }
    all.push_back(std::bit_cast<float>(top << 23));
    all.push_back(std::bit_cast<float>((top << 23) | 0x7fffff));
    all.push_back(std::bit_cast<float>((top << 23) | 1));
  }
  const float hard[] = {0.f,         1.f,         0.5f,
                        1.5f,        2.5f,        3.9f,
                        4.f,         9.f,         10.f,
                        0.70710678f, 1.41421356f, 88.7228f,
                        -87.3365f,   -103.97f,    -103.2789f,
                        128.f,       -126.f,      -149.f,
                        -150.f,      1.57079637f, 3.14159274f,
                        6.28318548f, 1e5f,        1048576.f,
                        0x1p22f,     0x1p23f,     16367173.f * 0x1p72f};
  for (const float x : hard) {
    float below = x, above = x;
    for (int i = 0; i < 40; ++i) {
      for (const float y : {below, above}) {
        all.push_back(y);
        all.push_back(-y);
      }
      below = std::nextafter(below, -kInf);
      above = std::nextafter(above, kInf);
    }
  }
  // Uniform in the ranges that are used most.
  for (const float range : {1.f, 5.f, 20.f, 100.f, 1000.f}) {
    std::uniform_real_distribution<float> uniform(-range, range);
    for (int i = 0; i < each * 100; ++i) all.push_back(uniform(random));
  }
  while (all.size() % 4 != 0) all.push_back(0);
  return all;
}

void check_value(const char* what, float result, float expected) {
  if (std::isnan(expected) ? std::isnan(result)
                           : result == expected && std::signbit(result) == std::signbit(expected)) {
    return;
  }
  check::fail(__FILE__, __LINE__,
              std::string(what) + " is " + std::to_string(result) + ", expected " +
                  std::to_string(expected));
}

}  // namespace

TEST(math_f32_is_within_an_ulp_and_a_half) {
  const std::vector<float> x = arguments(400);
  for (const Function& f : kFunctions) {
    double worst = 0;
    float where = 0;
    for (size_t i = 0; i < x.size(); i += 4) {
      const Lanes y = f.lanes(load_lanes<float, 16>(&x[i]));
      for (int k = 0; k < 4; ++k) {
        const double error = ulps(y.v[k], f.exact(static_cast<double>(x[i + k])));
        if (error > worst) worst = error, where = x[i + k];
      }
    }
    std::printf("  %-8s max %.4f ulp at %a\n", f.name, worst, static_cast<double>(where));
    if (worst > 1.5) check::fail(__FILE__, __LINE__, f.name);
  }
}

// In units of the last place of x, as x * (1 + erf(x / sqrt(2))) / 2 of floats is.
TEST(math_gelu_of_f32) {
  double worst = 0;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 0x1001) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!(std::fabs(x) < 1e38f) || std::fabs(x) < 1e-37f) continue;
    const double wide = x, exact = 0.5 * wide * std::erfc(-wide * std::sqrt(0.5));
    worst = std::max(worst, std::fabs(math_gelu(x) - exact) / std::fabs(wide) * 0x1p24);
  }
  std::printf("  gelu     max %.4f * 2^-24 * |x|\n", worst);
  CHECK(worst < 2);
}

// Of negative x the result itself is near, too, which the formula with tanh leaves thousands of
// units off: of exp(q) with the four roundings of q, and those after it.
TEST(math_gelu_tanh_of_f32) {
  double worst = 0, worst_below = 0;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 0x1001) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!(std::fabs(x) < 1e38f) || std::fabs(x) < 1e-37f) continue;
    const double wide = x;
    const double q = 2 * std::sqrt(2 / M_PI) * (wide + 0.044715 * wide * wide * wide);
    const double exact = wide / (1 + std::exp(-q)), off = std::fabs(math_gelu_tanh(x) - exact);
    worst = std::max(worst, off / std::fabs(wide) * 0x1p24);
    if (x < 0 && x > -10) {
      worst_below = std::max(worst_below, off / std::fabs(exact) * 0x1p24 / (2 + std::fabs(q)));
    }
  }
  std::printf("  gelu_tanh max %.4f * 2^-24 * |x|, below 0 %.4f * 2^-24 * (2 + |q|) of itself\n",
              worst, worst_below);
  CHECK(worst < 2);
  CHECK(worst_below < 4);
}

TEST(math_pow_and_fma_of_f32) {
  std::mt19937_64 random(11);
  double worst = 0;
  const std::vector<float> special = {0.f,  -0.f, 1.f,  -1.f,  2.f,   -2.f,    0.5f,    -0.5f,
                                      3.f,  -3.f, kInf, -kInf, kNan,  1e-45f,  -1e-45f, 1e38f,
                                      -5.f, 2.5f, 1e9f, -1e9f, 1e30f, 0x1p23f, 0x1p24f, 1.0000001f};
  const auto check = [&](float x, float y) {
    const double exact = std::pow(static_cast<double>(x), static_cast<double>(y));
    const double error = ulps(math_pow(x, y), exact);
    if (error > 0.6) {
      std::printf("  pow(%a, %a) = %a, exact %a\n", static_cast<double>(x), static_cast<double>(y),
                  static_cast<double>(math_pow(x, y)), exact);
      check::fail(__FILE__, __LINE__, "pow");
    }
    worst = std::max(worst, error);
  };
  for (const float x : special) {
    for (const float y : special) check(x, y);
  }
  std::uniform_real_distribution<float> exponent(-20, 20), near(-1, 1);
  for (int i = 0; i < 200'000; ++i) {
    const float any = std::bit_cast<float>(static_cast<uint32_t>(random()));
    check(any, exponent(random));
    check(std::fabs(any), near(random));
    check(std::exp2(exponent(random)), exponent(random));
    check(1 + near(random) * 1e-3f, exponent(random) * 1000);
    check(near(random) * 8, std::round(exponent(random)));
  }
  std::printf("  pow      max %.4f ulp\n", worst);

  // fma: exactly once rounded, near cancellation and ties too.
  for (int i = 0; i < 300'000; ++i) {
    const auto any = [&] { return std::bit_cast<float>(static_cast<uint32_t>(random())); };
    float x = any(), y = any(), z = any();
    if (i % 4 == 1) z = -x * y;
    if (i % 4 == 2) z = std::ldexp(x * y, static_cast<int>(random() % 80) - 40);
    if (i % 4 == 3) {  // short mantissas: ties, and denormal results
      x = std::ldexp(static_cast<float>(random() % 4097), -70);
      y = std::ldexp(static_cast<float>(random() % 4097), -static_cast<int>(random() % 80));
      z = std::ldexp(static_cast<float>(static_cast<int>(random() % 17) - 8), -149);
    }
    check_value("fma", math_fma(x, y, z), std::fma(x, y, z));
  }
}

TEST(math_special_values_of_f32) {
  check_value("exp(-inf)", math_exp(-kInf), 0.f);
  check_value("exp(inf)", math_exp(kInf), kInf);
  check_value("exp(-0)", math_exp(-0.f), 1.f);
  check_value("exp(-104)", math_exp(-104.f), 0.f);
  check_value("expm1(-0)", math_expm1(-0.f), -0.f);
  check_value("expm1(-inf)", math_expm1(-kInf), -1.f);
  check_value("log(0)", math_log(-0.f), -kInf);
  check_value("log(-1)", math_log(-1.f), kNan);
  check_value("log(inf)", math_log(kInf), kInf);
  check_value("log(1)", math_log(1.f), 0.f);
  check_value("log2(8)", math_log2(8.f), 3.f);
  check_value("log2(denormal)", math_log2(0x1p-149f), -149.f);
  check_value("log1p(-0)", math_log1p(-0.f), -0.f);
  check_value("log1p(-1)", math_log1p(-1.f), -kInf);
  check_value("tanh(-0)", math_tanh(-0.f), -0.f);
  check_value("tanh(inf)", math_tanh(kInf), 1.f);
  check_value("tanh(-inf)", math_tanh(-kInf), -1.f);
  check_value("tanh(denormal)", math_tanh(-0x1p-149f), -0x1p-149f);
  check_value("sigmoid(-inf)", math_sigmoid(-kInf), 0.f);
  check_value("sigmoid(inf)", math_sigmoid(kInf), 1.f);
  check_value("erf(-0)", math_erf(-0.f), -0.f);
  check_value("erf(-inf)", math_erf(-kInf), -1.f);
  check_value("gelu(-0)", math_gelu(-0.f), -0.f);
  check_value("gelu(inf)", math_gelu(kInf), kInf);
  check_value("gelu(-6)", math_gelu(-6.f), 0.f);
  check_value("gelu(6)", math_gelu(6.f), 6.f);
  check_value("gelu(NaN)", math_gelu(kNan), kNan);
  check_value("gelu(1e-40)", math_gelu(1e-40f), 5e-41f);
  check_value("gelu_tanh(-0)", math_gelu_tanh(-0.f), -0.f);
  check_value("gelu_tanh(inf)", math_gelu_tanh(kInf), kInf);
  check_value("gelu_tanh(-inf)", math_gelu_tanh(-kInf), kNan);
  check_value("gelu_tanh(-11)", math_gelu_tanh(-11.f), -0.f);
  check_value("gelu_tanh(-1e38)", math_gelu_tanh(-1e38f), -0.f);
  check_value("gelu_tanh(11)", math_gelu_tanh(11.f), 11.f);
  check_value("gelu_tanh(NaN)", math_gelu_tanh(kNan), kNan);
  check_value("gelu_tanh(1e-40)", math_gelu_tanh(1e-40f), 5e-41f);
  check_value("sin(-0)", math_sin(-0.f), -0.f);
  check_value("sin(inf)", math_sin(kInf), kNan);
  check_value("cos(-inf)", math_cos(-kInf), kNan);
  check_value("ceil(-0.5)", math_ceil(-0.5f), -0.f);
  check_value("floor(-0)", math_floor(-0.f), -0.f);
  check_value("round(2.5)", math_round(2.5f), 2.f);
  check_value("sqrt(-0)", math_sqrt(-0.f), -0.f);
  for (const Function& f : kFunctions) {
    check_value(f.name, f.lanes(Lanes(kNan)).v[0], kNan);
  }
}

// What the baseline of x86-64 computes, as a checksum of the bits (NaN is one value): another
// processor has the same. Of sin and cos without arguments that go to the C library.
TEST(math_bits_are_the_same_on_every_processor) {
  uint64_t sum = 0;
  const auto add = [&](float y) {
    sum = (sum ^ (std::isnan(y) ? 0x7fc00000 : std::bit_cast<uint32_t>(y))) * 0x100000001b3u;
  };
  const auto check = [&](const char* name, uint64_t expected) {
    if (sum != expected) {
      std::printf("  the checksum of %s is 0x%016llx\n", name,
                  static_cast<unsigned long long>(sum));
      check::fail(__FILE__, __LINE__, name);
    }
    sum = 0;
  };
  constexpr uint64_t kExpected[] = {
      0x9d2c5cee5ef34403, 0xcfb2c736127b415a, 0x0e09dfd97114e650, 0x597a82d1cee66d23,
      0x608a8c2ae80fddc2, 0xf6dbcac839a5d0fc, 0xd770553584cecf2e, 0xd27bcefc9c634fdc,
      0x6e30d51889b2f0f6, 0x39cb545efb73310d, 0xf0ba4fb17a1ffd50, 0x5d23ab4e19749284,
      0x972ce78ae0e1ca9c, 0x0bb1dec7edef611c, 0xad6c735564f0e4ce, 0xdf965469f61c2e66};
  static_assert(std::size(kExpected) == std::size(kFunctions));
  constexpr uint64_t kStep = 0x3001;  // odd: all exponents and many significands
  for (size_t i = 0; i < std::size(kFunctions); ++i) {
    const Function& f = kFunctions[i];
    const bool is_sine = f.name == std::string("sin") || f.name == std::string("cos");
    for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 4 * kStep) {
      Lanes x;
      for (uint32_t k = 0; k < 4; ++k) {
        x.v[k] = std::bit_cast<float>(static_cast<uint32_t>(bits + k * kStep));
        if (is_sine && !(std::fabs(x.v[k]) <= kSineLimit)) x.v[k] = 0;
      }
      const Lanes y = f.lanes(x);
      for (int k = 0; k < 4; ++k) add(y.v[k]);
    }
    check(f.name, kExpected[i]);
  }
  std::mt19937_64 random(3);
  const auto any = [&] { return std::bit_cast<float>(static_cast<uint32_t>(random())); };
  for (int i = 0; i < 100'000; ++i) {
    const float x = any(), y = any(), z = any();
    add(math_fma(x, y, i % 2 == 0 ? z : -x * y));
  }
  check("fma", 0x636a60514e147ebe);
  for (int i = 0; i < 100'000; ++i) {
    const float x = any(), y = any(), near = static_cast<float>(random() % 1000);
    add(math_pow(i % 2 == 0 ? x : std::fabs(x), std::ldexp(y, -40)));
    add(math_pow(1 + std::ldexp(near, -12), y));
  }
  check("pow", 0x4768bd3ffd32dd7a);
}

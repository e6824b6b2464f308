// Operators that are several rows of the op table: activations and their derivatives, the fused
// multiply-adds of optimizers. Each has torch's formula, in torch's order.
//
// An operator is a builder and its name: all overloads that take these operands follow, functional,
// in-place, with `out` or `grad_input` (aten/overloads.h). One that chooses between builders, or
// prepares their operands, is a function. What recording declines goes to torch's kernel.
#include "aten/precompiled.h"

#include <array>
#include <cmath>
#include <set>

#include "aten/builder.h"
#include "aten/numbers.h"
#include "aten/operand.h"
#include "aten/overloads.h"
#include "aten/pointwise.h"
#include "aten/record.h"
#include "aten/record_composite.h"
#include "atlas/op_table.h"

namespace hologram::aten {
namespace {

using at::Scalar;
using at::Tensor;

constexpr DTypeSet kReals = kReal;
constexpr DTypeSet kNumbers = kReal | kIntegral;

template <class... In>
bool record_as(const Composite& composite, const Target& to, const In&... in) {
  const std::array<Argument, sizeof...(In)> arguments{Argument(in)...};
  return record_composite(composite, arguments, to.out, to.fresh);
}

// Recorders of overloads: of one builder, and of a function that chooses.
template <const Composite& composite, class... In>
struct Built {
  static bool record(OpCounter& counter, const Target& to, const In&... in) {
    if (!record_as(composite, to, in...)) return false;
    note_native(counter);
    return true;
  }
};
template <auto choose>
struct Chosen {
  template <class... In>
  static bool record(OpCounter& counter, const Target& to, const In&... in) {
    if (!choose(to, in...)) return false;
    note_native(counter);
    return true;
  }
};

// What register_composites() does, by name, in the order of this file.
struct Entry {
  const char* name;
  void (*add)(const c10::OperatorName&, const Signature&);
};
std::vector<Entry>& entries() {
  static auto* made = new std::vector<Entry>();
  return *made;
}

template <class T>
using Operand = std::remove_cv_t<std::remove_reference_t<T>>;
template <char code>
using OperandOf = std::conditional_t<code == 't', Tensor, Scalar>;

template <const Composite& composite>
bool enter_composite() {
  // (In a lambda, so that the operands become a pack.)
  return []<size_t... i>(std::index_sequence<i...>) {
    using Recorder = Built<composite, OperandOf<composite.operands[i]>...>;
    entries().push_back(
        {composite.name, &Overloads<Recorder, OperandOf<composite.operands[i]>...>::add});
    return true;
  }
  (std::make_index_sequence<std::char_traits<char>::length(composite.operands)>());
}
template <auto choose, class... In>
bool enter_choice(const char* name, bool (*)(const Target&, In...)) {
  entries().push_back({name, &Overloads<Chosen<choose>, Operand<In>...>::add});
  return true;
}

// After a Composite, or a function that records one: bool (const Target&, operands ...).
#define HOLOGRAM_COMPOSITE(composite) \
  [[maybe_unused]] const bool composite##_is_registered = enter_composite<composite>()
#define HOLOGRAM_CHOICE(function)                        \
  [[maybe_unused]] const bool function##_is_registered = \
      enter_choice<&function>(#function, &function)

View scaled(Builder& b, View x, View factor) {
  return b.apply(Op::mul, {x, factor});
}

// x * y + z with one rounding, as torch's kernels have it; of integers modulo 2^n.
View multiply_add(Builder& b, View x, View y, View z) {
  return b.integral() ? b.apply(Op::add, {scaled(b, x, y), z}) : b.apply(Op::fma, {x, y, z});
}
// self + alpha * other
constexpr Composite kAdd{kNumbers,
                         [](Builder& b, const View* in) { multiply_add(b, in[2], in[1], in[0]); },
                         kParameter | kRoundsNumbers | kCpuNumbers};
constexpr Composite kSub{kAdd.dtypes, kAdd.build, kAdd.traits | kNoBool};  // alpha is negated
// self + value * a * b
constexpr Composite kAddcmul{
    kNumbers,
    [](Builder& b, const View* in) { multiply_add(b, scaled(b, in[1], in[3]), in[2], in[0]); },
    kParameter, "addcmul", "ttts"};
HOLOGRAM_COMPOSITE(kAddcmul);
// self + value * a / b
constexpr Composite kAddcdiv{kReals,
                             [](Builder& b, const View* in) {
                               const View left = scaled(b, in[1], in[3]);
                               b.apply(Op::add, {in[0], b.apply(Op::div, {left, in[2]})});
                             },
                             kParameter, "addcdiv", "ttts"};
HOLOGRAM_COMPOSITE(kAddcdiv);
// Weight below 0.5: self + weight * (end - self), else end + (weight - 1) * (end - self). The third
// operand is the coefficient.
constexpr Composite kLerpLow{kReals,
                             [](Builder& b, const View* in) {
                               multiply_add(b, in[2], b.apply(Op::sub, {in[1], in[0]}), in[0]);
                             },
                             kParameter | kOneDtype};
constexpr Composite kLerpHigh{kReals,
                              [](Builder& b, const View* in) {
                                multiply_add(b, in[2], b.apply(Op::sub, {in[1], in[0]}), in[1]);
                              },
                              kParameter | kOneDtype};
// x / (1 + exp(-x))
constexpr Composite kSilu{kReals,
                          [](Builder& b, const View* in) {
                            const View e = b.apply(Op::exp, {b.apply(Op::neg, {in[0]})});
                            b.apply(Op::div, {in[0], b.apply(Op::add, {e, b.number(1)})});
                          },
                          kPlain, "silu", "t"};
HOLOGRAM_COMPOSITE(kSilu);
// grad * s * (1 + x * (1 - s)), s = sigmoid(x)
constexpr Composite kSiluBackward{
    kReals,
    [](Builder& b, const View* in) {
      const View s = b.apply(Op::sigmoid, {in[1]});
      const View rest = b.apply(Op::mul, {in[1], b.apply(Op::sub, {b.number(1), s})});
      const View factor = b.apply(Op::add, {rest, b.number(1)});
      b.apply(Op::mul, {b.apply(Op::mul, {in[0], s}), factor});
    },
    kPlain, "silu_backward", "tt"};
HOLOGRAM_COMPOSITE(kSiluBackward);
// grad * (1 - y) * y
constexpr Composite kSigmoidBackward{kReals,
                                     [](Builder& b, const View* in) {
                                       const View rest = b.apply(Op::sub, {b.number(1), in[1]});
                                       b.apply(Op::mul, {b.apply(Op::mul, {in[0], rest}), in[1]});
                                     },
                                     kPlain, "sigmoid_backward", "tt"};
HOLOGRAM_COMPOSITE(kSigmoidBackward);
// grad * (1 - y * y)
constexpr Composite kTanhBackward{
    kReals,
    [](Builder& b, const View* in) {
      const View minus = b.apply(Op::neg, {in[1]});
      b.apply(Op::mul, {in[0], multiply_add(b, minus, in[1], b.number(1))});
    },
    kPlain, "tanh_backward", "tt"};
HOLOGRAM_COMPOSITE(kTanhBackward);
// 0 where x <= threshold, else grad; of x, grad and threshold, the order of torch's kernel: the
// strides of the result are those of its first operand.
constexpr Composite kThresholdBackward{kNumbers,
                                       [](Builder& b, const View* in) {
                                         const View cut = b.apply(Op::le, {in[0], in[2]});
                                         b.apply(Op::where, {cut, b.number(0), in[1]});
                                       },
                                       kParameter};
constexpr Composite kGelu{kReals, [](Builder& b, const View* in) { b.apply(Op::gelu, {in[0]}); }};
constexpr double kBeta = M_SQRT2 * M_2_SQRTPI * 0.5;  // sqrt(2 / pi)
constexpr double kKappa = 0.044715;
constexpr Composite kGeluTanh{kReals,
                              [](Builder& b, const View* in) { b.apply(Op::gelu_tanh, {in[0]}); }};
// grad * (cdf + x * pdf)
constexpr Composite kGeluBackward{
    kReals,
    [](Builder& b, const View* in) {
      const View x = in[1];
      const View e = b.apply(Op::erf, {b.apply(Op::mul, {x, b.number(M_SQRT1_2)})});
      const View cdf = b.apply(Op::mul, {b.apply(Op::add, {e, b.number(1)}), b.number(0.5)});
      const View power = b.apply(Op::mul, {b.apply(Op::mul, {x, x}), b.number(-0.5)});
      const View pdf =
          b.apply(Op::mul, {b.apply(Op::exp, {power}), b.number(M_2_SQRTPI * M_SQRT1_2 * 0.5)});
      const View slope = b.apply(Op::add, {cdf, b.apply(Op::mul, {x, pdf})});
      b.apply(Op::mul, {in[0], slope});
    },
    kOneDtype};
constexpr Composite kGeluTanhBackward{
    kReals,
    [](Builder& b, const View* in) {
      const View x = in[1];
      // tanh(beta * (x + kappa * x^3))
      const View cube = b.apply(Op::mul, {b.apply(Op::mul, {x, x}), x});
      const View inner = b.apply(Op::add, {x, b.apply(Op::mul, {cube, b.number(kKappa)})});
      const View t = b.apply(Op::tanh, {b.apply(Op::mul, {inner, b.number(kBeta)})});
      const View left = b.apply(Op::mul, {x, b.number(0.5)});
      const View right = b.apply(Op::add, {t, b.number(1)});
      const View left_slope = b.apply(Op::mul, {right, b.number(0.5)});
      const View tanh_slope = b.apply(Op::sub, {b.number(1), b.apply(Op::mul, {t, t})});
      const View square = b.apply(Op::mul, {b.apply(Op::mul, {x, x}), b.number(3 * kKappa)});
      const View inner_slope =
          b.apply(Op::mul, {b.apply(Op::add, {square, b.number(1)}), b.number(kBeta)});
      const View right_slope =
          b.apply(Op::mul, {b.apply(Op::mul, {left, tanh_slope}), inner_slope});
      b.apply(Op::mul, {in[0], b.apply(Op::add, {left_slope, right_slope})});
    },
    kOneDtype};
// clamp of one side: the other bound is out of the way.
constexpr Composite kClampMin{kReals,
                              [](Builder& b, const View* in) {
                                b.apply(Op::clamp, {in[0], in[1], b.number(INFINITY)});
                              },
                              kPlain, "clamp_min", "ts"};
HOLOGRAM_COMPOSITE(kClampMin);
constexpr Composite kClampMax{kReals,
                              [](Builder& b, const View* in) {
                                b.apply(Op::clamp, {in[0], b.number(-INFINITY), in[1]});
                              },
                              kPlain, "clamp_max", "ts"};
HOLOGRAM_COMPOSITE(kClampMax);
constexpr Composite kClamp{kNumbers, [](Builder& b, const View* in) {
                             b.apply(Op::clamp, {in[0], in[1], in[2]});
                           }};
// x * min(max(x + 3, 0), 6) / 6
constexpr Composite kHardswish{
    kReals,
    [](Builder& b, const View* in) {
      const View high = b.apply(Op::add, {in[0], b.number(3)});
      const View gate = b.apply(Op::clamp, {high, b.number(0), b.number(6)});
      b.apply(Op::div, {b.apply(Op::mul, {in[0], gate}), b.number(6)});
    },
    kPlain, "hardswish", "t"};
HOLOGRAM_COMPOSITE(kHardswish);
// 0 up to -3, grad * (x / 3 + 0.5) below 3, else grad. A NaN is not below.
constexpr Composite kHardswishBackward{
    kReals,
    [](Builder& b, const View* in) {
      const View slope = b.apply(Op::add, {b.apply(Op::div, {in[1], b.number(3)}), b.number(0.5)});
      const View inner = b.apply(Op::mul, {in[0], slope});
      const View lower = b.apply(Op::where, {b.apply(Op::lt, {in[1], b.number(3)}), inner, in[0]});
      b.apply(Op::where, {b.apply(Op::le, {in[1], b.number(-3)}), b.number(0), lower});
    },
    kPlain, "hardswish_backward", "tt"};
HOLOGRAM_COMPOSITE(kHardswishBackward);
// min(max(x + 3, 0), 6) / 6
constexpr Composite kHardsigmoid{
    kReals,
    [](Builder& b, const View* in) {
      const View high = b.apply(Op::add, {in[0], b.number(3)});
      b.apply(Op::div, {b.apply(Op::clamp, {high, b.number(0), b.number(6)}), b.number(6)});
    },
    kPlain, "hardsigmoid", "t"};
HOLOGRAM_COMPOSITE(kHardsigmoid);
// grad / 6 between -3 and 3, else 0. torch's sixth is a float.
constexpr Composite kHardsigmoidBackward{
    kReals,
    [](Builder& b, const View* in) {
      const View scaled = b.apply(Op::mul, {in[0], b.number(double{1.0F / 6.0F})});
      const View lower =
          b.apply(Op::where, {b.apply(Op::lt, {in[1], b.number(3)}), scaled, b.number(0)});
      b.apply(Op::where, {b.apply(Op::gt, {in[1], b.number(-3)}), lower, b.number(0)});
    },
    kPlain, "hardsigmoid_backward", "tt"};
HOLOGRAM_COMPOSITE(kHardsigmoidBackward);
// Of x, alpha * scale, scale and input_scale: (exp(x * input_scale) - 1) * alpha * scale where
// x <= 0, else x * scale.
constexpr Composite kElu{
    kReals,
    [](Builder& b, const View* in) {
      const View e = b.apply(Op::expm1, {b.apply(Op::mul, {in[0], in[3]})});
      const View cut = b.apply(Op::le, {in[0], b.number(0)});
      b.apply(Op::where, {cut, b.apply(Op::mul, {e, in[1]}), b.apply(Op::mul, {in[0], in[2]})});
    },
    kParameter};
// Powers, as torch's kernel computes them.
constexpr Composite kSquare{kNumbers,
                            [](Builder& b, const View* in) {
                              b.apply(Op::mul, {in[0], in[0]});
                            },
                            kRoundsEach};
constexpr Composite kCube{kNumbers,
                          [](Builder& b, const View* in) {
                            b.apply(Op::mul, {b.apply(Op::mul, {in[0], in[0]}), in[0]});
                          },
                          kRoundsEach};
constexpr Composite kInverseSquare{kReals,
                                   [](Builder& b, const View* in) {
                                     b.apply(Op::reciprocal, {b.apply(Op::mul, {in[0], in[0]})});
                                   },
                                   kRoundsEach};
constexpr Composite kSquareRoot{kReals,
                                [](Builder& b, const View* in) { b.apply(Op::sqrt, {in[0]}); }};
constexpr Composite kInverseSquareRoot{
    kReals, [](Builder& b, const View* in) { b.apply(Op::rsqrt, {in[0]}); }};
constexpr Composite kInverse{kReals,
                             [](Builder& b, const View* in) { b.apply(Op::reciprocal, {in[0]}); }};

// Null where it is pow that torch computes.
const Composite* power_composite(double exponent, at::ScalarType type) {
  if (exponent == 2) return &kSquare;
  if (type == at::kHalf) return nullptr;
  if (exponent == 3) return &kCube;
  if (exponent == -2) return &kInverseSquare;
  if (exponent == 0.5) return &kSquareRoot;
  if (exponent == -0.5) return &kInverseSquareRoot;
  return exponent == -1 ? &kInverse : nullptr;
}

// Chooses its formula by the weight.
bool lerp(const Target& to, const Tensor& self, const Tensor& end, const Scalar& weight) {
  // In the precision in which torch computes. What that does not have is refused before it becomes
  // an infinity, which would pass.
  const bool is_double = self.scalar_type() == c10::ScalarType::Double;
  if (!has_value(weight, is_double ? DType::f64 : DType::f32)) {
    return false;
  }
  const auto narrowed = [&](double value) {
    return is_double ? value : static_cast<double>(static_cast<float>(value));
  };
  const double number = narrowed(weight.to<double>());
  if (std::abs(number) < 0.5) {
    return record_as(kLerpLow, to, self, end, weight);
  }
  return record_as(kLerpHigh, to, self, end, Scalar(narrowed(number - 1)));
}
HOLOGRAM_CHOICE(lerp);

// torch refuses some other ones, such as True and, for integers, 1.0.
bool is_one(const Scalar& alpha) {
  return alpha.isIntegral(/*includeBool=*/false) && alpha.type() != at::kUInt64 &&
         alpha.toLong() == 1;
}
bool is_plain_factor(const Scalar& alpha) {
  // Recording declines these too; they have no negative.
  return !alpha.isComplex() && !alpha.isBoolean() && !alpha.isSymbolic() &&
         alpha.type() != at::kUInt64;
}
bool add(const Target& to, const Tensor& self, const Tensor& other, const Scalar& alpha) {
  return is_one(alpha) ? record_row(Op::add, self, &other, to.out, to.fresh)
                       : is_plain_factor(alpha) && record_as(kAdd, to, self, other, alpha);
}
HOLOGRAM_CHOICE(add);
bool sub(const Target& to, const Tensor& self, const Tensor& other, const Scalar& alpha) {
  return is_one(alpha) ? record_row(Op::sub, self, &other, to.out, to.fresh)
                       : is_plain_factor(alpha) && record_as(kSub, to, self, other, -alpha);
}
HOLOGRAM_CHOICE(sub);
// other - alpha * self
bool rsub(const Target& to, const Tensor& self, const Tensor& other, const Scalar& alpha) {
  return is_plain_factor(alpha) && record_as(kSub, to, other, self, -alpha);
}
HOLOGRAM_CHOICE(rsub);

bool pow(const Target& to, const Tensor& self, const Scalar& exponent) {
  // A fraction makes integers floats.
  const bool plain = !exponent.isComplex() && !exponent.isBoolean() &&
                     (!exponent.isFloatingPoint() || self.is_floating_point());
  const Composite* simpler =
      plain ? power_composite(exponent.to<double>(), self.scalar_type()) : nullptr;
  if (simpler != nullptr && record_as(*simpler, to, self)) {
    return true;
  }
  const std::array<Argument, 2> arguments{Argument(self), Argument(exponent)};
  return record_any(Op::pow, arguments, to.out, to.fresh);
}
HOLOGRAM_CHOICE(pow);

bool threshold_backward(const Target& to, const Tensor& grad, const Tensor& self,
                        const Scalar& threshold) {
  return record_as(kThresholdBackward, to, self, grad, threshold);
}
HOLOGRAM_CHOICE(threshold_backward);

bool gelu(const Target& to, const Tensor& self, c10::string_view approximate) {
  const bool tanh = approximate == "tanh";
  return (tanh || approximate == "none") && record_as(tanh ? kGeluTanh : kGelu, to, self);
}
HOLOGRAM_CHOICE(gelu);
bool gelu_backward(const Target& to, const Tensor& grad, const Tensor& self,
                   c10::string_view approximate) {
  const bool tanh = approximate == "tanh";
  return (tanh || approximate == "none") &&
         record_as(tanh ? kGeluTanhBackward : kGeluBackward, to, grad, self);
}
HOLOGRAM_CHOICE(gelu_backward);

bool elu(const Target& to, const Tensor& self, const Scalar& alpha, const Scalar& scale,
         const Scalar& input_scale) {
  if (!is_plain_factor(alpha) || !is_plain_factor(scale) || !is_plain_factor(input_scale)) {
    return false;
  }
  // In the precision in which torch computes.
  const double negative = self.scalar_type() == at::kDouble
                              ? alpha.toDouble() * scale.toDouble()
                              : static_cast<double>(alpha.to<float>() * scale.to<float>());
  return record_as(kElu, to, self, Scalar(negative), scale, input_scale);
}
HOLOGRAM_CHOICE(elu);

// Bounds that are tensors: as of the two. Of the CPU they are torch's to refuse.
bool clamp_min(const Target& to, const Tensor& self, const Tensor& low) {
  return !low.is_cpu() && record_row(Op::maximum, self, &low, to.out, to.fresh);
}
HOLOGRAM_CHOICE(clamp_min);
bool clamp_max(const Target& to, const Tensor& self, const Tensor& high) {
  return !high.is_cpu() && record_row(Op::minimum, self, &high, to.out, to.fresh);
}
HOLOGRAM_CHOICE(clamp_max);

// Has one bound or two.
bool clamp(const Target& to, const Tensor& self, const std::optional<Scalar>& low,
           const std::optional<Scalar>& high) {
  if (low && high) return record_as(kClamp, to, self, *low, *high);
  if (low) return record_as(kClampMin, to, self, *low);
  return high && record_as(kClampMax, to, self, *high);
}
HOLOGRAM_CHOICE(clamp);

}  // namespace

void register_composites() {
  for (const Entry& entry : entries()) for_overloads(entry.name, entry.add);
}

std::vector<std::string> composite_names() {
  std::set<std::string> names;  // some are there with two kinds of operands
  for (const Entry& entry : entries()) names.emplace(entry.name);
  return {names.begin(), names.end()};
}

}  // namespace hologram::aten

// Operators that are several rows of the op table: activations and their derivatives, the fused
// multiply-adds of optimizers. Each has torch's formula, in torch's order.
//
// An operator is a builder and the ATen signatures it serves. What recording declines goes to
// torch's kernel.
#include "aten/precompiled.h"

#include <torch/library.h>

#include <array>
#include <cmath>

#include "aten/compat.h"
#include "aten/delegate.h"
#include "aten/pointwise.h"
#include "aten/record.h"

namespace hologram::aten {
namespace {

using at::Scalar;
using at::Tensor;

constexpr DTypeSet kReals = kReal;
constexpr DTypeSet kNumbers = kReal | dtype_bit(DType::i64);

template <class... In>
bool attempt(Service& here, const Composite& composite, const Tensor* out, Tensor* fresh,
             const In&... in) {
  const std::array<Argument, sizeof...(In)> arguments{Argument(in)...};
  if (!record_composite(composite, arguments, out, fresh)) {
    return false;
  }
  note_native(here.counter);
  return true;
}

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
    kParameter};
// self + value * a / b
constexpr Composite kAddcdiv{kReals,
                             [](Builder& b, const View* in) {
                               const View left = scaled(b, in[1], in[3]);
                               b.apply(Op::add, {in[0], b.apply(Op::div, {left, in[2]})});
                             },
                             kParameter};
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
constexpr Composite kSilu{kReals, [](Builder& b, const View* in) {
                            const View e = b.apply(Op::exp, {b.apply(Op::neg, {in[0]})});
                            b.apply(Op::div, {in[0], b.apply(Op::add, {e, b.number(1)})});
                          }};
// grad * s * (1 + x * (1 - s)), s = sigmoid(x)
constexpr Composite kSiluBackward{
    kReals, [](Builder& b, const View* in) {
      const View s = b.apply(Op::sigmoid, {in[1]});
      const View rest = b.apply(Op::mul, {in[1], b.apply(Op::sub, {b.number(1), s})});
      const View factor = b.apply(Op::add, {rest, b.number(1)});
      b.apply(Op::mul, {b.apply(Op::mul, {in[0], s}), factor});
    }};
// grad * (1 - y) * y
constexpr Composite kSigmoidBackward{kReals, [](Builder& b, const View* in) {
                                       const View rest = b.apply(Op::sub, {b.number(1), in[1]});
                                       b.apply(Op::mul, {b.apply(Op::mul, {in[0], rest}), in[1]});
                                     }};
// grad * (1 - y * y)
constexpr Composite kTanhBackward{
    kReals, [](Builder& b, const View* in) {
      const View minus = b.apply(Op::neg, {in[1]});
      b.apply(Op::mul, {in[0], multiply_add(b, minus, in[1], b.number(1))});
    }};
// 0 where x <= threshold, else grad; of x, grad and threshold, the order of torch's kernel: the
// strides of the result are those of its first operand.
constexpr Composite kThresholdBackward{kNumbers,
                                       [](Builder& b, const View* in) {
                                         const View cut = b.apply(Op::le, {in[0], in[2]});
                                         b.apply(Op::where, {cut, b.number(0), in[1]});
                                       },
                                       kParameter};
// x * 0.5 * (1 + erf(x / sqrt 2))
constexpr Composite kGelu{
    kReals, [](Builder& b, const View* in) {
      const View e = b.apply(Op::erf, {b.apply(Op::mul, {in[0], b.number(M_SQRT1_2)})});
      const View half = b.apply(Op::mul, {in[0], b.number(0.5)});
      b.apply(Op::mul, {half, b.apply(Op::add, {e, b.number(1)})});
    }};
constexpr double kBeta = M_SQRT2 * M_2_SQRTPI * 0.5;  // sqrt(2 / pi)
constexpr double kKappa = 0.044715;
// tanh(beta * (x + kappa * x^3))
View gelu_tanh(Builder& b, View x) {
  const View cube = b.apply(Op::mul, {b.apply(Op::mul, {x, x}), x});
  const View inner = b.apply(Op::add, {x, b.apply(Op::mul, {cube, b.number(kKappa)})});
  return b.apply(Op::tanh, {b.apply(Op::mul, {inner, b.number(kBeta)})});
}
constexpr Composite kGeluTanh{kReals, [](Builder& b, const View* in) {
                                const View t = gelu_tanh(b, in[0]);
                                const View half = b.apply(Op::mul, {in[0], b.number(0.5)});
                                b.apply(Op::mul, {half, b.apply(Op::add, {t, b.number(1)})});
                              }};
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
      const View t = gelu_tanh(b, x);
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
constexpr Composite kClampMin{kReals, [](Builder& b, const View* in) {
                                b.apply(Op::clamp, {in[0], in[1], b.number(INFINITY)});
                              }};
constexpr Composite kClampMax{kReals, [](Builder& b, const View* in) {
                                b.apply(Op::clamp, {in[0], b.number(-INFINITY), in[1]});
                              }};
constexpr Composite kClamp{kNumbers, [](Builder& b, const View* in) {
                             b.apply(Op::clamp, {in[0], in[1], in[2]});
                           }};
// x * min(max(x + 3, 0), 6) / 6
constexpr Composite kHardswish{
    kReals, [](Builder& b, const View* in) {
      const View high = b.apply(Op::maximum, {b.apply(Op::add, {in[0], b.number(3)}), b.number(0)});
      const View gate = b.apply(Op::minimum, {high, b.number(6)});
      b.apply(Op::div, {b.apply(Op::mul, {in[0], gate}), b.number(6)});
    }};
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

// The forms of an operator. A tag names the overload that is delegated to.

template <class Tag, const Composite& composite, class... Others>
Tensor& inplace_form(Tensor& self, const Others&... others) {
  static Service& here = *new Service(Tag::name, Tag::overload);
  if (!attempt(here, composite, &self, nullptr, std::as_const(self), others...)) {
    here.delegate(self, others...);
  }
  return self;
}

template <class Tag, const Composite& composite, class... In>
Tensor functional_form(const In&... in) {
  static Service& here = *new Service(Tag::name, Tag::overload);
  Tensor fresh;
  return attempt(here, composite, nullptr, &fresh, in...) ? fresh : here.delegate(in...);
}

template <class Tag, const Composite& composite, class... In>
Tensor& out_form(const In&... in, Tensor& out) {
  static Service& here = *new Service(Tag::name, Tag::overload);
  if (!attempt(here, composite, &out, nullptr, in...)) {
    here.delegate(in..., out);
  }
  return out;
}

#define HOLOGRAM_TAG(tag, operator_name, overload_name)    \
  struct tag {                                             \
    static constexpr const char* name = operator_name;     \
    static constexpr const char* overload = overload_name; \
  }
HOLOGRAM_TAG(addcmul_tag, "aten::addcmul", "");
HOLOGRAM_TAG(addcmul_inplace_tag, "aten::addcmul_", "");
HOLOGRAM_TAG(addcmul_out_tag, "aten::addcmul", "out");
HOLOGRAM_TAG(addcdiv_tag, "aten::addcdiv", "");
HOLOGRAM_TAG(addcdiv_inplace_tag, "aten::addcdiv_", "");
HOLOGRAM_TAG(addcdiv_out_tag, "aten::addcdiv", "out");
HOLOGRAM_TAG(silu_tag, "aten::silu", "");
HOLOGRAM_TAG(silu_inplace_tag, "aten::silu_", "");
HOLOGRAM_TAG(silu_out_tag, "aten::silu", "out");
HOLOGRAM_TAG(silu_backward_tag, "aten::silu_backward", "");
HOLOGRAM_TAG(sigmoid_backward_tag, "aten::sigmoid_backward", "");
HOLOGRAM_TAG(tanh_backward_tag, "aten::tanh_backward", "");
HOLOGRAM_TAG(hardswish_tag, "aten::hardswish", "");
HOLOGRAM_TAG(hardswish_inplace_tag, "aten::hardswish_", "");
HOLOGRAM_TAG(hardswish_out_tag, "aten::hardswish", "out");
HOLOGRAM_TAG(clamp_min_tag, "aten::clamp_min", "");
HOLOGRAM_TAG(clamp_min_inplace_tag, "aten::clamp_min_", "");
HOLOGRAM_TAG(clamp_max_tag, "aten::clamp_max", "");
HOLOGRAM_TAG(clamp_max_inplace_tag, "aten::clamp_max_", "");
#undef HOLOGRAM_TAG

// lerp chooses its formula by the weight.
bool attempt_lerp(Service& here, const Tensor* out, Tensor* fresh, const Tensor& self,
                  const Tensor& end, const Scalar& weight) {
  if (weight.isComplex()) {
    return false;
  }
  const auto number = weight.to<double>();
  if (std::abs(number) < 0.5) {
    return attempt(here, kLerpLow, out, fresh, self, end, weight);
  }
  // In the precision in which torch computes.
  const double coefficient = self.scalar_type() == c10::ScalarType::Double
                                 ? number - 1
                                 : static_cast<double>(static_cast<float>(number) - 1.0f);
  return attempt(here, kLerpHigh, out, fresh, self, end, Scalar(coefficient));
}
Tensor lerp(const Tensor& self, const Tensor& end, const Scalar& weight) {
  static Service& here = *new Service("aten::lerp", "Scalar");
  Tensor fresh;
  return attempt_lerp(here, nullptr, &fresh, self, end, weight) ? fresh
                                                                : here.delegate(self, end, weight);
}
Tensor& lerp_(Tensor& self, const Tensor& end, const Scalar& weight) {
  static Service& here = *new Service("aten::lerp_", "Scalar");
  if (!attempt_lerp(here, &self, nullptr, std::as_const(self), end, weight)) {
    here.delegate(self, end, weight);
  }
  return self;
}
Tensor& lerp_out(const Tensor& self, const Tensor& end, const Scalar& weight, Tensor& out) {
  static Service& here = *new Service("aten::lerp", "Scalar_out");
  if (!attempt_lerp(here, &out, nullptr, self, end, weight)) {
    here.delegate(self, end, weight, out);
  }
  return out;
}

// other - alpha * self
Tensor rsub(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  static Service& here = *new Service("aten::rsub", "Tensor");
  Tensor fresh;
  return record_scaled_add(here.counter, true, other, self, alpha, nullptr, &fresh)
             ? fresh
             : here.delegate(self, other, alpha);
}

Tensor threshold_backward(const Tensor& grad, const Tensor& self, const Scalar& threshold) {
  static Service& here = *new Service("aten::threshold_backward", "");
  Tensor fresh;
  return attempt(here, kThresholdBackward, nullptr, &fresh, self, grad, threshold)
             ? fresh
             : here.delegate(grad, self, threshold);
}

Tensor gelu(const Tensor& self, c10::string_view approximate) {
  static Service& here = *new Service("aten::gelu", "");
  Tensor fresh;
  const bool tanh = approximate == "tanh";
  return (tanh || approximate == "none") &&
                 attempt(here, tanh ? kGeluTanh : kGelu, nullptr, &fresh, self)
             ? fresh
             : here.delegate(self, approximate);
}
Tensor gelu_backward(const Tensor& grad, const Tensor& self, c10::string_view approximate) {
  static Service& here = *new Service("aten::gelu_backward", "");
  Tensor fresh;
  const bool tanh = approximate == "tanh";
  return (tanh || approximate == "none") && attempt(here, tanh ? kGeluTanhBackward : kGeluBackward,
                                                    nullptr, &fresh, grad, self)
             ? fresh
             : here.delegate(grad, self, approximate);
}

bool attempt_elu(Service& here, const Tensor* out, Tensor* fresh, const Tensor& self,
                 const Scalar& alpha, const Scalar& scale, const Scalar& input_scale) {
  const auto real = [](const Scalar& x) {
    return !x.isComplex() && !x.isSymbolic() && !x.isBoolean() && x.type() != at::kUInt64;
  };
  if (!real(alpha) || !real(scale) || !real(input_scale)) {
    return false;
  }
  // In the precision in which torch computes.
  const double negative = self.scalar_type() == at::kDouble
                              ? alpha.toDouble() * scale.toDouble()
                              : static_cast<double>(alpha.to<float>() * scale.to<float>());
  return attempt(here, kElu, out, fresh, self, Scalar(negative), scale, input_scale);
}
Tensor elu(const Tensor& self, const Scalar& alpha, const Scalar& scale,
           const Scalar& input_scale) {
  static Service& here = *new Service("aten::elu", "");
  Tensor fresh;
  return attempt_elu(here, nullptr, &fresh, self, alpha, scale, input_scale)
             ? fresh
             : here.delegate(self, alpha, scale, input_scale);
}
Tensor& elu_(Tensor& self, const Scalar& alpha, const Scalar& scale, const Scalar& input_scale) {
  static Service& here = *new Service("aten::elu_", "");
  if (!attempt_elu(here, &self, nullptr, std::as_const(self), alpha, scale, input_scale)) {
    here.delegate(self, alpha, scale, input_scale);
  }
  return self;
}

// clamp has one bound or two.
bool attempt_clamp(Service& here, const Tensor* out, Tensor* fresh, const Tensor& self,
                   const std::optional<Scalar>& low, const std::optional<Scalar>& high) {
  if (low && high) return attempt(here, kClamp, out, fresh, self, *low, *high);
  if (low) return attempt(here, kClampMin, out, fresh, self, *low);
  return high && attempt(here, kClampMax, out, fresh, self, *high);
}
Tensor clamp(const Tensor& self, const std::optional<Scalar>& low,
             const std::optional<Scalar>& high) {
  static Service& here = *new Service("aten::clamp", "");
  Tensor fresh;
  return attempt_clamp(here, nullptr, &fresh, self, low, high) ? fresh
                                                               : here.delegate(self, low, high);
}
Tensor& clamp_(Tensor& self, const std::optional<Scalar>& low, const std::optional<Scalar>& high) {
  static Service& here = *new Service("aten::clamp_", "");
  if (!attempt_clamp(here, &self, nullptr, std::as_const(self), low, high)) {
    here.delegate(self, low, high);
  }
  return self;
}

}  // namespace

bool record_scaled_add(OpCounter& counter, bool subtract, const Tensor& self, const Tensor& other,
                       const Scalar& alpha, const Tensor* out, Tensor* fresh) {
  // Recording declines these too; they have no negative.
  if (alpha.isComplex() || alpha.isBoolean() || alpha.isSymbolic() || alpha.type() == at::kUInt64) {
    return false;
  }
  const Scalar factor = subtract ? -alpha : alpha;
  const std::array<Argument, 3> arguments{Argument(self), Argument(other), Argument(factor)};
  if (!record_composite(subtract ? kSub : kAdd, arguments, out, fresh)) {
    return false;
  }
  note_native(counter);
  return true;
}

bool record_power(OpCounter& counter, const Tensor& self, const Scalar& exponent, const Tensor* out,
                  Tensor* fresh) {
  // A fraction makes integers floats.
  if (exponent.isComplex() || exponent.isBoolean() ||
      (exponent.isFloatingPoint() && !self.is_floating_point())) {
    return false;
  }
  const Composite* composite = power_composite(exponent.to<double>(), self.scalar_type());
  const std::array<Argument, 1> arguments{Argument(self)};
  if (composite == nullptr || !record_composite(*composite, arguments, out, fresh)) {
    return false;
  }
  note_native(counter);
  return true;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("addcmul", &functional_form<addcmul_tag, kAddcmul, Tensor, Tensor, Tensor, Scalar>);
  m.impl("addcmul_", &inplace_form<addcmul_inplace_tag, kAddcmul, Tensor, Tensor, Scalar>);
  m.impl("addcmul.out", &out_form<addcmul_out_tag, kAddcmul, Tensor, Tensor, Tensor, Scalar>);
  m.impl("addcdiv", &functional_form<addcdiv_tag, kAddcdiv, Tensor, Tensor, Tensor, Scalar>);
  m.impl("addcdiv_", &inplace_form<addcdiv_inplace_tag, kAddcdiv, Tensor, Tensor, Scalar>);
  m.impl("addcdiv.out", &out_form<addcdiv_out_tag, kAddcdiv, Tensor, Tensor, Tensor, Scalar>);
  m.impl("lerp.Scalar", &lerp);
  m.impl("lerp_.Scalar", &lerp_);
  m.impl("lerp.Scalar_out", &lerp_out);
  m.impl("silu", &functional_form<silu_tag, kSilu, Tensor>);
  m.impl("silu_", &inplace_form<silu_inplace_tag, kSilu>);
  m.impl("silu.out", &out_form<silu_out_tag, kSilu, Tensor>);
  m.impl("silu_backward", &functional_form<silu_backward_tag, kSiluBackward, Tensor, Tensor>);
  m.impl("sigmoid_backward",
         &functional_form<sigmoid_backward_tag, kSigmoidBackward, Tensor, Tensor>);
  m.impl("tanh_backward", &functional_form<tanh_backward_tag, kTanhBackward, Tensor, Tensor>);
  m.impl("threshold_backward", &threshold_backward);
  m.impl("gelu", &gelu);
  m.impl("gelu_backward", &gelu_backward);
  m.impl("hardswish", &functional_form<hardswish_tag, kHardswish, Tensor>);
  m.impl("hardswish_", &inplace_form<hardswish_inplace_tag, kHardswish>);
  m.impl("hardswish.out", &out_form<hardswish_out_tag, kHardswish, Tensor>);
  m.impl("elu", &elu);
  m.impl("elu_", &elu_);
  m.impl("clamp", &clamp);
  m.impl("clamp_", &clamp_);
  m.impl("clamp_min", &functional_form<clamp_min_tag, kClampMin, Tensor, Scalar>);
  m.impl("clamp_min_", &inplace_form<clamp_min_inplace_tag, kClampMin, Scalar>);
  m.impl("clamp_max", &functional_form<clamp_max_tag, kClampMax, Tensor, Scalar>);
  m.impl("clamp_max_", &inplace_form<clamp_max_inplace_tag, kClampMax, Scalar>);
  m.impl("rsub.Tensor", &rsub);
}

}  // namespace hologram::aten

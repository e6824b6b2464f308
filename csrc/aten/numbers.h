// The numbers of calls, and the bits that instructions have of them.
#pragma once

#include <c10/core/Scalar.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>

#include "atlas/canonicalise.h"
#include "atlas/dtype.h"
#include "atlas/group.h"
#include "atlas/window.h"

namespace hologram::aten {

// A number as a T, as torch converts the 0-dim tensor it stands for: out of range gives infinity.
template <class T>
T number_as(const at::Scalar& number) {
  return number.isFloatingPoint() ? static_cast<T>(number.toDouble())
                                  : static_cast<T>(number.toLong());
}

// The bits of a number in the type in which groups compute for `dtype`.
inline uint64_t immediate_bits(const at::Scalar& number, DType dtype, bool as_it_is) {
  uint64_t bits = 0;
  switch (compute_type_of(dtype)) {
    case ComputeType::f32: {
      auto value =
          dtype == DType::b8 ? static_cast<float>(number.to<bool>()) : number_as<float>(number);
      if (dtype == DType::bf16 && !as_it_is) value = static_cast<c10::BFloat16>(value);
      if (dtype == DType::f16 && !as_it_is) value = static_cast<c10::Half>(value);
      std::memcpy(&bits, &value, sizeof value);
      break;
    }
    case ComputeType::f64: {
      const auto value = number_as<double>(number);
      std::memcpy(&bits, &value, sizeof value);
      break;
    }
    case ComputeType::i64: {
      const auto value = number_as<int64_t>(number);
      std::memcpy(&bits, &value, sizeof value);
      break;
    }
  }
  return bits;
}

inline View immediate(uint64_t bits, DType dtype) {
  return {nullptr, static_cast<int64_t>(bits), dtype, Layout::scalar};
}

// Others are torch's business: complex, symbolic, and integers that only uint64 has.
inline bool is_plain_number(const at::Scalar& number) {
  return !number.isComplex() && !number.isSymbolic() && number.type() != c10::ScalarType::UInt64;
}

// Whether a number has a value in the dtype. What becomes of others, an infinity or an error, is
// the business of torch's kernels.
inline bool has_value(const at::Scalar& number, DType dtype) {
  if (!is_plain_number(number)) return false;
  if (compute_type_of(dtype) == ComputeType::i64) {
    if (!number.isIntegral(/*includeBool=*/true)) return false;
    const int64_t value = number.toLong();
    return dtype == DType::i64 || value == static_cast<int32_t>(value);
  }
  if (dtype == DType::f64 || dtype == DType::b8) return true;
  const double value = std::abs(number.to<double>());
  const float most = dtype == DType::f16    ? float{std::numeric_limits<c10::Half>::max()}
                     : dtype == DType::bf16 ? float{std::numeric_limits<c10::BFloat16>::max()}
                                            : std::numeric_limits<float>::max();
  const bool vanishes = value != 0 && static_cast<float>(value) == 0;
  return !vanishes && (!(value > double{most}) || std::isinf(value));
}

// The number in a 0-dim CPU tensor; none where its dtype is torch's business.
inline std::optional<at::Scalar> number_of(const c10::TensorImpl* tensor) {
  const auto read = [&](auto zero) {
    std::memcpy(&zero, tensor->data(), sizeof zero);
    return at::Scalar(zero);
  };
  switch (tensor->dtype().toScalarType()) {
    case c10::ScalarType::Float: return read(float{});
    case c10::ScalarType::Double: return read(double{});
    case c10::ScalarType::Long: return read(int64_t{});
    case c10::ScalarType::Int: return read(int32_t{});
    case c10::ScalarType::Bool: return read(bool{});
    default: return std::nullopt;
  }
}

// A number among operands of `dtype` that are tensors with dimensions; none where it may change
// what is computed, so that more has to be looked at.
inline std::optional<View> number_beside(const std::optional<at::Scalar>& number, DType dtype,
                                         bool as_it_is) {
  const bool real = (kReal & dtype_bit(dtype)) != 0;
  if (!number || dtype == DType::b8 || number->isBoolean() ||
      (!real && !number->isIntegral(/*includeBool=*/false)) || !has_value(*number, dtype)) {
    return std::nullopt;
  }
  return immediate(immediate_bits(*number, dtype, as_it_is), dtype);
}

}  // namespace hologram::aten

// Numbers in steps: calls of torch's CPU kernel that are recorded where the step is plain.
#include "aten/precompiled.h"

#include "aten/arange.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange_native.h>
#include <ATen/ops/arange_ops.h>

#include <optional>

#include "aten/operand.h"
#include "aten/prepare.h"
#include "aten/record_call.h"
#include "aten/report.h"
#include "aten/runtime.h"
#include "atlas/device.h"

namespace hologram::aten {
namespace {

using at::Scalar;
using at::Tensor;

// How many whole numbers there are from start to end, which is not one of them; none where torch
// has to count, or to complain.
std::optional<int64_t> count_of(const Scalar& start, const Scalar& end, const Scalar& step) {
  const auto is_whole = [](const Scalar& number) {
    return number.isIntegral(/*includeBool=*/false) && !number.isSymbolic();
  };
  if (!is_whole(start) || !is_whole(end) || !is_whole(step)) return std::nullopt;
  const int64_t by = step.toLong();
  int64_t distance = 0;
  if (by <= 0 || __builtin_sub_overflow(end.toLong(), start.toLong(), &distance) || distance <= 0) {
    return std::nullopt;
  }
  return (distance - 1) / by + 1;
}

Tensor arange_step(const Scalar& start, const Scalar& end, const Scalar& step,
                   std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                   std::optional<c10::Device> where, std::optional<bool> pin_memory) {
  static auto& counter = op_counter("aten::arange");
  const auto type = dtype.value_or(at::kLong);
  const auto count = count_of(start, end, step);
  if (!count || !group_dtype(type) || type == at::kBool ||
      layout.value_or(at::kStrided) != at::kStrided || pin_memory.value_or(false)) {
    return at::native::arange(start, end, step, dtype, layout, where, pin_memory);
  }
  const auto device = check_device(where);
  if (!records_calls(device)) {
    return at::native::arange(start, end, step, dtype, layout, where, pin_memory);
  }
  note_delegated(counter, device);
  const Tensor result = make_result(current_window(device), {*count}, type, device);
  record_kernel("aten::arange", {}, result, [start, end, step](at::ArrayRef<Tensor> on_cpu) {
    Tensor out = on_cpu[0];
    at::_ops::arange_start_out::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), start, end,
                                           step, out);
  });
  return result;
}

Tensor arange_start(const Scalar& start, const Scalar& end, std::optional<c10::ScalarType> dtype,
                    std::optional<c10::Layout> layout, std::optional<c10::Device> where,
                    std::optional<bool> pin_memory) {
  return arange_step(start, end, 1, dtype, layout, where, pin_memory);
}

Tensor arange(const Scalar& end, std::optional<c10::ScalarType> dtype,
              std::optional<c10::Layout> layout, std::optional<c10::Device> where,
              std::optional<bool> pin_memory) {
  return arange_step(0, end, 1, dtype, layout, where, pin_memory);
}

}  // namespace

void register_arange() {
  serve_by_calls("arange", &arange);
  serve_by_calls("arange.start", &arange_start);
  serve_by_calls("arange.start_step", &arange_step);
}

}  // namespace hologram::aten

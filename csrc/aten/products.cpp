// Matrix products: calls of torch's CPU kernels that are recorded where their operands are plain.
//
// A sum with a vector, as of a linear layer, is a product and an addition in float32 and float64:
// the addition joins the pass of what comes after it, where torch copies the vector to each row
// first and has the product add to that.
#include "aten/precompiled.h"

#include "aten/products.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/mm_ops.h>

#include "aten/prepare.h"
#include "aten/quick.h"
#include "aten/record.h"
#include "aten/record_call.h"
#include "atlas/device.h"
#include "atlas/op_table.h"

namespace hologram::aten {
namespace {

using at::Scalar;
using at::Tensor;

constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);
constexpr c10::DispatchKeySet kOurs(c10::DispatchKey::PrivateUse1);

// Whether a program may compute the product of two tensors of `rank` dimensions; what does not fit
// is torch's to refuse.
bool is_plain_product(const Tensor& a, const Tensor& b, int64_t rank) {
  if (a.device().type() != kHologram || a.dim() != rank || b.dim() != rank ||
      a.scalar_type() != b.scalar_type() || !a.is_floating_point() ||
      a.size(rank - 1) != b.size(rank - 2) || (rank == 3 && a.size(0) != b.size(0))) {
    return false;
  }
  const auto device = a.device().index();
  return is_recordable(a, device) && is_recordable(b, device);
}

template <class Op>
OpCounter& counter_of() {
  return quick_kernel<Op>().op().counter();
}

// `Out`: the operator with a result that is given.
template <class Out>
Tensor product(const char* name, const Tensor& a, const Tensor& b, at::IntArrayRef sizes) {
  const auto device = a.device().index();
  const Tensor result = make_result(current_window(device), sizes, a.scalar_type(), device);
  record_kernel(name, {&a, &b}, result, [](at::ArrayRef<Tensor> on_cpu) {
    Tensor out = on_cpu[2];
    Out::redispatch(kCpu, on_cpu[0], on_cpu[1], out);
  });
  return result;
}
Tensor matrix_product(const Tensor& a, const Tensor& b) {
  return product<at::_ops::mm_out>("aten::mm", a, b, {a.size(0), b.size(1)});
}

Tensor mm(const Tensor& a, const Tensor& b) {
  if (!is_plain_product(a, b, 2)) return quick_kernel<at::_ops::mm>()(kOurs, a, b);
  note_delegated(counter_of<at::_ops::mm>(), a.device().index());
  return matrix_product(a, b);
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  if (!is_plain_product(a, b, 3)) return quick_kernel<at::_ops::bmm>()(kOurs, a, b);
  note_delegated(counter_of<at::_ops::bmm>(), a.device().index());
  return product<at::_ops::bmm_out>("aten::bmm", a, b, {a.size(0), a.size(1), b.size(2)});
}

// One element of a sum's first operand for each column, or for all.
bool is_vector(const Tensor& self, int64_t columns) {
  return self.dim() == 1 && (self.size(0) == columns || self.size(0) == 1);
}

Tensor addmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
             const Scalar& alpha) {
  const auto device = a.device().index();
  if (!is_plain_product(a, b, 2) || self.scalar_type() != a.scalar_type() ||
      !is_recordable(self, device) || beta.isComplex() || alpha.isComplex() ||
      !at::is_expandable_to(self.sizes(), {a.size(0), b.size(1)})) {
    return quick_kernel<at::_ops::addmm>()(kOurs, self, a, b, beta, alpha);
  }
  note_delegated(counter_of<at::_ops::addmm>(), device);
  const bool wide = self.scalar_type() == at::kFloat || self.scalar_type() == at::kDouble;
  if (wide && is_vector(self, b.size(1)) && beta.toDouble() == 1 && alpha.toDouble() == 1) {
    const Tensor result = matrix_product(a, b);
    const bool recorded = record_row(Op::add, result, &self, &result, nullptr);
    TORCH_INTERNAL_ASSERT(recorded, "a vector was not added to the rows of a product");
    return result;
  }
  const Tensor result =
      make_result(current_window(device), {a.size(0), b.size(1)}, a.scalar_type(), device);
  record_kernel("aten::addmm", {&self, &a, &b}, result, [beta, alpha](at::ArrayRef<Tensor> on_cpu) {
    Tensor out = on_cpu[3];
    at::_ops::addmm_out::redispatch(kCpu, on_cpu[0], on_cpu[1], on_cpu[2], beta, alpha, out);
  });
  return result;
}

}  // namespace

void register_products() {
  serve_by_calls("mm", &mm);
  serve_by_calls("bmm", &bmm);
  serve_by_calls("addmm", &addmm);
}

}  // namespace hologram::aten

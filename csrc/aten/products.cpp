// Matrix products: by the library of the device's vendor where it has one, else calls of torch's
// CPU kernels that are recorded where their operands are plain.
//
// A sum with a vector, as of a linear layer, is a product and an addition in float32 and float64
// where it is recorded: the addition joins the pass of what comes after it, where torch copies the
// vector to each row first and has the product add to that.
#include "aten/precompiled.h"

#include "aten/products.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/mm_ops.h>

#include "aten/library_products.h"
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

// Whether two tensors of `rank` dimensions are plain and have a product; what does not fit is
// torch's to refuse.
bool is_plain_product(const Tensor& a, const Tensor& b, int64_t rank) {
  if (a.device().type() != kHologram || a.dim() != rank || b.dim() != rank ||
      a.scalar_type() != b.scalar_type() || !a.is_floating_point() ||
      a.size(rank - 1) != b.size(rank - 2) || (rank == 3 && a.size(0) != b.size(0))) {
    return false;
  }
  const auto device = a.device().index();
  return is_plain_operand(a, device) && is_plain_operand(b, device);
}

// The same with something that is added to it.
bool is_plain_sum(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                  const Scalar& alpha, int64_t rank) {
  if (!is_plain_product(a, b, rank) || self.scalar_type() != a.scalar_type() ||
      !is_plain_operand(self, a.device().index()) || beta.isComplex() || alpha.isComplex()) {
    return false;
  }
  const int64_t rows = a.size(rank - 2), columns = b.size(rank - 1);
  return rank == 2 ? at::is_expandable_to(self.sizes(), {rows, columns})
                   : at::is_expandable_to(self.sizes(), {a.size(0), rows, columns});
}

template <class Operator>
OpCounter& counter_of() {
  return quick_kernel<Operator>().op().counter();
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
  using Kernel = at::_ops::mm;
  if (!is_plain_product(a, b, 2)) return quick_kernel<Kernel>()(kOurs, a, b);
  Tensor result;
  if (product_by_library(counter_of<Kernel>(), {a, b}, nullptr, &result)) return result;
  if (!records_calls(a.device().index())) return quick_kernel<Kernel>()(kOurs, a, b);
  note_delegated(counter_of<Kernel>(), a.device().index());
  return matrix_product(a, b);
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  using Kernel = at::_ops::bmm;
  if (!is_plain_product(a, b, 3)) return quick_kernel<Kernel>()(kOurs, a, b);
  Tensor result;
  if (product_by_library(counter_of<Kernel>(), {a, b}, nullptr, &result)) return result;
  if (!records_calls(a.device().index())) return quick_kernel<Kernel>()(kOurs, a, b);
  note_delegated(counter_of<Kernel>(), a.device().index());
  return product<at::_ops::bmm_out>("aten::bmm", a, b, {a.size(0), a.size(1), b.size(2)});
}

// One element of a sum's first operand for each column, or for all.
bool is_vector(const Tensor& self, int64_t columns) {
  return self.dim() == 1 && (self.size(0) == columns || self.size(0) == 1);
}

Tensor addmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
             const Scalar& alpha) {
  using Kernel = at::_ops::addmm;
  const auto device = a.device().index();
  if (!is_plain_sum(self, a, b, beta, alpha, 2)) {
    return quick_kernel<Kernel>()(kOurs, self, a, b, beta, alpha);
  }
  Tensor by_library;
  if (product_by_library(counter_of<Kernel>(), {a, b, &self, beta.toDouble(), alpha.toDouble()},
                         nullptr, &by_library)) {
    return by_library;
  }
  if (!records_calls(device)) return quick_kernel<Kernel>()(kOurs, self, a, b, beta, alpha);
  note_delegated(counter_of<Kernel>(), device);
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

// What only a library computes at once: everything else of these is as for any other operator.

template <class Operator, int64_t rank>
Tensor& product_out(const Tensor& a, const Tensor& b, Tensor& out) {
  auto& kernel = quick_kernel<Operator>();
  if (is_plain_product(a, b, rank) &&
      product_by_library(kernel.op().counter(), {a, b}, &out, nullptr)) {
    return out;
  }
  return kernel(kOurs, a, b, out);
}

template <class Operator, int64_t rank>
bool sum_by_library(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                    const Scalar& alpha, const Tensor* out, Tensor* fresh) {
  return is_plain_sum(self, a, b, beta, alpha, rank) &&
         product_by_library(counter_of<Operator>(),
                            {a, b, &self, beta.toDouble(), alpha.toDouble()}, out, fresh);
}

template <class Operator, int64_t rank>
Tensor& sum_out(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                const Scalar& alpha, Tensor& out) {
  if (sum_by_library<Operator, rank>(self, a, b, beta, alpha, &out, nullptr)) return out;
  return quick_kernel<Operator>()(kOurs, self, a, b, beta, alpha, out);
}

template <class Operator, int64_t rank>
Tensor& sum_in_place(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                     const Scalar& alpha) {
  if (sum_by_library<Operator, rank>(self, a, b, beta, alpha, &self, nullptr)) return self;
  return quick_kernel<Operator>()(kOurs, self, a, b, beta, alpha);
}

Tensor baddbmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
               const Scalar& alpha) {
  using Kernel = at::_ops::baddbmm;
  Tensor result;
  if (sum_by_library<Kernel, 3>(self, a, b, beta, alpha, nullptr, &result)) return result;
  return quick_kernel<Kernel>()(kOurs, self, a, b, beta, alpha);
}

}  // namespace

void register_products() {
  serve_by_calls("mm", &mm);
  serve_by_calls("mm.out", &product_out<at::_ops::mm_out, 2>);
  serve_by_calls("bmm", &bmm);
  serve_by_calls("bmm.out", &product_out<at::_ops::bmm_out, 3>);
  serve_by_calls("addmm", &addmm);
  serve_by_calls("addmm.out", &sum_out<at::_ops::addmm_out, 2>);
  serve_by_calls("addmm_", &sum_in_place<at::_ops::addmm_, 2>);
  serve_by_calls("baddbmm", &baddbmm);
  serve_by_calls("baddbmm.out", &sum_out<at::_ops::baddbmm_out, 3>);
  serve_by_calls("baddbmm_", &sum_in_place<at::_ops::baddbmm_, 3>);
}

}  // namespace hologram::aten

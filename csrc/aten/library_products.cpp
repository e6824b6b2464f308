#include "aten/precompiled.h"

#include "aten/library_products.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <c10/util/strides.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "aten/below_autograd.h"
#include "aten/memory_overlap.h"
#include "aten/operand.h"
#include "aten/record_call.h"
#include "atlas/device.h"
#include "atlas/product.h"

namespace hologram::aten {
namespace {

using at::Tensor;
using Matrix = Product::Matrix;

// Of each device, when somebody has asked.
enum class Library : uint8_t { unknown, none, usable };
constinit std::array<std::atomic<Library>, kMaxDevices> libraries{};

// The matrix of a tensor's last two dimensions, where its elements lie by rows or by columns.
std::optional<Matrix> matrix_of(const Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  const int64_t rank = impl->dim();
  const int64_t rows = impl->size(rank - 2), columns = impl->size(rank - 1);
  const int64_t row = impl->stride(rank - 2), column = impl->stride(rank - 1);
  const int64_t stride = rank == 3 && impl->size(0) != 1 ? impl->stride(0) : 0;
  void* const data = const_cast<void*>(impl->data());
  const bool by_rows = (columns == 1 || column == 1) && (rows == 1 || row >= columns);
  const bool by_columns = (rows == 1 || row == 1) && (columns == 1 || column >= rows);
  // A column that is dense is so by columns: its elements follow each other.
  if (by_columns && (!by_rows || columns == 1)) {
    return Matrix{data, columns == 1 ? rows : column, stride, true};
  }
  if (by_rows) return Matrix{data, rows == 1 ? columns : row, stride, false};
  return std::nullopt;
}

// The same of an operand, or of a copy of it, which `kept` holds.
Matrix operand_of(const Tensor& tensor, Tensor& kept) {
  kept = tensor;
  if (const auto matrix = matrix_of(tensor)) return *matrix;
  kept = tensor.contiguous();
  return *matrix_of(kept);
}

// Makes the product that of the transposed matrices, with a transposed result.
void transpose(Product& product) {
  std::swap(product.rows, product.columns);
  std::swap(product.a, product.b);
  for (Matrix* const matrix : {&product.a, &product.b, &product.c, &product.out}) {
    matrix->by_columns = !matrix->by_columns;
  }
}

// A vector lies in memory the same way by rows.
bool lies_by_rows(Matrix& matrix, int64_t rows, int64_t columns) {
  if (matrix.by_columns && columns == 1 && matrix.leading == rows) {
    matrix = {matrix.data, 1, matrix.stride, false};
  }
  return !matrix.by_columns;
}

// How torch is set up to multiply numbers of a type. False where only its kernels know how.
bool set_precision(c10::ScalarType type, Product& product) {
  const at::Context& context = at::globalContext();
  // torch refuses what may differ from run to run.
  if (context.deterministicAlgorithms()) return false;
  const auto sums_of = [](at::CuBLASReductionOption option) {
    using Option = at::CuBLASReductionOption;
    return option == Option::AllowReducedPrecisionWithSplitK       ? Product::Sums::narrow
           : option == Option::DisallowReducedPrecisionAllowSplitK ? Product::Sums::wide
                                                                   : Product::Sums::whole;
  };
  switch (type) {
    case c10::ScalarType::Float:
      product.dtype = DType::f32;
      product.tf32 = context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
                     at::Float32Precision::TF32;
      return true;
    case c10::ScalarType::Double: product.dtype = DType::f64; return true;
    case c10::ScalarType::BFloat16:
      product.dtype = DType::bf16;
      product.sums = sums_of(context.allowBF16ReductionCuBLAS());
      return true;
    case c10::ScalarType::Half:
      product.dtype = DType::f16;
      product.sums = sums_of(context.allowFP16ReductionCuBLAS());
      return !context.allowFP16AccumulationCuBLAS();
    default: return false;
  }
}

// Whether `out` can be written: nothing else is read of its memory but `self`, element for element.
bool may_be_written(const Tensor& out, const ProductTerms& terms, at::IntArrayRef sizes) {
  const auto* impl = out.unsafeGetTensorImpl();
  const auto apart = [&](const Tensor& other) {
    return overlap_status(impl, other.unsafeGetTensorImpl()) == at::MemOverlapStatus::No;
  };
  return is_plain_operand(out, terms.a.device().index()) && out.sizes() == sizes &&
         out.scalar_type() == terms.a.scalar_type() && !overlaps_itself(impl) && apart(terms.a) &&
         apart(terms.b) &&
         (terms.self == nullptr || terms.beta == 0 || apart(*terms.self) ||
          is_same_view(impl, terms.self->unsafeGetTensorImpl()));
}

// Whether it is one number for each column, which the library adds before it rounds. With one
// element in a sum, or one column, torch does not have its library add them either.
bool is_bias(const Tensor& self, const Product& product) {
  return self.numel() == product.columns && self.dim() >= 1 &&
         self.size(self.dim() - 1) == product.columns && self.stride(self.dim() - 1) == 1 &&
         product.columns > 1 && product.inner > 1;
}

// A product in a program. Memory: a, b, c and the bias where the product has them, out; behind them
// out once more where it is read.
class ProductCall final : public KernelCall {
 public:
  ProductCall(const char* name, const Product& product) : KernelCall(name), product_(product) {}

  std::optional<Product> product(std::span<void* const> memory) const override {
    Product its = product_;
    size_t next = 0;
    its.a.data = memory[next++];
    its.b.data = memory[next++];
    if (its.beta != 0 && its.c.data != its.out.data) its.c.data = memory[next++];
    if (its.bias != nullptr) its.bias = memory[next++];
    const bool in_place = its.c.data == its.out.data;
    its.out.data = memory[next];
    if (in_place) its.c.data = its.out.data;
    return its;
  }

 private:
  // By torch's CPU kernels, where the library does not compute it after all.
  void compute(std::span<void* const> memory) override {
    const Product its = *product(memory);
    const auto type = type_of(its.dtype);
    const auto matrix = [&](const Matrix& of, int64_t rows, int64_t columns) {
      const int64_t row = of.by_columns ? 1 : of.leading, column = of.by_columns ? of.leading : 1;
      return TensorShape({its.count, rows, columns}, {of.stride, row, column}, type).over(of.data);
    };
    const Tensor a = matrix(its.a, its.rows, its.inner), b = matrix(its.b, its.inner, its.columns);
    Tensor sum = its.beta != 0
                     ? at::baddbmm(matrix(its.c, its.rows, its.columns), a, b, its.beta, its.alpha)
                     : at::bmm(a, b).mul_(its.alpha);
    if (its.bias != nullptr) {
      sum.add_(TensorShape({its.columns}, {1}, type).over(const_cast<void*>(its.bias)));
    }
    matrix(its.out, its.rows, its.columns).copy_(sum);
  }

  static caffe2::TypeMeta type_of(DType dtype) {
    switch (dtype) {
      case DType::f64: return caffe2::TypeMeta::Make<double>();
      case DType::f16: return caffe2::TypeMeta::Make<c10::Half>();
      case DType::bf16: return caffe2::TypeMeta::Make<c10::BFloat16>();
      default: return caffe2::TypeMeta::Make<float>();
    }
  }

  const Product product_;
};

// As a call in the program, which the queue computes. What lies between the elements of a result
// is to stay: the result is read, too.
void record(const char* name, const Product& product, c10::SmallVector<const Tensor*, 5>& reads,
            const Tensor& out) {
  const bool in_place = product.beta != 0 && product.c.data == product.out.data;
  if (in_place || !out.is_non_overlapping_and_dense()) reads.push_back(&out);
  record_call(name, reads, &out, std::make_shared<ProductCall>(name, product));
}

}  // namespace

Tensor make_fresh(at::IntArrayRef sizes, at::IntArrayRef strides, caffe2::TypeMeta dtype,
                  c10::DeviceIndex device) {
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, dtype.itemsize());
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      make_storage(bytes, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return made;
}

bool has_product_library(c10::DeviceIndex device) {
  auto& library = libraries[static_cast<size_t>(device)];
  const Library known = library.load(std::memory_order_acquire);
  if (C10_LIKELY(known != Library::unknown)) return known == Library::usable;
  const bool usable = hologram::device(device).backend().products().usable;
  library.store(usable ? Library::usable : Library::none, std::memory_order_release);
  return usable;
}

bool product_by_library(OpCounter& counter, const ProductTerms& terms, const Tensor* out,
                        Tensor* fresh) {
  const auto& [a, b, self, beta, alpha] = terms;
  if (!has_product_library(a.device().index())) return false;
  if (C10_UNLIKELY(in_forked_child())) refuse_forked_child();
  const int64_t rank = a.dim();
  Product product;
  product.rows = a.size(rank - 2);
  product.inner = a.size(rank - 1);
  product.columns = b.size(rank - 1);
  product.count = rank == 3 ? a.size(0) : 1;
  product.alpha = alpha;
  product.beta = beta;
  const std::array<int64_t, 3> all_sizes{product.count, product.rows, product.columns};
  const auto sizes = at::IntArrayRef(all_sizes).slice(static_cast<size_t>(3 - rank));
  if (!set_precision(a.scalar_type(), product)) return false;
  if (out != nullptr && !may_be_written(*out, terms, sizes)) return false;
  const BelowAutograd below;  // copies are made
  if (out == nullptr) {
    *fresh = make_fresh(sizes, c10::contiguous_strides(sizes), a.dtype(), a.device().index());
    out = fresh;
  }
  const auto written = matrix_of(*out);
  if (!written) return false;
  product.out = *written;

  Tensor kept_a, kept_b;
  product.a = operand_of(a, kept_a);
  product.b = operand_of(b, kept_b);
  const bool is_by_rows = lies_by_rows(product.out, product.rows, product.columns);
  c10::SmallVector<const Tensor*, 5> operands{&kept_a, &kept_b};
  if (self != nullptr && beta != 0) {
    if (beta == 1 && is_by_rows && is_bias(*self, product)) {
      product.bias = self->unsafeGetTensorImpl()->data();
      product.beta = 0;
      operands.push_back(self);
    } else {
      auto added = self->sizes() == sizes ? matrix_of(*self) : std::nullopt;
      if (added && is_by_rows) lies_by_rows(*added, product.rows, product.columns);
      if (added && added->by_columns == product.out.by_columns) {
        product.c = *added;
        operands.push_back(self);
      } else {
        out->copy_(self->expand(sizes));
        product.c = product.out;
      }
    }
  }
  if (!is_by_rows) {
    transpose(product);
    std::swap(operands[0], operands[1]);
  }
  if (!current_channel(a.device().index()).queue->computes(product)) return false;
  record(counter.name.c_str(), product, operands, *out);
  note_native(counter);
  return true;
}

}  // namespace hologram::aten

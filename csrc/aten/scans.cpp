// Scans: cumsum and cumprod, along any dimension.
//
// Elements are converted to the result's dtype first, as torch does it, and scanned in the order of
// its kernels for the CPU (atlas/group.h). What recording declines goes to them.
#include "aten/precompiled.h"

#include "aten/row_programs.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "aten/block.h"
#include "aten/folding.h"
#include "aten/memory_overlap.h"
#include "aten/overloads.h"
#include "aten/past_autograd.h"
#include "atlas/device.h"
#include "atlas/op_table.h"

namespace hologram::aten {
namespace {

using at::ScalarType;
using at::Tensor;
using OptionalType = std::optional<ScalarType>;

// Where the elements of a tensor are gone through, and how.
struct Scanning {
  Dimensions dimensions;
  Spread axis;
};

// By the order of memory, or of the dimensions.
Scanning scanning_of(const Tensor& self, int64_t dim, bool by_memory) {
  int64_t before = 1, after = 1;
  const auto is_outer = [&](int64_t d) {
    return by_memory ? self.stride(d) > self.stride(dim) : d < dim;
  };
  const int64_t size = self.size(dim);
  for (int64_t d = 0; d < self.dim(); ++d) {
    // Of one element the stride says nothing; so each is a row of one.
    if (d != dim) (size == 1 || is_outer(d) ? before : after) *= self.size(d);
  }
  if (after == 1) return {{1, before, size}, kColumns};
  return {{before, size, after}, kMiddle};
}

// The dtype of a scan whose result is of a type; none where torch's kernel serves it.
std::optional<DType> scanned_in(ScalarType from, ScalarType type) {
  const auto dtype = foldable_dtype(type);
  if (!foldable_dtype(from) || !dtype || *dtype == DType::b8) return std::nullopt;
  if (compute_type_of(*dtype) != ComputeType::i64) return dtype;
  if (!c10::isIntegralType(from, /*includeBool=*/true)) return std::nullopt;
  return DType::i64;
}

// Whether a scan of a tensor can be written to a given one.
bool takes_scan(const Tensor& out, const Tensor& self, ScalarType type) {
  const auto* impl = out.unsafeGetTensorImpl();
  const auto* from = self.unsafeGetTensorImpl();
  if (!is_plain_strided(impl) || out.scalar_type() != type || out.sizes() != self.sizes() ||
      out.device() != self.device() || overlaps_itself(impl) || operand_block(impl) == nullptr) {
    return false;
  }
  return is_same_view(impl, from) || overlap_status(impl, from) == at::MemOverlapStatus::No;
}

bool record(Op op, const Tensor& self, int64_t dim, OptionalType dtype, const Target& to) {
  const ScalarType own = self.scalar_type();
  const bool integral = c10::isIntegralType(own, /*includeBool=*/true);
  const ScalarType type = dtype.value_or(to.out != nullptr ? to.out->scalar_type()
                                         : integral        ? at::kLong
                                                           : own);
  const auto compute = scanned_in(own, type);
  const auto* impl = self.unsafeGetTensorImpl();
  const int64_t rank = self.dim();
  if (!compute || rank == 0 || dim < -rank || dim >= rank || !is_plain_strided(impl) ||
      impl->numel() == 0 || (to.out != nullptr && !takes_scan(*to.out, self, type))) {
    return false;
  }
  Block* const block = operand_block(impl);
  if (block == nullptr) return false;
  Window& window = current_window(self.device().index());
  if (to.out == nullptr) *to.fresh = make_folded(window, self, self.sizes(), type);
  const Tensor& out = to.out != nullptr ? *to.out : *to.fresh;

  // Both in the order of their memory, or a copy of what is not in that of the dimensions.
  const bool by_memory = same_and_dense(impl, out.unsafeGetTensorImpl());
  const auto scanning = scanning_of(self, dim < 0 ? dim + rank : dim, by_memory);
  Builder b(*compute, self.numel(), {});
  View x = dense_view(block, impl, *foldable_dtype(own));
  const Sizes strides = byte_strides(impl, self.sizes());
  if (!by_memory && !self.is_contiguous()) {
    x.layout = Layout::strided;
    x.strides = strides.data();
    x = b.copy_strided(x, self.sizes(), self.numel());
  }
  const View result = b.scan(op, x, scanning.dimensions, scanning.axis);
  const DType stored = *foldable_dtype(type);
  if (by_memory || out.is_contiguous()) {
    b.give(contiguous_view(out), stored);
  } else {
    b.store_permuted(contiguous_view(out), result, stored, out.sizes(), out.strides());
  }
  record_built(window, b);
  return true;
}

template <Op op>
Tensor scan(Service& here, const Tensor& self, int64_t dim, OptionalType dtype) {
  Tensor fresh;
  if (!record(op, self, dim, dtype, {nullptr, &fresh})) return here.delegate(self, dim, dtype);
  note_native(here.counter);
  return fresh;
}
template <Op op>
Tensor& scan_out(Service& here, const Tensor& self, int64_t dim, OptionalType dtype, Tensor& out) {
  if (record(op, self, dim, dtype, {&out, nullptr})) {
    note_native(here.counter);
  } else {
    here.delegate(self, dim, dtype, out);
  }
  return out;
}
template <Op op>
Tensor& scan_inplace(Service& here, Tensor& self, int64_t dim, OptionalType dtype) {
  if (record(op, self, dim, dtype, {&self, nullptr})) {
    note_native(here.counter);
  } else {
    here.delegate(self, dim, dtype);
  }
  return self;
}

}  // namespace

#define HOLOGRAM_SCAN(name, op)                                                            \
  {                                                                                        \
    static Service plain("aten::" name, ""), with_out("aten::" name, "out"),               \
        inplace("aten::" name "_", "");                                                    \
    implement(                                                                             \
        name, +[](const Tensor& self, int64_t dim, OptionalType dtype) {                   \
          return scan<op>(plain, self, dim, dtype);                                        \
        });                                                                                \
    implement(                                                                             \
        name ".out",                                                                       \
        +[](const Tensor& self, int64_t dim, OptionalType dtype, Tensor& out) -> Tensor& { \
          return scan_out<op>(with_out, self, dim, dtype, out);                            \
        });                                                                                \
    implement(                                                                             \
        name "_", +[](Tensor& self, int64_t dim, OptionalType dtype) -> Tensor& {          \
          return scan_inplace<op>(inplace, self, dim, dtype);                              \
        });                                                                                \
  }

void register_scans() {
  HOLOGRAM_SCAN("cumsum", Op::add)
  HOLOGRAM_SCAN("cumprod", Op::mul)
}

}  // namespace hologram::aten

// Where the greatest and the least elements are: argmax, argmin, and max and min along a dimension.
//
// The extremum m of the elements is folded first; then the least of the positions at which an
// element is m, or NaN where m is NaN. So of several the first is found, as by torch's kernels for
// the CPU. What recording declines goes to them.
#include "aten/precompiled.h"

#include "aten/row_programs.h"

#include <optional>
#include <tuple>

#include "aten/folding.h"
#include "aten/overloads.h"
#include "aten/past_autograd.h"
#include "atlas/device.h"
#include "atlas/op_table.h"

namespace hologram::aten {
namespace {

using at::ScalarType;
using at::Tensor;
using c10::OptionalArrayRef;
using Dims = OptionalArrayRef<int64_t>;
using Two = std::tuple<Tensor, Tensor>;

// Positions are numbers of the compute type.
constexpr int64_t kMostPositionsOfFloat = int64_t{1} << 24;

// The dtype in which elements are compared.
std::optional<DType> compared_in(const Tensor& self) {
  const auto dtype = foldable_dtype(self.scalar_type());
  if (!dtype) return std::nullopt;
  return compute_type_of(*dtype) == ComputeType::i64 ? DType::i64 : compute_dtype(*dtype);
}

// A call as it is recorded.
struct Search {
  Folding folding;
  DType compute;  // of the elements
  Sizes sizes;    // of each result
};

std::optional<Search> search_of(const Tensor& self, Dims dims, bool keepdim) {
  const auto compute = compared_in(self);
  const auto set = compute ? dim_set(self, dims) : std::nullopt;
  if (!set) return std::nullopt;
  // Of all dimensions together positions are counted in the order of the tensor's dimensions.
  auto folding = Folding::of(self, *set, !dims.has_value());
  if (!folding) return std::nullopt;
  const bool counts = folding->folded() == 1 || folding->position().has_value();
  const bool of_float = compute_type_of(*compute) == ComputeType::f32;
  if (!counts || (of_float && folding->folded() > kMostPositionsOfFloat)) return std::nullopt;
  return Search{*folding, *compute, folded_sizes(self, *set, keepdim)};
}

View first_of(Builder& b, const Search& search, const View& x, Op extremum) {
  const Folding& f = search.folding;
  if (f.folded() == 1) {
    b.enter(DType::i64, f.kept());
    return b.copy(b.number(0));
  }
  const View most = f.fold(b, extremum, x);
  f.enter_elements(b, search.compute);
  View found = b.apply(Op::eq, {x, f.beside_elements(most)});
  if (dtype_bit(search.compute) & kReal) {
    found = b.apply(Op::logical_or, {found, b.apply(Op::ne, {x, x})});
  }
  if (search.compute == DType::b8) f.enter_elements(b, DType::f32);
  const View none = b.number(static_cast<double>(f.folded()));
  return f.fold(b, Op::minimum, b.apply(Op::where, {found, *f.position(), none}));
}

void record_index(Window& window, const Search& search, Op extremum, const Tensor& out) {
  Builder b(search.compute, search.folding.count(), {});
  const View at = first_of(b, search, search.folding.source(b), extremum);
  search.folding.give_kept(b, at, out, DType::i64);
  record_built(window, b);
}
void record_value(Window& window, const Search& search, Op extremum, const Tensor& out) {
  Builder b(search.compute, search.folding.count(), {});
  const View most = search.folding.fold(b, extremum, search.folding.source(b));
  search.folding.give_kept(b, most, out, *foldable_dtype(out.scalar_type()));
  record_built(window, b);
}

// torch's kernels do not search truth values.
bool record(Op extremum, const Tensor& self, std::optional<int64_t> dim, bool keepdim,
            const Target& to) {
  if (self.scalar_type() == at::kBool) return false;
  const auto search = search_of(self, dim ? Dims(*dim) : std::nullopt, keepdim);
  if (!search) return false;
  if (to.out != nullptr && !takes_result(*to.out, search->sizes, at::kLong, {&self})) return false;
  Window& window = current_window(self.device().index());
  if (to.out == nullptr) *to.fresh = make_folded(window, self, search->sizes, at::kLong);
  record_index(window, *search, extremum, to.out != nullptr ? *to.out : *to.fresh);
  return true;
}

template <Op extremum>
Tensor find(Service& here, const Tensor& self, std::optional<int64_t> dim, bool keepdim) {
  Tensor fresh;
  if (!record(extremum, self, dim, keepdim, {nullptr, &fresh})) {
    return here.delegate(self, dim, keepdim);
  }
  note_native(here.counter);
  return fresh;
}
template <Op extremum>
Tensor& find_out(Service& here, const Tensor& self, std::optional<int64_t> dim, bool keepdim,
                 Tensor& out) {
  if (record(extremum, self, dim, keepdim, {&out, nullptr})) {
    note_native(here.counter);
  } else {
    here.delegate(self, dim, keepdim, out);
  }
  return out;
}

template <Op extremum>
Two find_both(Service& here, const Tensor& self, int64_t dim, bool keepdim) {
  const auto search = search_of(self, Dims(dim), keepdim);
  if (!search) return here.delegate.two(self, dim, keepdim);
  Window& window = current_window(self.device().index());
  Two fresh{make_folded(window, self, search->sizes, self.scalar_type()),
            make_folded(window, self, search->sizes, at::kLong)};
  record_value(window, *search, extremum, std::get<0>(fresh));
  record_index(window, *search, extremum, std::get<1>(fresh));
  note_native(here.counter);
  return fresh;
}
template <Op extremum>
std::tuple<Tensor&, Tensor&> find_both_out(Service& here, const Tensor& self, int64_t dim,
                                           bool keepdim, Tensor& values, Tensor& indices) {
  const auto search = search_of(self, Dims(dim), keepdim);
  // What is found in a tensor is not written to it before it has been searched twice.
  const auto takes = [&](const Tensor& out, ScalarType type) {
    return takes_result(out, search->sizes, type, {&self}) && !out.is_alias_of(self);
  };
  if (search && takes(values, self.scalar_type()) && takes(indices, at::kLong) &&
      !values.is_alias_of(indices)) {
    Window& window = current_window(self.device().index());
    record_value(window, *search, extremum, values);
    record_index(window, *search, extremum, indices);
    note_native(here.counter);
  } else {
    here.delegate(self, dim, keepdim, values, indices);
  }
  return {values, indices};
}

}  // namespace

#define HOLOGRAM_ARG(name, extremum)                                                       \
  {                                                                                        \
    static Service plain("aten::" name, ""), with_out("aten::" name, "out");               \
    implement(                                                                             \
        name, +[](const Tensor& self, std::optional<int64_t> dim, bool keepdim) {          \
          return find<extremum>(plain, self, dim, keepdim);                                \
        });                                                                                \
    implement(                                                                             \
        name ".out",                                                                       \
        +[](const Tensor& self, std::optional<int64_t> dim, bool keepdim, Tensor& out)     \
            -> Tensor& { return find_out<extremum>(with_out, self, dim, keepdim, out); }); \
  }
#define HOLOGRAM_ALONG_DIM(name, overload, extremum)                                     \
  {                                                                                      \
    static Service plain("aten::" name, "dim"), with_out("aten::" name, overload);       \
    implement(                                                                           \
        name ".dim", +[](const Tensor& self, int64_t dim, bool keepdim) {                \
          return find_both<extremum>(plain, self, dim, keepdim);                         \
        });                                                                              \
    implement(                                                                           \
        name "." overload,                                                               \
        +[](const Tensor& self, int64_t dim, bool keepdim, Tensor& values,               \
            Tensor& indices) -> std::tuple<Tensor&, Tensor&> {                           \
          return find_both_out<extremum>(with_out, self, dim, keepdim, values, indices); \
        });                                                                              \
  }

void register_arg_reductions() {
  HOLOGRAM_ARG("argmax", Op::maximum)
  HOLOGRAM_ARG("argmin", Op::minimum)
  HOLOGRAM_ALONG_DIM("max", "dim_max", Op::maximum)
  HOLOGRAM_ALONG_DIM("min", "dim_min", Op::minimum)
}

}  // namespace hologram::aten

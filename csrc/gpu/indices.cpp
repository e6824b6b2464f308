#include "gpu/indices.h"

#include <algorithm>
#include <utility>

#include "atlas/error.h"
#include "gpu/move_launches.h"

namespace hologram::gpu {
namespace {

static_assert(HG_INDEX_RECORD == kRecordWords);

class IndexedMoves : public MoveLaunches {
 public:
  using MoveLaunches::MoveLaunches;

  // Operands of the space: to, from, the position, the claim, and each index tensor.
  void take_indexed(Space space, Argument to, Argument from, std::vector<Along> along,
                    std::span<const Indices> indices, uint32_t* record) {
    prepare(space, {to.address, from.address}, along);
    const bool wide = is_wide(space, along);
    Fields fields(wide);
    add_indexed(fields, space, along, indices, {});
    spread("take", element_type(space.bytes), wide, space.count(),
           arguments_of(to, from, indices, record), fields);
  }
  void put_indexed(Space space, Argument to, Argument from, std::vector<Along> along,
                   std::span<const Indices> indices, uint32_t* record) {
    prepare(space, {to.address, from.address}, along);
    if (const int64_t places = number_places(space, along); places != 0) {
      return put_claimed(space, places, to, from, along, indices, record);
    }
    walk("put", element_type(space.bytes), space, to, from, along, indices, record, {});
  }
  void add_up_indexed(Space space, const char* types, Argument to, Argument from,
                      const std::vector<Along>& along, std::span<const Indices> indices,
                      uint32_t* record, std::optional<int64_t> left_out) {
    space.simplify();
    walk("add", types, space, to, from, along, indices, record, left_out);
  }

 private:
  struct Walk {
    int64_t outer = 0, lines = 0, owners = 1, walk = 0;
    std::optional<int64_t> left_out;
  };

  static std::vector<Argument> arguments_of(Argument to, Argument from,
                                            std::span<const Indices> indices, uint32_t* record) {
    std::vector<Argument> all = {to, from, {record}};
    for (const Indices& its : indices) all.push_back({its.tensor.address});
    all.resize(3 + HG_MOVE_INDICES, {record});
    return all;
  }
  static void add_indexed(Fields& fields, const Space& space, const std::vector<Along>& along,
                          std::span<const Indices> indices, const Walk& walk) {
    fields.add_space(space, kIndexOperands);
    fields.add(static_cast<int64_t>(indices.size()));
    for (const int64_t number : {walk.outer, walk.lines, walk.owners, walk.walk,
                                 int64_t{walk.left_out.has_value()}, walk.left_out.value_or(0)}) {
      fields.add(number);
    }
    for (size_t i = 0; i < HG_MOVE_INDICES; ++i) {
      const bool is_there = i < indices.size();
      const Along its = is_there ? along[i] : Along{};
      if (is_there) {
        fields.add_strides(space, kIndexOperands + i);
      } else {
        fields.add_each(0, HG_MOVE_RANK, 0, [](size_t) { return 0; });
      }
      const unsigned flags =
          (is_there && indices[i].is_long ? HG_INDEX_LONG : 0u) | (its.wraps ? HG_INDEX_WRAPS : 0u);
      for (const int64_t number : {its.size, its.to, its.from, int64_t{flags}}) fields.add(number);
    }
  }

  // How many places there are to write to, of which each has a number: the strides of claims. 0
  // where it is not worth while: threads that walk a few positions need no numbers.
  int64_t number_places(Space& space, const std::vector<Along>& along) const {
    int64_t walk = 1, positions = 1, places = 1;
    for (const Along& its : along) {
      if (its.size == 0 || its.size > kMostPlaces / places) return 0;
      places *= its.size;
    }
    for (size_t d = space.dimensions.size(); d-- > 0;) {
      Dimension& its = space.dimensions[d];
      positions += its.stride[2] * (its.size - 1);
      if (its.stride[0] == 0) {
        walk *= its.size;
        if (its.stride[2] == 0) return 0;  // `walk` says what is wrong
      } else if (has_index_along(space, its)) {
        if (its.size > kMostPlaces / places) return 0;
        its.stride[3] = places;
        places *= its.size;
      }
    }
    const bool is_small = places <= kFewPlaces + kPlacesOfPoint * space.count();
    return walk > kShortWalk && is_small && positions < UINT32_MAX - 1 ? places : 0;
  }
  static bool has_index_along(const Space& space, const Dimension& its) {
    return std::any_of(its.stride.begin() + kIndexOperands,
                       its.stride.begin() + static_cast<int64_t>(space.operands),
                       [](int64_t stride) { return stride != 0; });
  }
  void put_claimed(const Space& space, int64_t places, Argument to, Argument from,
                   const std::vector<Along>& along, std::span<const Indices> indices,
                   uint32_t* record) {
    const Argument claims = scratch(places, sizeof(uint32_t));
    Space numbers;
    numbers.operands = numbers.data = 1;
    numbers.bytes = sizeof(uint32_t);
    numbers.add(places, {1});
    const uint32_t none = 0;
    fill("fill", numbers, {claims}, &none);
    // Points that differ by none of the indices claim the same.
    Space claiming = space;
    std::erase_if(claiming.dimensions, [&](const Dimension& its) {
      return its.stride[0] != 0 && !has_index_along(space, its);
    });
    bool wide = is_wide(claiming, along);
    Fields of_claims(wide);
    add_indexed(of_claims, claiming, along, indices, {});
    std::vector<Argument> arguments = arguments_of(claims, {record}, indices, record);
    arguments.erase(arguments.begin() + 2);  // there is no element
    spread("claim", "", wide, claiming.count(), std::move(arguments), of_claims);
    wide = is_wide(space, along);
    Fields of_elements(wide);
    add_indexed(of_elements, space, along, indices, {});
    arguments = arguments_of(to, from, indices, record);
    arguments[2] = claims;
    spread("put_claimed", element_type(space.bytes), wide, space.count(), std::move(arguments),
           of_elements);
  }

  // Dimensions along which only indices say where to write are walked, in the order of positions.
  void walk(const char* name, const char* types, Space space, Argument to, Argument from,
            const std::vector<Along>& along, std::span<const Indices> indices, uint32_t* record,
            std::optional<int64_t> left_out) {
    require(space.dimensions.size() <= HG_MOVE_RANK, "a space of too many dimensions");
    const auto walked = std::ranges::stable_partition(
        space.dimensions, [](const Dimension& its) { return its.stride[0] != 0; });
    // Of a tensor without elements no index is good, whatever its strides are.
    const bool has_places = std::ranges::all_of(along, [](const Along& it) { return it.size > 0; });
    const bool is_said =
        std::ranges::all_of(walked, [](const Dimension& its) { return its.stride[2] != 0; });
    require(is_said || !has_places, "several elements for a place, and no index that says so");
    std::ranges::stable_sort(
        walked, [](const Dimension& x, const Dimension& y) { return x.stride[2] > y.stride[2]; });
    Walk its;
    its.left_out = left_out;
    its.outer = static_cast<int64_t>(space.dimensions.size() - walked.size());
    its.lines = its.walk = 1;
    for (size_t d = 0; d < space.dimensions.size(); ++d) {
      (static_cast<int64_t>(d) < its.outer ? its.lines : its.walk) *= space.dimensions[d].size;
    }
    // As many threads of a line as there is work for, and places that they can have of their own.
    int64_t places = 1;
    for (const Along& one : along) places *= std::min<int64_t>(one.size, kMostOwners);
    places = std::min<int64_t>(places, kMostOwners);
    const int64_t wanted = std::min(target_.enough_threads / its.lines, its.walk / kLeastOfOwner);
    its.owners = std::max<int64_t>(1, std::min(places, wanted));
    const bool wide = is_wide(space, along);
    Fields fields(wide);
    add_indexed(fields, space, along, indices, its);
    const int64_t threads = its.lines * its.owners;
    const unsigned block = block_of(threads);
    add(name, types, wide, divided_up(threads, block), block,
        arguments_of(to, from, indices, record), fields);
  }

  static constexpr int64_t kShortWalk = 32;
  // Places that are numbered: as many as their numbers' memory is worth.
  static constexpr int64_t kMostPlaces = int64_t{1} << 30, kFewPlaces = 1 << 16,
                           kPlacesOfPoint = 16;
  static constexpr int64_t kMostOwners = 1024;
  static constexpr int64_t kLeastOfOwner = 4;  // elements that it writes, on average
};

// The points, and what indices there do.
struct IndexedSpace {
  Space space;
  std::vector<Along> along;
  std::vector<Indices> indices;
};

// `whole` is indexed, `indexed` what that is. Operands in the order of the kernels, where `whole`
// is the second one, or the first one where it is written.
IndexedSpace indexed_space(size_t bytes, const Tensor& whole, const Tensor& indexed,
                           const Indexing& indexing, bool writes) {
  IndexedSpace result;
  Space& space = result.space;
  require(indexing.along.size() <= whole.sizes.size(), "more indices than dimensions");
  std::vector<size_t> dimensions, others;
  for (size_t d = 0; d < whole.sizes.size(); ++d) {
    const bool is_indexed = d < indexing.along.size() && indexing.along[d].has_value();
    (is_indexed ? dimensions : others).push_back(d);
    if (!is_indexed) continue;
    result.indices.push_back(*indexing.along[d]);
    const int64_t stride = whole.strides[d];
    result.along.push_back(
        {whole.sizes[d], writes ? stride : 0, writes ? 0 : stride, indexing.wraps});
  }
  require(!dimensions.empty() && dimensions.size() <= HG_MOVE_INDICES, "no or too many indices");
  space.operands = kIndexOperands + dimensions.size();
  space.data = 2;
  space.bytes = bytes;
  const bool adjacent = dimensions.back() - dimensions.front() + 1 == dimensions.size();
  const size_t front = adjacent ? dimensions.front() : 0;
  const std::vector<int64_t>& sizes = result.indices.front().tensor.sizes;
  for (const Indices& its : result.indices) {
    require(its.tensor.sizes == sizes, "tensors of indices of different sizes");
  }
  require(indexed.sizes.size() == others.size() + sizes.size(),
          "another number of dimensions than what is indexed has");
  size_t at = 0;  // of the dimensions of what is indexed
  const auto add = [&](int64_t size, int64_t of_whole) {
    require(indexed.sizes[at] == size, "other sizes than what is indexed has");
    const int64_t stride = indexed.strides[at++];
    space.add(size, {writes ? of_whole : stride, writes ? stride : of_whole});
  };
  for (size_t i = 0; i < front; ++i) add(whole.sizes[others[i]], whole.strides[others[i]]);
  const size_t first = space.dimensions.size();
  for (const int64_t size : sizes) add(size, 0);
  int64_t position = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    Dimension& its = space.dimensions[first + d];
    its.stride[2] = position;
    position *= sizes[d];
    for (size_t i = 0; i < result.indices.size(); ++i) {
      its.stride[kIndexOperands + i] = result.indices[i].tensor.strides[d];
    }
  }
  for (size_t i = front; i < others.size(); ++i) {
    add(whole.sizes[others[i]], whole.strides[others[i]]);
  }
  return result;
}

// Of indices that have a place for each element of `indexed` along one dimension of `whole`.
IndexedSpace gathered_space(size_t bytes, const Tensor& whole, const Tensor& indexed,
                            size_t dimension, const Indices& indices, bool writes) {
  IndexedSpace result;
  Space& space = result.space;
  const std::vector<int64_t>& sizes = indices.tensor.sizes;
  require(dimension < sizes.size() && whole.sizes.size() == sizes.size() &&
              indexed.sizes.size() == sizes.size(),
          "tensors of different fields of dimensions");
  space.operands = kIndexOperands + 1;
  space.data = 2;
  space.bytes = bytes;
  int64_t position = count_of(sizes);
  if (position == 0) {
    space.add(0, {});
    return result;
  }
  for (size_t d = 0; d < sizes.size(); ++d) {
    require(sizes[d] <= indexed.sizes[d] && (d == dimension || sizes[d] <= whole.sizes[d]),
            "more indices than elements");
    position /= sizes[d];
    const int64_t of_whole = d == dimension ? 0 : whole.strides[d];
    const int64_t of_indexed = indexed.strides[d];
    space.add(sizes[d], {writes ? of_whole : of_indexed, writes ? of_indexed : of_whole, position,
                         0, indices.tensor.strides[d]});
  }
  const int64_t stride = whole.strides[dimension];
  result.along.push_back({whole.sizes[dimension], writes ? stride : 0, writes ? 0 : stride, false});
  result.indices.push_back(indices);
  return result;
}

// Reads or writes where the indices say.
Launches indexed(const Target& target, IndexedSpace its, bool writes, const Tensor& to,
                 const Tensor& from, uint32_t* record) {
  if (its.space.count() == 0) return {};
  IndexedMoves moves(target);
  const auto how = writes ? &IndexedMoves::put_indexed : &IndexedMoves::take_indexed;
  (moves.*how)(std::move(its.space), {to.address}, {from.address}, std::move(its.along),
               its.indices, record);
  return moves.take();
}

// The names of types of a sum, and of that in f32.
const char* sum_types(DType dtype) {
  switch (dtype) {
    case DType::b8: return "b8";
    case DType::u8:
    case DType::i8: return "u8";
    case DType::i16: return "u16";
    case DType::i32: return "u32";
    case DType::i64: return "u64";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::f32: return "f32";
    case DType::f64: return "f64";
    case DType::c64:
    case DType::c128: break;
  }
  throw Error("a sum of complex elements");
}

// `make_space(to)` is the space with `to` written.
template <class F>
Launches add_up(const Target& target, DType dtype, Rounding rounding, const Tensor& to, void* from,
                F&& make_space, uint32_t* record, std::optional<int64_t> left_out) {
  IndexedMoves moves(target);
  const IndexedSpace its = make_space(to);
  if (its.space.count() == 0) return {};
  const bool is_half = dtype == DType::f16 || dtype == DType::bf16;
  // Without elements there is but a record to write.
  if (!is_half || rounding == Rounding::each || count_of(to.sizes) == 0) {
    moves.add_up_indexed(its.space, sum_types(dtype), {to.address}, {from}, its.along, its.indices,
                         record, left_out);
    return moves.take();
  }
  // In scratch memory, as dense as can be.
  Tensor sums{nullptr, to.sizes, to.strides};
  int64_t stride = 1;
  for (size_t d = sums.sizes.size(); d-- > 0;) {
    sums.strides[d] = stride;
    stride *= sums.sizes[d];
  }
  const bool is_f16 = dtype == DType::f16;
  const Argument scratch = moves.scratch(stride, sizeof(float));
  moves.cast(space_of(sizeof(float), sums, to, true), is_f16 ? "f32_of_f16" : "f32_of_bf16",
             scratch, {to.address});
  const IndexedSpace of_sums = make_space(sums);
  moves.add_up_indexed(of_sums.space, is_f16 ? "f32_of_f16" : "f32_of_bf16", scratch, {from},
                       of_sums.along, of_sums.indices, record, left_out);
  moves.cast(space_of(sizeof(float), to, sums, true), is_f16 ? "f16_of_f32" : "bf16_of_f32",
             {to.address}, scratch);
  return moves.take();
}

}  // namespace

std::optional<BadIndex> bad_index(std::span<const uint32_t, kRecordWords> record) {
  if (record[0] == 0) return {};
  const uint64_t bits = record[1] | static_cast<uint64_t>(record[2]) << 32;
  return BadIndex{UINT32_MAX - record[0], static_cast<int64_t>(bits), record[3]};
}

std::string bad_index_text(int64_t index, size_t dimension, int64_t size) {
  return "index " + std::to_string(index) + " is out of bounds for dimension " +
         std::to_string(dimension) + " with size " + std::to_string(size);
}

Launches index(const Target& target, size_t bytes, const Tensor& to, const Tensor& from,
               const Indexing& indexing, uint32_t* record) {
  return indexed(target, indexed_space(bytes, from, to, indexing, false), false, to, from, record);
}

Launches index_put(const Target& target, size_t bytes, const Tensor& to, const Indexing& indexing,
                   const Tensor& from, uint32_t* record) {
  return indexed(target, indexed_space(bytes, to, from, indexing, true), true, to, from, record);
}

Launches index_add(const Target& target, DType dtype, Rounding rounding, const Tensor& to,
                   const Indexing& indexing, const Tensor& from, uint32_t* record,
                   std::optional<int64_t> left_out) {
  const auto space = [&](const Tensor& whole) {
    return indexed_space(dtype_size(dtype), whole, from, indexing, true);
  };
  return add_up(target, dtype, rounding, to, from.address, space, record, left_out);
}

Launches gather(const Target& target, size_t bytes, const Tensor& to, const Tensor& from,
                size_t dimension, const Indices& indices, uint32_t* record) {
  return indexed(target, gathered_space(bytes, from, to, dimension, indices, false), false, to,
                 from, record);
}

Launches scatter(const Target& target, size_t bytes, const Tensor& to, size_t dimension,
                 const Indices& indices, const Tensor& from, uint32_t* record) {
  return indexed(target, gathered_space(bytes, to, from, dimension, indices, true), true, to, from,
                 record);
}

Launches scatter_add(const Target& target, DType dtype, Rounding rounding, const Tensor& to,
                     size_t dimension, const Indices& indices, const Tensor& from,
                     uint32_t* record) {
  const auto space = [&](const Tensor& whole) {
    return gathered_space(dtype_size(dtype), whole, from, dimension, indices, true);
  };
  return add_up(target, dtype, rounding, to, from.address, space, record, {});
}

}  // namespace hologram::gpu

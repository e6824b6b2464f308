#include "gpu/moves.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "gpu/move_launches.h"

namespace hologram::gpu {
namespace {

static_assert(kMostMoveDimensions == HG_MOVE_RANK);
static_assert(static_cast<unsigned>(Pad::constant) == HG_PAD_CONSTANT &&
              static_cast<unsigned>(Pad::reflect) == HG_PAD_REFLECT &&
              static_cast<unsigned>(Pad::replicate) == HG_PAD_REPLICATE &&
              static_cast<unsigned>(Pad::circular) == HG_PAD_CIRCULAR);

void require_same(const Tensor& x, const Tensor& y) {
  require(x.sizes == y.sizes, "tensors of different sizes");
}

class Moves : public MoveLaunches {
 public:
  using MoveLaunches::MoveLaunches;

  void copy(Space space, Argument to, Argument from) {
    prepare(space, {to.address, from.address});
    if (const std::optional<size_t> along = runs_along(space)) {
      std::rotate(space.dimensions.begin() + static_cast<int64_t>(*along),
                  space.dimensions.begin() + static_cast<int64_t>(*along) + 1,
                  space.dimensions.end() - 1);
      return transpose(space, to, from);
    }
    copy_as("copy", element_type(space.bytes), space, to, from);
  }

  // Of each dimension `before` and the size of what is read, in the same elements as the space.
  void pad(Space space, std::vector<int64_t> before, std::vector<int64_t> inside, void* to,
           void* from, Pad mode, const void* element) {
    const auto pattern = pattern_of(space.bytes, element);
    const size_t alignment = alignment_of({to, from});
    if (const size_t unit = std::min(alignment, space.bytes); unit < space.bytes) {
      const auto parts = static_cast<int64_t>(space.bytes / unit);
      space.divide(parts);
      before.push_back(0);
      inside.push_back(parts);
    }
    // What is not padded joins the dimension before it; another mode than a constant one looks at
    // single elements of that.
    for (size_t d = space.dimensions.size(); d-- > 1;) {
      const Dimension& its = space.dimensions[d];
      const bool is_whole = before[d] == 0 && inside[d] == its.size;
      const bool is_free = before[d - 1] == 0 && inside[d - 1] == space.dimensions[d - 1].size;
      if (!is_whole || !(mode == Pad::constant || is_free)) continue;
      if (!space.joins(space.dimensions[d - 1], its)) continue;
      const int64_t size = its.size;
      before[d - 1] *= size;
      inside[d - 1] *= size;
      Dimension joined = its;
      joined.size *= space.dimensions[d - 1].size;
      space.dimensions[d - 1] = joined;
      const auto at = static_cast<int64_t>(d);
      space.dimensions.erase(space.dimensions.begin() + at);
      before.erase(before.begin() + at);
      inside.erase(inside.begin() + at);
    }
    for (int64_t parts = 16 / static_cast<int64_t>(space.bytes); parts > 1; parts /= 2) {
      if (!space.can_unite(parts) || space.bytes * static_cast<size_t>(parts) > alignment) continue;
      const size_t last = space.dimensions.size() - 1;
      const bool is_whole = before[last] == 0 && inside[last] == space.dimensions[last].size;
      if (before[last] % parts != 0 || inside[last] % parts != 0) continue;
      if (mode != Pad::constant && !is_whole) continue;
      before[last] /= parts;
      inside[last] /= parts;
      space.unite(parts);
      break;
    }
    const size_t rank = space.dimensions.size();
    require(rank <= HG_MOVE_RANK, "a pad of too many dimensions");
    const bool wide = is_wide(space);
    Fields fields(wide);
    fields.add_pattern(pattern);
    fields.add_space(space, 2);
    fields.add_each(rank, HG_MOVE_RANK, 0, [&](size_t d) { return before[d]; });
    fields.add_each(rank, HG_MOVE_RANK, 1, [&](size_t d) { return inside[d]; });
    fields.add(static_cast<int64_t>(mode));
    spread("pad", element_type(space.bytes), wide, space.count(), {{to}, {from}}, fields);
  }

  // An input of `cat`: rows of `length` elements, `pitch` apart, that go to columns from `begin`.
  struct Piece {
    void* address;
    int64_t length, pitch, begin;
  };
  void cat(size_t bytes, void* to, int64_t rows, int64_t to_pitch, std::vector<Piece> pieces) {
    unite(bytes, to, to_pitch, pieces);
    for (size_t first = 0; first < pieces.size(); first += HG_MOVE_INPUTS) {
      const size_t count = std::min<size_t>(pieces.size() - first, HG_MOVE_INPUTS);
      cat_some(bytes, to, rows, to_pitch, {pieces.data() + first, count});
    }
  }

 private:
  // The dimension along which `from` runs, where it is not the last, along which `to` does.
  std::optional<size_t> runs_along(const Space& space) const {
    constexpr int64_t kLeast = 16;  // of a tile's rows and columns; fewer leave most of it empty
    if (space.dimensions.size() < 2) return {};
    const Dimension& last = space.dimensions.back();
    if (last.size < kLeast || std::abs(last.stride[0]) != 1) return {};
    if (std::abs(last.stride[1]) <= 1) return {};
    for (size_t d = 0; d + 1 < space.dimensions.size(); ++d) {
      const Dimension& its = space.dimensions[d];
      if (its.size >= kLeast && std::abs(its.stride[1]) == 1) return d;
    }
    return {};
  }
  void transpose(const Space& space, Argument to, Argument from) {
    const bool wide = is_wide(space);
    const uint32_t tile = HG_MOVE_TILE(space.bytes);
    Fields fields(wide);
    fields.add_space(space, 2);
    int64_t blocks = 1;
    for (size_t d = 0; d < space.dimensions.size(); ++d) {
      const int64_t size = space.dimensions[d].size;
      blocks *= d + 2 < space.dimensions.size() ? size : divided_up(size, tile);
    }
    add("transpose", element_type(space.bytes), wide, blocks, tile * HG_MOVE_TILE_ROWS, {to, from},
        fields);
  }

  static void unite(size_t& bytes, void* to, int64_t& to_pitch, std::vector<Piece>& pieces) {
    size_t alignment = alignment_of({to});
    for (const Piece& its : pieces) alignment = std::min(alignment, alignment_of({its.address}));
    if (alignment < bytes) {
      const auto parts = static_cast<int64_t>(bytes / alignment);
      to_pitch *= parts;
      for (Piece& its : pieces) {
        its.length *= parts;
        its.pitch *= parts;
        its.begin *= parts;
      }
      bytes = alignment;
    }
    for (auto parts = static_cast<int64_t>(alignment / bytes); parts > 1; parts /= 2) {
      const bool fits =
          to_pitch % parts == 0 && std::ranges::all_of(pieces, [&](const Piece& its) {
            return its.length % parts == 0 && its.pitch % parts == 0 && its.begin % parts == 0;
          });
      if (!fits) continue;
      to_pitch /= parts;
      for (Piece& its : pieces) {
        its.length /= parts;
        its.pitch /= parts;
        its.begin /= parts;
      }
      bytes *= static_cast<size_t>(parts);
      return;
    }
  }
  void cat_some(size_t bytes, void* to, int64_t rows, int64_t to_pitch,
                std::span<const Piece> pieces) {
    int64_t most = 0, largest = 0;
    for (const Piece& its : pieces) {
      largest = std::max(largest, rows * its.length);
      most = std::max({most, rows * to_pitch + its.begin, rows * std::max(its.pitch, its.length)});
    }
    const bool wide = most > target_.most_narrow;
    const unsigned block = block_of(divided_up(largest, HG_MOVE_EACH));
    std::vector<int64_t> first_blocks;
    std::vector<Argument> arguments = {{to}};
    int64_t blocks = 0;
    for (const Piece& its : pieces) {
      first_blocks.push_back(blocks);
      blocks += divided_up(rows * its.length, int64_t{block} * HG_MOVE_EACH);
      arguments.push_back({its.address});
    }
    arguments.resize(1 + HG_MOVE_INPUTS, {to});  // of those that there are not, any memory
    Fields fields(wide);
    fields.add(static_cast<int64_t>(pieces.size()));
    fields.add(rows);
    fields.add(to_pitch);
    const auto add_each = [&](auto&& f) { fields.add_each(pieces.size(), HG_MOVE_INPUTS, 0, f); };
    add_each([&](size_t i) { return first_blocks[i]; });
    add_each([&](size_t i) { return pieces[i].begin; });
    add_each([&](size_t i) { return pieces[i].length; });
    add_each([&](size_t i) { return pieces[i].pitch; });
    add("cat", element_type(bytes), wide, blocks, block, std::move(arguments), fields);
  }
};

}  // namespace

Launches copy(const Target& target, size_t bytes, const Tensor& to, const Tensor& from) {
  require_same(to, from);
  if (count_of(to.sizes) == 0) return {};
  Moves moves(target);
  moves.copy(space_of(bytes, to, from, true), {to.address}, {from.address});
  return moves.take();
}

Launches copy(const Target& target, const StridedCopy& copy) {
  const auto tensor = [&](const void* address, std::span<const int64_t> strides) -> Tensor {
    return {const_cast<void*>(address),
            {copy.sizes.begin(), copy.sizes.end()},
            {strides.begin(), strides.end()}};
  };
  return gpu::copy(target, copy.element_bytes, tensor(copy.to, copy.to_strides),
                   tensor(copy.from, copy.from_strides));
}

Launches fill(const Target& target, size_t bytes, const Tensor& to, const void* element) {
  if (count_of(to.sizes) == 0) return {};
  Moves moves(target);
  moves.fill("fill", space_of(bytes, to), {{to.address}}, element);
  return moves.take();
}

Launches masked_fill(const Target& target, size_t bytes, const Tensor& to, const Tensor& mask,
                     const void* element) {
  require_same(to, mask);
  if (count_of(to.sizes) == 0) return {};
  Moves moves(target);
  moves.fill("masked_fill", space_of(bytes, to, mask, false), {{to.address}, {mask.address}},
             element);
  return moves.take();
}

Launches pad(const Target& target, size_t bytes, const Tensor& to, const Tensor& from,
             std::span<const int64_t> before, Pad mode, const void* element) {
  const size_t rank = to.sizes.size();
  require(from.sizes.size() == rank && before.size() == rank,
          "tensors of different fields of dimensions");
  if (count_of(to.sizes) == 0) return {};
  for (size_t d = 0; d < rank; ++d) {
    const int64_t size = from.sizes[d], after = to.sizes[d] - before[d] - size;
    const int64_t most = std::max(before[d], after);
    require(mode == Pad::constant || most <= 0 || size > 0, "no element to pad with");
    require(mode != Pad::reflect || most < std::max<int64_t>(size, 1),
            "a pad as wide as its input");
    require(mode != Pad::circular || most <= size, "a pad wider than its input");
  }
  Moves moves(target);
  moves.pad(space_of(bytes, to, from, true), {before.begin(), before.end()}, from.sizes, to.address,
            from.address, mode, element);
  return moves.take();
}

Launches cat(const Target& target, size_t bytes, const Tensor& to, std::span<const Tensor> inputs,
             size_t dimension) {
  require(dimension < to.sizes.size(), "no such dimension");
  const std::vector<int64_t>& sizes = to.sizes;
  const auto at = static_cast<int64_t>(dimension);
  const int64_t inner = count_of({sizes.begin() + at + 1, sizes.end()});
  const int64_t rows = count_of({sizes.begin(), sizes.begin() + at});
  // As rows of neighbours: the distance of rows, or none.
  const auto pitch_of = [&](const Tensor& tensor) -> std::optional<int64_t> {
    int64_t next = 1;
    for (size_t d = tensor.sizes.size(); d-- > dimension;) {
      if (tensor.sizes[d] != 1 && tensor.strides[d] != next) return {};
      next *= tensor.sizes[d];
    }
    std::optional<int64_t> pitch;
    for (size_t d = dimension; d-- > 0;) {
      if (tensor.sizes[d] == 1) continue;
      if (!pitch) pitch = next = tensor.strides[d];
      if (tensor.strides[d] != next) return {};
      next *= tensor.sizes[d];
    }
    return pitch.value_or(next);
  };
  Moves moves(target);
  std::vector<Moves::Piece> pieces;
  const std::optional<int64_t> to_pitch = pitch_of(to);
  const bool is_row = to_pitch && *to_pitch >= 0;
  int64_t begin = 0;
  for (const Tensor& input : inputs) {
    std::vector<int64_t> whole = input.sizes;
    require(whole.size() == sizes.size(), "tensors of different fields of dimensions");
    const int64_t length = whole[dimension];
    whole[dimension] = sizes[dimension];
    require(whole == sizes, "tensors that do not fit beside each other");
    if (length == 0 || rows * inner == 0) continue;
    const std::optional<int64_t> pitch = pitch_of(input);
    if (is_row && pitch && *pitch >= 0) {
      pieces.push_back({input.address, length * inner, *pitch, begin * inner});
    } else {
      char* const address = static_cast<char*>(to.address) +
                            begin * to.strides[dimension] * static_cast<int64_t>(bytes);
      moves.copy(space_of(bytes, {address, input.sizes, to.strides}, input, true), {address},
                 {input.address});
    }
    begin += length;
  }
  require(rows * inner == 0 || begin == sizes[dimension],
          "another size than all inputs have together");
  if (!pieces.empty()) moves.cat(bytes, to.address, rows, to_pitch.value_or(0), std::move(pieces));
  return moves.take();
}

}  // namespace hologram::gpu

#include "gpu/moves.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "atlas/error.h"
#include "gpu/dialect/moves_limits.h"

namespace hologram::gpu {
namespace {

static_assert(HG_INDEX_RECORD == kRecordWords);
static_assert(static_cast<unsigned>(Pad::constant) == HG_PAD_CONSTANT &&
              static_cast<unsigned>(Pad::reflect) == HG_PAD_REFLECT &&
              static_cast<unsigned>(Pad::replicate) == HG_PAD_REPLICATE &&
              static_cast<unsigned>(Pad::circular) == HG_PAD_CIRCULAR);

// ---- kernels ----

// A kernel that is written in moves.h as HG_MOVE_<macro>(name, types, numbers), once for each of
// some types, and for numbers of 32 and of 64 bits.
enum class Types : uint8_t { none, elements, casts, sums };
struct MoveKernel {
  const char* name;
  const char* macro;
  Types types;
};
constexpr MoveKernel kMoveKernels[] = {
    {"copy", "COPY", Types::elements},
    {"cast", "CAST", Types::casts},
    {"transpose", "TRANSPOSE", Types::elements},
    {"fill", "FILL", Types::elements},
    {"masked_fill", "MASKED_FILL", Types::elements},
    {"pad", "PAD", Types::elements},
    {"cat", "CAT", Types::elements},
    {"take", "TAKE", Types::elements},
    {"put", "PUT", Types::elements},
    {"claim", "CLAIM", Types::none},
    {"put_claimed", "PUT_CLAIMED", Types::elements},
    {"add", "ADD", Types::sums},
};

// To a type, and from which one where that is not the same.
struct TypePair {
  const char* to;
  const char* from;
};
std::span<const TypePair> pairs_of(Types types) {
  static constexpr TypePair kElements[] = {
      {"u8", ""}, {"u16", ""}, {"u32", ""}, {"u64", ""}, {"u128", ""}};
  static constexpr TypePair kCasts[] = {
      {"f32", "f16"}, {"f32", "bf16"}, {"f16", "f32"}, {"bf16", "f32"}};
  // Those of integers are all modulo 2^n, so signs do not matter.
  static constexpr TypePair kSums[] = {{"b8", "b8"},     {"u8", "u8"},   {"u16", "u16"},
                                       {"u32", "u32"},   {"u64", "u64"}, {"f16", "f16"},
                                       {"bf16", "bf16"}, {"f32", "f32"}, {"f32", "f16"},
                                       {"f32", "bf16"},  {"f64", "f64"}};
  static constexpr TypePair kNone[] = {{"", ""}};
  switch (types) {
    case Types::none: return kNone;
    case Types::elements: return kElements;
    case Types::casts: return kCasts;
    case Types::sums: return kSums;
  }
  return {};
}

std::string name_of(const std::string& row, const std::string& types, bool wide) {
  return "hg_" + row + (types.empty() ? "" : "_" + types) + (wide ? "_wide" : "");
}

Kernel make_kernel(const MoveKernel& row, const TypePair& pair, bool wide) {
  const bool has_from = *pair.from != '\0';
  std::string types = pair.to;
  if (has_from && std::strcmp(pair.from, pair.to) != 0) types += std::string("_of_") + pair.from;
  Kernel kernel;
  kernel.name = name_of(row.name, types, wide);
  kernel.needs_f64 = std::strcmp(pair.to, "f64") == 0;
  std::string line = std::string("HG_MOVE_") + row.macro + "(" + kernel.name;
  if (!types.empty()) line += std::string(", hg_") + pair.to;
  if (has_from) line += std::string(", hg_") + pair.from;
  line += std::string(", ") + (wide ? "hg_i64" : "hg_i32") + ")\n";
  if (kernel.needs_f64) line = "#if HG_HAS_F64\n" + line + "#endif\n";
  kernel.text = "#include \"moves.h\"\n" + line;
  return kernel;
}

// By name; never gone, for launches point to them.
const std::map<std::string, Kernel>& all_kernels() {
  static const auto& all = *new std::map<std::string, Kernel>([] {
    std::map<std::string, Kernel> kernels;
    for (const MoveKernel& row : kMoveKernels) {
      for (const TypePair& pair : pairs_of(row.types)) {
        for (const bool wide : {false, true}) {
          Kernel kernel = make_kernel(row, pair, wide);
          const std::string name = kernel.name;
          kernels[name] = std::move(kernel);
        }
      }
    }
    return kernels;
  }());
  return all;
}

const char* element_type(size_t bytes) {
  switch (bytes) {
    case 1: return "u8";
    case 2: return "u16";
    case 4: return "u32";
    case 8: return "u64";
    case 16: return "u128";
    default: throw Error("an element of " + std::to_string(bytes) + " bytes");
  }
}

// ---- spaces ----

int64_t divided_up(int64_t n, int64_t by) {
  return (n + by - 1) / by;
}

void require(bool holds, const char* why) {
  if (!holds) throw Error(why);
}
void require_same(const Tensor& x, const Tensor& y) {
  require(x.sizes == y.sizes, "tensors of different sizes");
}
int64_t count_of(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

// A dimension, and the stride of each operand along it.
constexpr size_t kIndexOperands = 4;  // after to, from, the position and the claim
constexpr size_t kMostOperands = kIndexOperands + HG_MOVE_INDICES;
struct Dimension {
  int64_t size;
  std::array<int64_t, kMostOperands> stride{};
};

// The points of a launch. Of its operands the first `data` ones hold what is moved, their elements
// having `bytes`; strides of others are in elements of their own.
struct Space {
  std::vector<Dimension> dimensions;
  size_t operands = 0, data = 0;
  size_t bytes = 0;

  int64_t count() const {
    int64_t count = 1;
    for (const Dimension& its : dimensions) count *= its.size;
    return count;
  }
  // Dimensions with a stride for each operand.
  void add(int64_t size, std::initializer_list<int64_t> strides) {
    Dimension& its = dimensions.emplace_back(Dimension{size});
    std::copy(strides.begin(), strides.end(), its.stride.begin());
  }
  void drop_ones() {
    std::erase_if(dimensions, [](const Dimension& its) { return its.size == 1; });
  }
  // So that a step to the next point is a short one of the first operand. Dimensions along which it
  // stays where it is come first: what it writes there, an index says.
  void sort() {
    const auto step = [](const Dimension& its) {
      return its.stride[0] == 0 ? INT64_MAX : std::abs(its.stride[0]);
    };
    std::ranges::stable_sort(dimensions, std::ranges::greater{}, step);
  }
  bool joins(const Dimension& x, const Dimension& y) const {
    for (size_t i = 0; i < operands; ++i) {
      if (x.stride[i] != y.stride[i] * y.size) return false;
    }
    return true;
  }
  void join() {
    size_t last = 0;
    for (size_t d = 1; d < dimensions.size(); ++d) {
      if (joins(dimensions[last], dimensions[d])) {
        const int64_t size = dimensions[last].size * dimensions[d].size;
        dimensions[last] = dimensions[d];
        dimensions[last].size = size;
      } else {
        dimensions[++last] = dimensions[d];
      }
    }
    if (!dimensions.empty()) dimensions.resize(last + 1);
  }
  void simplify() {
    drop_ones();
    sort();
    join();
  }
  // Elements in parts, of which each is that of a new dimension.
  void divide(int64_t parts) {
    if (parts == 1) return;
    for (Dimension& its : dimensions) {
      for (size_t i = 0; i < data; ++i) its.stride[i] *= parts;
    }
    Dimension& last = dimensions.emplace_back(Dimension{parts});
    for (size_t i = 0; i < data; ++i) last.stride[i] = 1;
    bytes /= static_cast<size_t>(parts);
  }
  // Whether `parts` neighbours can be one element.
  bool can_unite(int64_t parts) const {
    if (dimensions.empty()) return false;
    const Dimension& last = dimensions.back();
    if (last.size % parts != 0) return false;
    for (size_t i = 0; i < operands; ++i) {
      if (last.stride[i] != (i < data ? 1 : 0)) return false;
      if (i >= data) continue;
      for (size_t d = 0; d + 1 < dimensions.size(); ++d) {
        if (dimensions[d].stride[i] % parts != 0) return false;
      }
    }
    return true;
  }
  void unite(int64_t parts) {
    for (size_t d = 0; d + 1 < dimensions.size(); ++d) {
      for (size_t i = 0; i < data; ++i) dimensions[d].stride[i] /= parts;
    }
    dimensions.back().size /= parts;
    bytes *= static_cast<size_t>(parts);
    if (dimensions.back().size == 1) dimensions.pop_back();
  }
};

size_t alignment_of(std::initializer_list<const void*> addresses) {
  uintptr_t bits = 16;
  for (const void* address : addresses) bits |= reinterpret_cast<uintptr_t>(address);
  return size_t{1} << std::countr_zero(bits);
}

// Of a tensor of indices: the size of the dimension that they are of, and the strides along it.
struct Along {
  int64_t size, to, from;
  bool wraps;
};

// ---- launches ----

// The parameters of a launch, one after another.
class Fields {
 public:
  explicit Fields(bool wide) : bytes_(wide ? 8 : 4) {}
  void add(int64_t number) {
    const auto* const from = reinterpret_cast<const std::byte*>(&number);  // of little endian
    all_.insert(all_.end(), from, from + bytes_);
  }
  // Of each of `most` dimensions, where there are so many.
  template <class F>
  void add_each(size_t count, size_t most, int64_t rest, F&& f) {
    for (size_t i = 0; i < most; ++i) add(i < count ? f(i) : rest);
  }
  void add_pattern(std::span<const std::byte, 16> pattern) {
    all_.insert(all_.end(), pattern.begin(), pattern.end());
  }
  void add_space(const Space& space) {
    add(space.count());
    add(static_cast<int64_t>(std::max<size_t>(space.dimensions.size(), 1)));
    add_each(space.dimensions.size(), HG_MOVE_RANK, 1,
             [&](size_t d) { return space.dimensions[d].size; });
  }
  void add_strides(const Space& space, size_t operand) {
    add_each(space.dimensions.size(), HG_MOVE_RANK, 0,
             [&](size_t d) { return space.dimensions[d].stride[operand]; });
  }
  std::vector<std::byte> take() { return std::move(all_); }

 private:
  const size_t bytes_;
  std::vector<std::byte> all_;
};

class Moves {
 public:
  explicit Moves(const Target& target) : target_(target) {}
  Launches take() { return std::move(result_); }

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
  // Of elements of different dtypes.
  void cast(Space space, const char* types, Argument to, Argument from) {
    space.simplify();
    copy_as("cast", types, space, to, from);
  }

  // "fill", or "masked_fill" with a mask behind what is filled.
  void fill(const char* name, Space space, std::vector<Argument> arguments, const void* element) {
    const auto pattern = pattern_of(space.bytes, element);
    prepare(space, {arguments.front().address});
    const bool wide = is_wide(space);
    Fields fields(wide);
    fields.add_pattern(pattern);
    fields.add_space(space);
    fields.add_strides(space, 0);
    fields.add_strides(space, 1);
    spread(name, element_type(space.bytes), wide, space.count(), std::move(arguments), fields);
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
    fields.add_space(space);
    fields.add_strides(space, 0);
    fields.add_strides(space, 1);
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

  Argument scratch(int64_t count, size_t bytes) {
    const Argument its{nullptr, result_.scratch_bytes};
    const size_t size = static_cast<size_t>(count) * bytes;
    result_.scratch_bytes += (size + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
    return its;
  }

 private:
  struct Walk {
    int64_t outer = 0, lines = 0, owners = 1, walk = 0;
    std::optional<int64_t> left_out;
  };

  // Elements as wide as all addresses and strides allow, also those along which indices move, and
  // dimensions as few.
  void prepare(Space& space, std::initializer_list<const void*> addresses) {
    std::vector<Along> none;
    prepare(space, addresses, none);
  }
  void prepare(Space& space, std::initializer_list<const void*> addresses,
               std::vector<Along>& along) {
    const size_t alignment = alignment_of(addresses);
    const auto parts_of = static_cast<int64_t>(space.bytes / std::min(alignment, space.bytes));
    space.divide(parts_of);
    for (Along& its : along) {
      its.to *= parts_of;
      its.from *= parts_of;
    }
    space.simplify();
    for (int64_t parts = 16 / static_cast<int64_t>(space.bytes); parts > 1; parts /= 2) {
      if (!space.can_unite(parts) || space.bytes * static_cast<size_t>(parts) > alignment) continue;
      const bool fits = std::ranges::all_of(
          along, [&](const Along& its) { return its.to % parts == 0 && its.from % parts == 0; });
      if (!fits) continue;
      space.unite(parts);
      for (Along& its : along) {
        its.to /= parts;
        its.from /= parts;
      }
      break;
    }
    require(space.dimensions.size() <= HG_MOVE_RANK, "a space of too many dimensions");
  }

  // A pattern of 16 bytes, of which each element is one.
  static std::array<std::byte, 16> pattern_of(size_t bytes, const void* element) {
    std::array<std::byte, 16> pattern{};
    if (element == nullptr) return pattern;
    for (size_t i = 0; i < 16; i += bytes) std::memcpy(pattern.data() + i, element, bytes);
    return pattern;
  }

  bool is_wide(const Space& space, const std::vector<Along>& along = {}) const {
    if (space.count() > target_.most_narrow) return true;
    for (size_t i = 0; i < space.operands; ++i) {
      int64_t reach = 0;
      for (const Dimension& its : space.dimensions) reach += std::abs(its.stride[i]) * its.size;
      for (const Along& its : along) {
        if (i == 0) reach += std::abs(its.to) * its.size;
        if (i == 1) reach += std::abs(its.from) * its.size;
      }
      if (reach > target_.most_narrow) return true;
    }
    return std::ranges::any_of(along,
                               [&](const Along& its) { return its.size > target_.most_narrow; });
  }

  void add(const char* name, const char* types, bool wide, int64_t blocks, unsigned threads,
           std::vector<Argument> arguments, Fields& fields) {
    const Kernel& kernel = all_kernels().at(name_of(name, types, wide));
    require(target_.has_f64 || !kernel.needs_f64, "the device has no f64");
    require(blocks <= INT32_MAX, "a launch of too many blocks");
    result_.list.push_back(
        {&kernel, static_cast<uint32_t>(blocks), threads, std::move(arguments), fields.take()});
  }
  unsigned block_of(int64_t threads) const {
    const int64_t warps = divided_up(threads, kWarp);
    return kWarp * static_cast<unsigned>(std::min<int64_t>(warps, target_.threads / kWarp));
  }
  // A thread for HG_MOVE_EACH points.
  void spread(const char* name, const char* types, bool wide, int64_t count,
              std::vector<Argument> arguments, Fields& fields) {
    const unsigned block = block_of(divided_up(count, HG_MOVE_EACH));
    add(name, types, wide, divided_up(count, int64_t{block} * HG_MOVE_EACH), block,
        std::move(arguments), fields);
  }

  void copy_as(const char* name, const char* types, const Space& space, Argument to,
               Argument from) {
    require(space.dimensions.size() <= HG_MOVE_RANK, "a copy of too many dimensions");
    const bool wide = is_wide(space);
    Fields fields(wide);
    fields.add_space(space);
    fields.add_strides(space, 0);
    fields.add_strides(space, 1);
    spread(name, types, wide, space.count(), {to, from}, fields);
  }

  // The dimension along which `from` runs, where it is not the last, along which `to` does.
  std::optional<size_t> runs_along(const Space& space) const {
    constexpr int64_t kLeast = HG_MOVE_TILE / 2;
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
    Fields fields(wide);
    fields.add_space(space);
    fields.add_strides(space, 0);
    fields.add_strides(space, 1);
    int64_t blocks = 1;
    for (size_t d = 0; d < space.dimensions.size(); ++d) {
      const int64_t size = space.dimensions[d].size;
      blocks *= d + 2 < space.dimensions.size() ? size : divided_up(size, HG_MOVE_TILE);
    }
    add("transpose", element_type(space.bytes), wide, blocks, HG_MOVE_TILE * HG_MOVE_TILE_ROWS,
        {to, from}, fields);
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

  static std::vector<Argument> arguments_of(Argument to, Argument from,
                                            std::span<const Indices> indices, uint32_t* record) {
    std::vector<Argument> all = {to, from, {record}};
    for (const Indices& its : indices) all.push_back({its.tensor.address});
    all.resize(3 + HG_MOVE_INDICES, {record});
    return all;
  }
  static void add_indexed(Fields& fields, const Space& space, const std::vector<Along>& along,
                          std::span<const Indices> indices, const Walk& walk) {
    fields.add_space(space);
    for (size_t operand = 0; operand < kIndexOperands; ++operand)
      fields.add_strides(space, operand);
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

  const Target& target_;
  Launches result_;
};

Space space_of(size_t bytes, const Tensor& to) {
  Space space;
  space.operands = space.data = 1;
  space.bytes = bytes;
  for (size_t d = 0; d < to.sizes.size(); ++d) space.add(to.sizes[d], {to.strides[d]});
  return space;
}
Space space_of(size_t bytes, const Tensor& to, const Tensor& other, bool is_data) {
  Space space;
  space.operands = 2;
  space.data = is_data ? 2 : 1;
  space.bytes = bytes;
  for (size_t d = 0; d < to.sizes.size(); ++d) {
    space.add(to.sizes[d], {to.strides[d], other.strides[d]});
  }
  return space;
}

// ---- indices ----

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
  Moves moves(target);
  const auto how = writes ? &Moves::put_indexed : &Moves::take_indexed;
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
  Moves moves(target);
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

Launches copy(const Target& target, size_t bytes, const Tensor& to, const Tensor& from) {
  require_same(to, from);
  if (count_of(to.sizes) == 0) return {};
  Moves moves(target);
  moves.copy(space_of(bytes, to, from, true), {to.address}, {from.address});
  return moves.take();
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

std::vector<MoveKernels> move_kernels() {
  std::vector<MoveKernels> all;
  for (const MoveKernel& row : kMoveKernels) {
    MoveKernels& its = all.emplace_back(MoveKernels{row.name, {}});
    for (const TypePair& pair : pairs_of(row.types)) {
      for (const bool wide : {false, true}) {
        its.kernels.push_back(&all_kernels().at(make_kernel(row, pair, wide).name));
      }
    }
  }
  return all;
}

std::string moves_library_text() {
  std::vector<const Kernel*> all;
  for (const auto& [name, kernel] : all_kernels()) all.push_back(&kernel);
  return library_text(all);
}

}  // namespace hologram::gpu

#include "gpu/move_launches.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>

#include "atlas/error.h"

namespace hologram::gpu {
namespace {

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
  std::string line = std::string("HG_MOVE_") + row.macro + "(" + kernel.name;
  if (!types.empty()) line += std::string(", hg_") + pair.to;
  if (has_from) line += std::string(", hg_") + pair.from;
  line += std::string(", ") + (wide ? "hg_i64" : "hg_i32") + ")\n";
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

}  // namespace

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

void require(bool holds, const char* why) {
  if (!holds) throw Error(why);
}
int64_t count_of(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

int64_t Space::count() const {
  int64_t count = 1;
  for (const Dimension& its : dimensions) count *= its.size;
  return count;
}

void Space::add(int64_t size, std::initializer_list<int64_t> strides) {
  Dimension& its = dimensions.emplace_back(Dimension{size});
  std::copy(strides.begin(), strides.end(), its.stride.begin());
}

void Space::sort() {
  const auto step = [](const Dimension& its) {
    return its.stride[0] == 0 ? INT64_MAX : std::abs(its.stride[0]);
  };
  std::ranges::stable_sort(dimensions, std::ranges::greater{}, step);
}

bool Space::joins(const Dimension& x, const Dimension& y) const {
  for (size_t i = 0; i < operands; ++i) {
    if (x.stride[i] != y.stride[i] * y.size) return false;
  }
  return true;
}

void Space::join() {
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

void Space::simplify() {
  std::erase_if(dimensions, [](const Dimension& its) { return its.size == 1; });
  sort();
  join();
}

void Space::divide(int64_t parts) {
  if (parts == 1) return;
  for (Dimension& its : dimensions) {
    for (size_t i = 0; i < data; ++i) its.stride[i] *= parts;
  }
  Dimension& last = dimensions.emplace_back(Dimension{parts});
  for (size_t i = 0; i < data; ++i) last.stride[i] = 1;
  bytes /= static_cast<size_t>(parts);
}

bool Space::can_unite(int64_t parts) const {
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

void Space::unite(int64_t parts) {
  for (size_t d = 0; d + 1 < dimensions.size(); ++d) {
    for (size_t i = 0; i < data; ++i) dimensions[d].stride[i] /= parts;
  }
  dimensions.back().size /= parts;
  bytes *= static_cast<size_t>(parts);
  if (dimensions.back().size == 1) dimensions.pop_back();
}

size_t alignment_of(std::initializer_list<const void*> addresses) {
  uintptr_t bits = 16;
  for (const void* address : addresses) bits |= reinterpret_cast<uintptr_t>(address);
  return size_t{1} << std::countr_zero(bits);
}

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

// ---- launches ----

void Fields::add(int64_t number) {
  const auto* const from = reinterpret_cast<const std::byte*>(&number);  // of little endian
  all_.insert(all_.end(), from, from + bytes_);
}

void Fields::add_pattern(std::span<const std::byte, 16> pattern) {
  all_.insert(all_.end(), pattern.begin(), pattern.end());
}

void Fields::add_space(const Space& space, size_t operands) {
  add(space.count());
  add(static_cast<int64_t>(std::max<size_t>(space.dimensions.size(), 1)));
  add_each(space.dimensions.size(), HG_MOVE_RANK, 1,
           [&](size_t d) { return space.dimensions[d].size; });
  for (size_t operand = 0; operand < operands; ++operand) add_strides(space, operand);
}

void Fields::add_strides(const Space& space, size_t operand) {
  add_each(space.dimensions.size(), HG_MOVE_RANK, 0,
           [&](size_t d) { return space.dimensions[d].stride[operand]; });
}

void MoveLaunches::cast(Space space, const char* types, Argument to, Argument from) {
  space.simplify();
  copy_as("cast", types, space, to, from);
}

void MoveLaunches::fill(const char* name, Space space, std::vector<Argument> arguments,
                        const void* element) {
  const auto pattern = pattern_of(space.bytes, element);
  prepare(space, {arguments.front().address});
  const bool wide = is_wide(space);
  Fields fields(wide);
  fields.add_pattern(pattern);
  fields.add_space(space, 2);
  spread(name, element_type(space.bytes), wide, space.count(), std::move(arguments), fields);
}

Argument MoveLaunches::scratch(int64_t count, size_t bytes) {
  const Argument its{nullptr, result_.scratch_bytes};
  const size_t size = static_cast<size_t>(count) * bytes;
  result_.scratch_bytes += scratch_size(size);
  return its;
}

void MoveLaunches::prepare(Space& space, std::initializer_list<const void*> addresses) {
  std::vector<Along> none;
  prepare(space, addresses, none);
}

void MoveLaunches::prepare(Space& space, std::initializer_list<const void*> addresses,
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

std::array<std::byte, 16> MoveLaunches::pattern_of(size_t bytes, const void* element) {
  std::array<std::byte, 16> pattern{};
  if (element == nullptr) return pattern;
  for (size_t i = 0; i < 16; i += bytes) std::memcpy(pattern.data() + i, element, bytes);
  return pattern;
}

bool MoveLaunches::is_wide(const Space& space, const std::vector<Along>& along) const {
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

void MoveLaunches::add(const char* name, const char* types, bool wide, int64_t blocks,
                       unsigned threads, std::vector<Argument> arguments, Fields& fields) {
  const Kernel& kernel = all_kernels().at(name_of(name, types, wide));
  require(blocks <= INT32_MAX, "a launch of too many blocks");
  result_.list.push_back(
      {&kernel, static_cast<uint32_t>(blocks), threads, std::move(arguments), fields.take()});
}

unsigned MoveLaunches::block_of(int64_t threads) const {
  const int64_t warps = divided_up(threads, kWarp);
  return kWarp * static_cast<unsigned>(std::min<int64_t>(warps, target_.threads / kWarp));
}

void MoveLaunches::spread(const char* name, const char* types, bool wide, int64_t count,
                          std::vector<Argument> arguments, Fields& fields) {
  const unsigned block = block_of(divided_up(count, HG_MOVE_EACH));
  add(name, types, wide, divided_up(count, int64_t{block} * HG_MOVE_EACH), block,
      std::move(arguments), fields);
}

void MoveLaunches::copy_as(const char* name, const char* types, const Space& space, Argument to,
                           Argument from) {
  require(space.dimensions.size() <= HG_MOVE_RANK, "a copy of too many dimensions");
  const bool wide = is_wide(space);
  Fields fields(wide);
  fields.add_space(space, 2);
  spread(name, types, wide, space.count(), {to, from}, fields);
}

// ---- what there is to compile ----

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

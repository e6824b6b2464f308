// Moves on the emulator of test/gpu, with either prelude, against loops over single elements, bit
// for bit.
#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "atlas/error.h"
#include "check.h"
#include "gpu/indices.h"
#include "gpu/moves.h"
#include "gpu_emulated.h"
#include "groups.h"

using namespace hologram;
using namespace hologram::test;
using gpu::Indexing;
using gpu::Indices;
using gpu::Launches;
using gpu::Rounding;
using gpu::Target;
using gpu::Tensor;

namespace {

using Extents = std::vector<int64_t>;
constexpr size_t kBytes[] = {1, 2, 4, 8, 16};

int64_t count_of(const Extents& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

// All coordinates, row by row.
void for_each_point(const Extents& sizes, const std::function<void(const Extents&)>& f) {
  Extents c(sizes.size(), 0);
  for (int64_t n = count_of(sizes); n > 0; --n) {
    f(c);
    for (size_t d = sizes.size(); d-- > 0 && ++c[d] == sizes[d];) c[d] = 0;
  }
}

// A tensor in memory of its own, which holds just it.
struct Room {
  Memory memory;
  Tensor tensor;
  size_t bytes;

  char* at(const Extents& c) const { return at(memory, c); }
  // The same element in another copy of the memory.
  char* at(const Memory& of, const Extents& c) const {
    int64_t offset = 0;
    for (size_t d = 0; d < c.size(); ++d) offset += c[d] * tensor.strides[d];
    const auto first = static_cast<char*>(tensor.address) - memory.data;
    return of.data + first + offset * static_cast<int64_t>(bytes);
  }
};

Room room_of(size_t bytes, const Extents& sizes, const Extents& strides, bool begins,
             Random& random) {
  int64_t low = 0, high = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    (strides[d] < 0 ? low : high) += strides[d] * (sizes[d] - 1);
  }
  const bool is_empty = count_of(sizes) == 0;
  Room room{Memory(is_empty ? 0 : static_cast<size_t>(high - low + 1) * bytes, begins),
            {nullptr, sizes, strides},
            bytes};
  for (size_t i = 0; i < room.memory.size; ++i) room.memory.data[i] = static_cast<char>(random());
  room.tensor.address = room.memory.data - (is_empty ? 0 : low * static_cast<int64_t>(bytes));
  return room;
}
Extents dense(const Extents& sizes) {
  Extents strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0; stride *= sizes[d]) strides[d] = stride;
  return strides;
}
// Of any layout; `distinct`: no two elements are one. Half of them are dense.
Room room_of(size_t bytes, const Extents& sizes, bool distinct, Random& random) {
  const bool begins = random() % 2 == 0;
  if (random() % 2 == 0) return room_of(bytes, sizes, dense(sizes), begins, random);
  Extents strides;
  int64_t extent = 0, first = 0;
  random_strides(sizes, distinct, random, strides, extent, first);
  return room_of(bytes, sizes, strides, begins, random);
}

Extents random_sizes(size_t rank, Random& random, int64_t most = 9) {
  Extents sizes(rank);
  for (int64_t& size : sizes) {
    size = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most));
    if (random() % 40 == 0) size = 0;
    if (random() % 8 == 0 && rank < 4) size = 32;
  }
  return sizes;
}

// What launches are to make of the memory of a tensor, and of their record.
struct Case {
  std::string what;
  Launches launches;
  Room* to;
  Memory before, expected;
  std::optional<DType> dtype = {};  // of which all NaNs are one
  const uint32_t* record = nullptr;
  std::optional<gpu::BadIndex> bad = {};
};

// All kernels of moves, which take a while to compile.
const Emulated& kernels_of(const std::string& prelude) {
  static std::map<std::string, Emulated> all;
  auto at = all.find(prelude);
  if (at == all.end()) {
    std::vector<std::string> names;
    for (const gpu::MoveKernels& some : gpu::move_kernels()) {
      for (const gpu::Kernel* const kernel : some.kernels) names.push_back(kernel->name);
    }
    at = all.emplace(prelude, Emulated(gpu::moves_library_text(), names, prelude)).first;
  }
  return at->second;
}

// Cases that are run with both preludes, in several orders.
class Cases {
 public:
  explicit Cases(uint64_t seed) : random(seed), seed_(seed) {}

  Random random;

  Target target() {
    Target target = {.threads = 64, .enough_threads = 2048};
    if (random() % 4 == 0) target.most_narrow = 0;
    return target;
  }
  Room& add(Room room) { return rooms_.emplace_back(std::move(room)); }
  uint32_t* record() { return records_.emplace_back().data(); }

  // `reference` writes to a copy of the memory of `to` what the launches are to write there.
  Case& add(std::string what, Room& to, Launches launches,
            const std::function<void(const Memory&)>& reference) {
    Case& its =
        cases_.emplace_back(Case{std::move(what), std::move(launches), &to, to.memory, to.memory});
    reference(its.expected);
    its.what += ", number " + std::to_string(cases_.size()) + " of seed " + std::to_string(seed_);
    for (const gpu::Launch& launch : its.launches.list) its.what += " " + launch.kernel->name;
    return its;
  }

  // How many launches there were; 0 where one has failed.
  size_t check() {
    size_t count = 0;
    for (const std::string prelude : {"cuda", "metal"}) {
      for (Case& its : cases_) {
        for (const int order : {HG_ORDER_FORWARD, HG_ORDER_REVERSE, HG_ORDER_SEEDED}) {
          if (order != HG_ORDER_FORWARD && prelude == "cuda") continue;
          if (!check(its, prelude, order)) return 0;
        }
        count += its.launches.list.size();
      }
    }
    return count;
  }

 private:
  bool check(Case& its, const std::string& prelude, int order) {
    const std::string what = prelude + ", order " + std::to_string(order) + ", " + its.what;
    const Memory& memory = its.to->memory;
    std::memcpy(memory.data, its.before.data, memory.size);
    for (auto& record : records_) record.fill(0);
    kernels_of(prelude).run(its.launches, order);
    const int64_t differs = its.dtype ? first_difference(memory, its.expected, *its.dtype)
                                      : first_byte(memory, its.expected);
    std::memcpy(memory.data, its.before.data, memory.size);
    if (differs >= 0) {
      check::fail(__FILE__, __LINE__, what + " differs at " + std::to_string(differs));
      return false;
    }
    if (its.record == nullptr) return true;
    const auto bad = gpu::bad_index(std::span<const uint32_t, gpu::kRecordWords>(its.record, 4));
    const bool is_same = bad.has_value() == its.bad.has_value() &&
                         (!bad || (bad->position == its.bad->position &&
                                   bad->index == its.bad->index && bad->which == its.bad->which));
    if (!is_same) check::fail(__FILE__, __LINE__, what + " has another record");
    return is_same;
  }
  static int64_t first_byte(const Memory& a, const Memory& b) {
    for (size_t i = 0; i < a.size; ++i) {
      if (a.data[i] != b.data[i]) return static_cast<int64_t>(i);
    }
    return -1;
  }

  const uint64_t seed_;
  std::deque<Room> rooms_;
  std::deque<Case> cases_;
  std::deque<std::array<uint32_t, gpu::kRecordWords>> records_;
};

void add_copy(Cases& cases, Room& to, Room& from) {
  cases.add("copy", to, gpu::copy(cases.target(), to.bytes, to.tensor, from.tensor),
            [&](const Memory& expected) {
              for_each_point(to.tensor.sizes, [&](const Extents& c) {
                std::memcpy(to.at(expected, c), from.at(c), to.bytes);
              });
            });
}

// ---- indices ----

// A tensor of indices along a dimension of `size` elements; `bad`: a few are not in range.
Indices add_indices(Cases& cases, const Extents& sizes, int64_t size, bool wraps, bool bad) {
  Random& random = cases.random;
  const bool is_long = random() % 2 == 0;
  Room& room = cases.add(room_of(is_long ? 8 : 4, sizes, false, random));
  for (size_t i = 0; i < room.memory.size; i += room.bytes) {
    int64_t value = size == 0 ? 0 : static_cast<int64_t>(random() % static_cast<uint64_t>(size));
    if (wraps && random() % 2 == 0) value -= size;
    if (bad && random() % 5 == 0) value = random() % 2 == 0 ? size : -size - 1;
    if (bad && random() % 9 == 0) value = is_long ? INT64_MIN : INT32_MIN;
    std::memcpy(room.memory.data + i, &value, room.bytes);  // of little endian
  }
  return {room.tensor, is_long};
}
int64_t value_at(const Indices& indices, const Extents& c) {
  int64_t at = 0;
  for (size_t d = 0; d < c.size(); ++d) at += c[d] * indices.tensor.strides[d];
  if (indices.is_long) return static_cast<const int64_t*>(indices.tensor.address)[at];
  return static_cast<const int32_t*>(indices.tensor.address)[at];
}
// In range, or none.
std::optional<int64_t> place_of(int64_t value, int64_t size, bool wraps) {
  if (wraps && value < 0) value += size;
  if (value < 0 || value >= size) return {};
  return value;
}

// What torch's indexing is, point by point in the order of positions: where in what is indexed, and
// where in the whole, or none where an index is bad.
struct Expectation {
  Extents sizes;  // of what is indexed
  std::function<void(const std::function<void(const Extents&, const Extents*)>&)> for_each;
  std::optional<gpu::BadIndex> bad;
};
void note_bad(Expectation& reference, int64_t position, int64_t value, size_t which) {
  if (reference.bad) return;
  reference.bad =
      gpu::BadIndex{static_cast<uint64_t>(position), value, static_cast<unsigned>(which)};
}

Expectation expectation_of(const Extents& whole, const Indexing& indexing) {
  Expectation result;
  Extents before, after;
  std::vector<size_t> along, others_before, others_after;
  for (size_t d = 0; d < whole.size(); ++d) {
    if (d < indexing.along.size() && indexing.along[d]) along.push_back(d);
  }
  const bool adjacent = along.back() - along.front() + 1 == along.size();
  for (size_t d = 0; d < whole.size(); ++d) {
    if (d < indexing.along.size() && indexing.along[d]) continue;
    const bool is_before = adjacent && d < along.front();
    (is_before ? others_before : others_after).push_back(d);
    (is_before ? before : after).push_back(whole[d]);
  }
  const Extents sizes = indexing.along[along.front()]->tensor.sizes;
  result.sizes = before;
  result.sizes.insert(result.sizes.end(), sizes.begin(), sizes.end());
  result.sizes.insert(result.sizes.end(), after.begin(), after.end());
  Extents others = before;
  others.insert(others.end(), after.begin(), after.end());
  int64_t position = 0;
  for_each_point(sizes, [&](const Extents& c) {
    for (size_t k = 0; k < along.size() && count_of(others) != 0; ++k) {
      const int64_t value = value_at(*indexing.along[along[k]], c);
      if (place_of(value, whole[along[k]], indexing.wraps)) continue;
      note_bad(result, position, value, k);
      break;
    }
    ++position;
  });
  result.for_each = [=](const auto& f) {
    for_each_point(sizes, [&](const Extents& c) {
      Extents at(whole.size());
      bool is_good = true;
      for (const size_t d : along) {
        const auto place = place_of(value_at(*indexing.along[d], c), whole[d], indexing.wraps);
        is_good = is_good && place.has_value();
        at[d] = place.value_or(0);
      }
      for_each_point(others, [&](const Extents& o) {
        Extents of_indexed(o.begin(), o.begin() + static_cast<int64_t>(before.size()));
        of_indexed.insert(of_indexed.end(), c.begin(), c.end());
        of_indexed.insert(of_indexed.end(), o.begin() + static_cast<int64_t>(before.size()),
                          o.end());
        for (size_t i = 0; i < o.size(); ++i) {
          at[i < before.size() ? others_before[i] : others_after[i - before.size()]] = o[i];
        }
        f(of_indexed, is_good ? &at : nullptr);
      });
    });
  };
  return result;
}

Expectation gathered_expectation(const Extents& whole, size_t dimension, const Indices& indices) {
  Expectation result;
  result.sizes = indices.tensor.sizes;
  int64_t position = 0;
  for_each_point(result.sizes, [&](const Extents& c) {
    const int64_t value = value_at(indices, c);
    if (!place_of(value, whole[dimension], false)) note_bad(result, position, value, 0);
    ++position;
  });
  const int64_t size = whole[dimension];
  result.for_each = [=, sizes = result.sizes](const auto& f) {
    for_each_point(sizes, [&](const Extents& c) {
      const auto place = place_of(value_at(indices, c), size, false);
      Extents at = c;
      at[dimension] = place.value_or(0);
      f(c, place ? &at : nullptr);
    });
  };
  return result;
}

struct Indexed {
  Extents whole;
  Indexing indexing;
};
Indexed random_indexing(Cases& cases) {
  Random& random = cases.random;
  Indexed its;
  its.whole = random_sizes(1 + random() % 4, random);
  its.indexing.wraps = random() % 3 != 0;
  its.indexing.along.resize(its.whole.size());
  const Extents sizes = random_sizes(random() % 3, random);
  const bool bad = random() % 3 == 0;
  const size_t one = random() % its.whole.size();
  for (size_t d = 0; d < its.whole.size(); ++d) {
    if (d != one && random() % 3 != 0) continue;
    its.indexing.along[d] = add_indices(cases, sizes, its.whole[d], its.indexing.wraps, bad);
  }
  return its;
}
struct Gathered {
  Extents whole;
  size_t dimension;
  Indices indices;
};
Gathered random_gathered(Cases& cases) {
  Random& random = cases.random;
  Gathered its;
  its.whole = random_sizes(1 + random() % 4, random);
  its.dimension = random() % its.whole.size();
  Extents sizes = its.whole;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (d == its.dimension) sizes[d] = static_cast<int64_t>(random() % 20);
    if (random() % 3 == 0) sizes[d] = sizes[d] / 2;
  }
  its.indices = add_indices(cases, sizes, its.whole[its.dimension], false, random() % 3 == 0);
  return its;
}

// to = the whole's elements.
void add_take(Cases& cases, const char* what, Room& to, const Room& from, const Expectation& its,
              const uint32_t* record, Launches launches) {
  Case& one = cases.add(what, to, std::move(launches), [&](const Memory& expected) {
    its.for_each([&](const Extents& c, const Extents* at) {
      if (at != nullptr) std::memcpy(to.at(expected, c), from.at(*at), to.bytes);
    });
  });
  one.record = record;
  one.bad = its.bad;
}
// The whole's elements = from, the last one of several.
void add_put(Cases& cases, const char* what, Room& to, const Room& from, const Expectation& its,
             const uint32_t* record, Launches launches) {
  Case& one = cases.add(what, to, std::move(launches), [&](const Memory& expected) {
    its.for_each([&](const Extents& c, const Extents* at) {
      if (at != nullptr) std::memcpy(to.at(expected, *at), from.at(c), to.bytes);
    });
  });
  one.record = record;
  one.bad = its.bad;
}
template <class D>
D sum_of(D x, D y) {
  if constexpr (std::is_same_v<D, bool>) {
    return x || y;
  } else if constexpr (std::is_integral_v<D>) {
    return static_cast<D>(static_cast<uint64_t>(x) + static_cast<uint64_t>(y));
  } else if constexpr (std::is_same_v<D, float> || std::is_same_v<D, double>) {
    return x + y;
  } else {
    return convert<D>(convert<float>(x) + convert<float>(y));
  }
}
void add_sum(Cases& cases, const char* what, DType dtype, Rounding rounding, Room& to,
             const Room& from, const Expectation& its,
             const std::function<bool(const Extents&)>& out, const uint32_t* record,
             Launches launches) {
  Case& one = cases.add(what, to, std::move(launches), [&](const Memory& expected) {
    with_element(dtype, [&]<class D>() {
      // In f32 until the end, if it is rounded once.
      std::map<char*, float> sums;
      its.for_each([&](const Extents& c, const Extents* at) {
        if (at == nullptr || out(c)) return;
        char* const place = to.at(expected, *at);
        D x, y;
        std::memcpy(&x, place, sizeof x);
        std::memcpy(&y, from.at(c), sizeof y);
        if constexpr (sizeof(D) == 2 && !std::is_integral_v<D>) {
          if (rounding == Rounding::once) {
            const auto found = sums.try_emplace(place, convert<float>(x)).first;
            found->second += convert<float>(y);
            return;
          }
        }
        x = sum_of(x, y);
        std::memcpy(place, &x, sizeof x);
      });
      for (const auto& [place, sum] : sums) {
        const D x = convert<D>(sum);
        std::memcpy(place, &x, sizeof x);
      }
    });
  });
  one.dtype = dtype;
  one.record = record;
  one.bad = its.bad;
}

}  // namespace

TEST(gpu_moves_copy) {
  Cases cases(61);
  Random& random = cases.random;
  for (const size_t bytes : kBytes) {
    for (int i = 0; i < 24; ++i) {
      const Extents sizes = random_sizes(random() % 6, random);
      Room& to = cases.add(room_of(bytes, sizes, true, random));
      add_copy(cases, to, cases.add(room_of(bytes, sizes, false, random)));
    }
    // Large enough for several blocks, of bytes that are no whole number of vectors.
    for (const int64_t size : {1000, 1024, 1025}) {
      Room& to = cases.add(room_of(bytes, {size}, {1}, true, random));
      add_copy(cases, to, cases.add(room_of(bytes, {size}, {1}, size % 2 == 0, random)));
    }
    // Rows of both run along different dimensions: in tiles, some of them not full.
    for (const auto& [sizes, along] : {std::pair{Extents{67, 45}, 0},
                                       {{3, 32, 64}, 1},
                                       {{2, 70, 16}, 1},
                                       {{17, 3, 40}, 0},
                                       {{2, 70, 300}, 1},
                                       {{2, 33, 2, 20}, 1}}) {
      const auto d = static_cast<size_t>(along);
      Extents turned = sizes;
      std::swap(turned.back(), turned[d]);
      Extents strides = dense(turned);
      std::swap(strides.back(), strides[d]);
      Room& to = cases.add(room_of(bytes, sizes, dense(sizes), false, random));
      Room& from = cases.add(room_of(bytes, sizes, strides, false, random));
      add_copy(cases, to, from);
      const Launches launches = gpu::copy(cases.target(), bytes, to.tensor, from.tensor);
      CHECK(launches.list.front().kernel->name.starts_with("hg_transpose"));
    }
  }
  CHECK(cases.check() > 200);
}

TEST(gpu_moves_copy_is_as_wide_as_it_can_be) {
  Random random(62);
  const Target target;
  const auto name_of = [&](size_t bytes, const Extents& sizes, const Extents& strides,
                           int64_t begin) {
    Memory memory(4096, true), other(4096, true);
    const Tensor to{memory.data, sizes, strides}, from{other.data + begin, sizes, strides};
    return gpu::copy(target, bytes, to, from).list.front().kernel->name;
  };
  CHECK_EQ(name_of(1, {64}, {1}, 0), std::string("hg_copy_u128"));
  CHECK_EQ(name_of(1, {64}, {1}, 2), std::string("hg_copy_u16"));
  CHECK_EQ(name_of(4, {6}, {1}, 0), std::string("hg_copy_u64"));
  CHECK_EQ(name_of(2, {4, 8}, {24, 1}, 0), std::string("hg_copy_u128"));
  CHECK_EQ(name_of(2, {4, 8}, {12, 1}, 0), std::string("hg_copy_u64"));
  CHECK_EQ(name_of(2, {4, 8}, {1, 5}, 0), std::string("hg_copy_u16"));
  CHECK_EQ(name_of(16, {4, 2}, {4, 2}, 8), std::string("hg_copy_u64"));
  CHECK(gpu::copy(target, 4, {nullptr, {3, 0}, {1, 1}}, {nullptr, {3, 0}, {1, 1}}).list.empty());
  const Tensor x{nullptr, {3}, {1}}, y{nullptr, {4}, {1}};
  CHECK_THROWS(gpu::copy(target, 4, x, y), Error, "different sizes");
  const Extents nine(9, 2), strides = {1, 3, 9, 27, 81, 243, 729, 2187, 6561};
  const Tensor many{nullptr, nine, strides};
  CHECK_THROWS(gpu::copy(target, 4, many, many), Error, "too many dimensions");
}

TEST(gpu_moves_fill) {
  Cases cases(63);
  Random& random = cases.random;
  for (const size_t bytes : kBytes) {
    for (int i = 0; i < 24; ++i) {
      const Extents sizes = i == 0 ? Extents{1003} : random_sizes(random() % 5, random);
      Room& to = cases.add(room_of(bytes, sizes, true, random));
      std::array<char, 16> element;
      for (char& its : element) its = static_cast<char>(random());
      cases.add("fill", to, gpu::fill(cases.target(), bytes, to.tensor, element.data()),
                [&](const Memory& expected) {
                  for_each_point(sizes, [&](const Extents& c) {
                    std::memcpy(to.at(expected, c), element.data(), bytes);
                  });
                });
      Room& mask = cases.add(room_of(1, sizes, false, random));
      for (size_t k = 0; k < mask.memory.size; ++k) mask.memory.data[k] &= 1;
      cases.add("masked_fill", to,
                gpu::masked_fill(cases.target(), bytes, to.tensor, mask.tensor, element.data()),
                [&](const Memory& expected) {
                  for_each_point(sizes, [&](const Extents& c) {
                    if (*mask.at(c)) std::memcpy(to.at(expected, c), element.data(), bytes);
                  });
                });
    }
  }
  CHECK(cases.check() > 200);
}

TEST(gpu_moves_pad) {
  Cases cases(64);
  Random& random = cases.random;
  for (const gpu::Pad mode :
       {gpu::Pad::constant, gpu::Pad::reflect, gpu::Pad::replicate, gpu::Pad::circular}) {
    for (const size_t bytes : kBytes) {
      for (int i = 0; i < 16; ++i) {
        Extents inside = random_sizes(1 + random() % 4, random), sizes = inside,
                before(inside.size());
        for (size_t d = 0; d < inside.size(); ++d) {
          // Beside it there is as much as the mode can do.
          const int64_t most = mode == gpu::Pad::reflect ? inside[d] - 1 : inside[d];
          const auto side = [&] {
            if (random() % 3 == 0 || most <= 0) return int64_t{0};
            const auto wide = static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1));
            return random() % 4 == 0 && 2 * wide < inside[d] ? -wide : wide;
          };
          before[d] = side();
          sizes[d] += before[d] + side();
        }
        if (std::ranges::any_of(sizes, [](int64_t size) { return size < 0; })) continue;
        Room& to = cases.add(room_of(bytes, sizes, true, random));
        Room& from = cases.add(room_of(bytes, inside, false, random));
        std::array<char, 16> element;
        for (char& its : element) its = static_cast<char>(random());
        cases.add(
            "pad", to,
            gpu::pad(cases.target(), bytes, to.tensor, from.tensor, before, mode, element.data()),
            [&](const Memory& expected) {
              for_each_point(sizes, [&](const Extents& c) {
                Extents at = c;
                bool is_inside = true;
                for (size_t d = 0; d < at.size(); ++d) {
                  const int64_t n = inside[d];
                  int64_t& x = at[d];
                  x -= before[d];
                  if (x >= 0 && x < n) continue;
                  is_inside = mode != gpu::Pad::constant && is_inside;
                  if (mode == gpu::Pad::reflect) x = x < 0 ? -x : 2 * (n - 1) - x;
                  if (mode == gpu::Pad::replicate) x = std::clamp<int64_t>(x, 0, n - 1);
                  if (mode == gpu::Pad::circular) x = (x + n) % n;
                }
                std::memcpy(to.at(expected, c), is_inside ? from.at(at) : element.data(), bytes);
              });
            });
      }
    }
  }
  CHECK(cases.check() > 300);
  const Tensor to{nullptr, {9}, {1}}, from{nullptr, {3}, {1}};
  const Extents before = {3};
  for (const auto& [mode, why] :
       {std::pair{gpu::Pad::reflect, "as wide as its input"}, {gpu::Pad::circular, "wider"}}) {
    const Tensor wide{nullptr, {mode == gpu::Pad::reflect ? 9 : 10}, {1}};
    CHECK_THROWS(gpu::pad({}, 4, wide, from, before, mode, nullptr), Error, why);
  }
}

TEST(gpu_moves_cat) {
  Cases cases(65);
  Random& random = cases.random;
  for (const size_t bytes : kBytes) {
    for (int i = 0; i < 16; ++i) {
      Extents sizes = random_sizes(1 + random() % 3, random);
      const size_t dimension = random() % sizes.size();
      std::vector<Room*> rooms;
      std::vector<Tensor> inputs;
      const size_t count = i == 0 ? 60 : 1 + random() % 5;
      int64_t length = 0;
      const bool of_four = random() % 2 == 0;
      for (size_t k = 0; k < count; ++k) {
        Extents own = sizes;
        own[dimension] = static_cast<int64_t>(random() % 5) * (of_four ? 4 : 1);
        length += own[dimension];
        rooms.push_back(&cases.add(room_of(bytes, own, false, random)));
        inputs.push_back(rooms.back()->tensor);
      }
      sizes[dimension] = length;
      Room& to = cases.add(room_of(bytes, sizes, true, random));
      cases.add("cat", to, gpu::cat(cases.target(), bytes, to.tensor, inputs, dimension),
                [&](const Memory& expected) {
                  int64_t begin = 0;
                  for (const Room* const input : rooms) {
                    for_each_point(input->tensor.sizes, [&](const Extents& c) {
                      Extents at = c;
                      at[dimension] += begin;
                      std::memcpy(to.at(expected, at), input->at(c), bytes);
                    });
                    begin += input->tensor.sizes[dimension];
                  }
                });
    }
  }
  CHECK(cases.check() > 100);
}

TEST(gpu_moves_index) {
  Cases cases(66);
  Random& random = cases.random;
  int bad = 0;
  for (const size_t bytes : kBytes) {
    for (int i = 0; i < 40; ++i) {
      const Indexed its = random_indexing(cases);
      const Expectation reference = expectation_of(its.whole, its.indexing);
      bad += reference.bad.has_value();
      uint32_t* record = cases.record();
      Room& whole = cases.add(room_of(bytes, its.whole, true, random));
      Room& taken = cases.add(room_of(bytes, reference.sizes, true, random));
      add_take(cases, "index", taken, whole, reference, record,
               gpu::index(cases.target(), bytes, taken.tensor, whole.tensor, its.indexing, record));
      record = cases.record();
      Room& values = cases.add(room_of(bytes, reference.sizes, false, random));
      add_put(
          cases, "index_put", whole, values, reference, record,
          gpu::index_put(cases.target(), bytes, whole.tensor, its.indexing, values.tensor, record));
    }
  }
  CHECK(bad > 20);
  CHECK(cases.check() > 400);
}

TEST(gpu_moves_gather) {
  Cases cases(67);
  Random& random = cases.random;
  int bad = 0;
  for (const size_t bytes : kBytes) {
    for (int i = 0; i < 40; ++i) {
      const Gathered its = random_gathered(cases);
      const Expectation reference = gathered_expectation(its.whole, its.dimension, its.indices);
      bad += reference.bad.has_value();
      uint32_t* record = cases.record();
      Room& whole = cases.add(room_of(bytes, its.whole, true, random));
      Room& taken = cases.add(room_of(bytes, reference.sizes, true, random));
      add_take(cases, "gather", taken, whole, reference, record,
               gpu::gather(cases.target(), bytes, taken.tensor, whole.tensor, its.dimension,
                           its.indices, record));
      record = cases.record();
      Room& values = cases.add(room_of(bytes, reference.sizes, false, random));
      add_put(cases, "scatter", whole, values, reference, record,
              gpu::scatter(cases.target(), bytes, whole.tensor, its.dimension, its.indices,
                           values.tensor, record));
    }
  }
  CHECK(bad > 20);
  CHECK(cases.check() > 400);
}

// Many positions for few places, so that threads do not walk them all.
TEST(gpu_moves_last_of_many) {
  Cases cases(69);
  Random& random = cases.random;
  for (const size_t bytes : kBytes) {
    for (const int64_t columns : {1, 3, 8}) {
      Indexing indexing;
      indexing.along = {add_indices(cases, {300}, 40, true, columns == 3)};
      const Expectation of_rows = expectation_of({40, columns}, indexing);
      uint32_t* record = cases.record();
      Room& to = cases.add(room_of(bytes, {40, columns}, true, random));
      Room& rows = cases.add(room_of(bytes, {300, columns}, false, random));
      Launches launches =
          gpu::index_put(cases.target(), bytes, to.tensor, indexing, rows.tensor, record);
      CHECK_EQ(launches.list.size(), 3);
      add_put(cases, "index_put", to, rows, of_rows, record, std::move(launches));

      const Indices indices = add_indices(cases, {200, columns}, 7, false, columns == 3);
      const Expectation of_lines = gathered_expectation({7, columns}, 0, indices);
      record = cases.record();
      Room& lines = cases.add(room_of(bytes, {7, columns}, true, random));
      Room& from = cases.add(room_of(bytes, {200, columns}, false, random));
      add_put(cases, "scatter", lines, from, of_lines, record,
              gpu::scatter(cases.target(), bytes, lines.tensor, 0, indices, from.tensor, record));
    }
  }
  CHECK(cases.check() > 100);
}

TEST(gpu_moves_add) {
  Cases cases(68);
  Random& random = cases.random;
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    if (dtype == DType::c64 || dtype == DType::c128) continue;
    const size_t bytes = dtype_size(dtype);
    for (int i = 0; i < 20; ++i) {
      const Rounding rounding = random() % 2 == 0 ? Rounding::each : Rounding::once;
      const auto room = [&](const Extents& sizes, bool distinct) -> Room& {
        Room& its = cases.add(room_of(bytes, sizes, distinct, random));
        fill_random(its.memory, dtype, random);
        return its;
      };
      const Indexed its = random_indexing(cases);
      const Expectation reference = expectation_of(its.whole, its.indexing);
      uint32_t* record = cases.record();
      Room& whole = room(its.whole, true);
      Room& values = room(reference.sizes, false);
      const auto add = [&](std::optional<int64_t> left_out) {
        return gpu::index_add(cases.target(), dtype, rounding, whole.tensor, its.indexing,
                              values.tensor, record, left_out);
      };
      add_sum(
          cases, "index_add", dtype, rounding, whole, values, reference,
          [](const Extents&) { return false; }, record, add({}));

      const Gathered other = random_gathered(cases);
      const Expectation of_other =
          gathered_expectation(other.whole, other.dimension, other.indices);
      record = cases.record();
      Room& to = room(other.whole, true);
      Room& from = room(of_other.sizes, false);
      add_sum(
          cases, "scatter_add", dtype, rounding, to, from, of_other,
          [](const Extents&) { return false; }, record,
          gpu::scatter_add(cases.target(), dtype, rounding, to.tensor, other.dimension,
                           other.indices, from.tensor, record));

      // The gradient of an embedding: many rows for few places.
      Indexing rows;
      rows.wraps = false;
      rows.along = {add_indices(cases, {60}, 5, false, false)};
      const Expectation of_rows = expectation_of({5, 6}, rows);
      Room& grads = room({5, 6}, true);
      Room& grad = room({60, 6}, false);
      add_sum(
          cases, "embedding", dtype, Rounding::each, grads, grad, of_rows,
          [&](const Extents& c) { return value_at(*rows.along[0], {c[0]}) == 3; }, nullptr,
          gpu::index_add(cases.target(), dtype, Rounding::each, grads.tensor, rows, grad.tensor,
                         cases.record(), 3));
    }
  }
  CHECK(cases.check() > 700);
  const Indices indices = {{nullptr, {3}, {1}}, true};
  const Tensor x{nullptr, {3}, {1}};
  CHECK_THROWS(gpu::scatter_add({}, DType::c64, Rounding::each, x, 0, indices, x, nullptr), Error,
               "complex");
}

TEST(gpu_moves_texts_of_bad_indices) {
  CHECK_EQ(gpu::bad_index_text(5, 0, 2),
           std::string("index 5 is out of bounds for dimension 0 with size 2"));
  const std::array<uint32_t, gpu::kRecordWords> none{},
      some = {UINT32_MAX - 7, 0xfffffffe, 0xffffffff, 1};
  CHECK(!gpu::bad_index(none));
  const auto bad = gpu::bad_index(some);
  CHECK(bad && bad->position == 7 && bad->index == -2 && bad->which == 1);
}

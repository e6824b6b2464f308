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
    const bool has_f64 = prelude == "cuda";
    at = all.emplace(prelude,
                     Emulated(gpu::moves_library_text(), gpu::moves_kernel_names(has_f64), prelude))
             .first;
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
        const bool needs_f64 = std::ranges::any_of(
            its.launches.list, [](const gpu::Launch& one) { return one.kernel->needs_f64; });
        if (needs_f64 && prelude == "metal") continue;
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

TEST(gpu_moves_names) {
  const std::string text = gpu::moves_library_text();
  for (const std::string& name : gpu::moves_kernel_names(true)) {
    CHECK(text.find("(" + name + ",") != std::string::npos);
  }
  CHECK(gpu::moves_kernel_names(false).size() + 2 == gpu::moves_kernel_names(true).size());
}

#include "gpu/prepared.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "atlas/error.h"
#include "atlas/own_bindings.h"

namespace hologram::gpu {
namespace {

// Number n stands for itself, address n for a place where there is no memory, nor a planned one of
// another kind (gpu/pieces.cpp), with the low bits that it has.
constexpr uintptr_t kStandIns = uintptr_t{1} << 58;
constexpr int kStandInShift = 8;
constexpr uintptr_t kLowBits = kMostAlignment - 1;
static_assert(kMostAlignment <= uintptr_t{1} << kStandInShift);

uint8_t low_bits(const void* address) {
  return static_cast<uint8_t>(reinterpret_cast<uintptr_t>(address) & kLowBits);
}

// Calls f with each number that a plan depends on; false where that is false for one.
template <class F>
bool each_of_shape(const Binding& binding, size_t operands, F&& f) {
  const auto rank = static_cast<size_t>(binding.rank);
  if (!f(binding.count) || !f(binding.rank) || !f(binding.planes) || !f(binding.rows) ||
      !f(binding.columns)) {
    return false;
  }
  for (size_t d = 0; d < rank; ++d) {
    if (!f(binding.sizes[d])) return false;
  }
  for (size_t i = 0; i < rank * operands; ++i) {
    if (!f(binding.strides[i])) return false;
  }
  return true;
}

}  // namespace

Prepared::Prepared(const Group& group, std::span<const Binding> bindings, const Planner& planner)
    : operands_(group.operands.size()), immediates_(static_cast<size_t>(group.immediates)) {
  OwnBindings own(group, bindings);
  uintptr_t number = 0;
  own.translate([&](void* address) {
    low_bits_.push_back(low_bits(address));
    return reinterpret_cast<void*>(kStandIns + (number++ << kStandInShift) + low_bits_.back());
  });
  std::vector<uint64_t> numbers(bindings.size() * immediates_);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
  std::vector<Binding> stand_ins(own.bindings().begin(), own.bindings().end());
  for (size_t i = 0; i < stand_ins.size(); ++i) {
    stand_ins[i].immediates = numbers.data() + i * immediates_;
  }
  for (const Binding& binding : bindings) {
    each_of_shape(binding, operands_, [&](int64_t its) { return shape_.push_back(its), true; });
  }
  Launches planned = planner(stand_ins);
  scratch_bytes_ = planned.scratch_bytes;
  for (gpu::Launch& launch : planned.list) add(std::move(launch));
}

void Prepared::add(gpu::Launch&& launch) {
  Launch& its = launches_.emplace_back();
  const Kernel& kernel = *launch.kernel;
  its.kernel = &kernel;
  its.blocks = launch.blocks;
  its.threads = launch.threads;
  its.arguments = std::move(launch.arguments);
  for (size_t i = 0; i < its.arguments.size(); ++i) {
    has_counters_ = has_counters_ || its.arguments[i].is_counters;
    void* const address = its.arguments[i].address;
    if (address == nullptr) continue;
    its.addresses.push_back(address_place(reinterpret_cast<uintptr_t>(address), i));
  }
  its.parameters.bytes = std::move(launch.parameters);
  its.table.bytes = std::move(launch.table);
  its.table_offset = table_bytes_;
  table_bytes_ += scratch_size(its.table.bytes.size());
  if (its.table.bytes.empty()) return add_numbers(kernel, 0, its.parameters);
  // Of each row (Kernel::many).
  size_t row = (kernel.buffers.size() + 1) * sizeof(uint64_t);
  for (const Parameter& parameter : kernel.parameters) row += parameter.bytes;
  row = (row + sizeof(uint64_t) - 1) / sizeof(uint64_t) * sizeof(uint64_t);
  for (size_t at = 0; at < its.table.bytes.size(); at += row) {
    for (size_t i = 0; i < kernel.buffers.size(); ++i) {
      uint64_t address = 0;
      const size_t place = at + i * sizeof address;
      std::memcpy(&address, its.table.bytes.data() + place, sizeof address);
      its.table.addresses.push_back(address_place(address, place));
    }
    add_numbers(kernel, at + (kernel.buffers.size() + 1) * sizeof(uint64_t), its.table);
  }
}

// Of parameters that begin there.
void Prepared::add_numbers(const Kernel& kernel, size_t at, Bytes& to) const {
  for (const Parameter& parameter : kernel.parameters) {
    using Kind = Parameter::Kind;
    if (parameter.kind == Kind::immediate || parameter.kind == Kind::bits) {
      uint64_t number = 0;
      std::memcpy(&number, to.bytes.data() + at, parameter.bytes);  // of little endian
      to.numbers.push_back({static_cast<uint32_t>(at), parameter.bytes,
                            static_cast<uint16_t>(number % immediates_),
                            static_cast<uint32_t>(number / immediates_)});
    }
    at += parameter.bytes;
  }
}

Prepared::Place Prepared::address_place(uintptr_t stand_in, size_t at) const {
  const uintptr_t number = (stand_in - kStandIns) >> kStandInShift;
  if (stand_in < kStandIns || number >= low_bits_.size() ||
      (stand_in & ((uintptr_t{1} << kStandInShift) - 1)) != low_bits_[number]) {
    throw Error("a launch with an address that is none of its run");
  }
  return {static_cast<uint32_t>(at), sizeof(uint64_t), static_cast<uint16_t>(number % operands_),
          static_cast<uint32_t>(number / operands_)};
}

bool Prepared::fits(std::span<const Binding> bindings) const noexcept {
  if (bindings.size() * operands_ != low_bits_.size()) return false;
  const int64_t* known = shape_.data();
  const int64_t* const end = known + shape_.size();
  const uint8_t* low = low_bits_.data();
  for (const Binding& binding : bindings) {
    const bool same = each_of_shape(binding, operands_,
                                    [&](int64_t its) { return known != end && *known++ == its; });
    if (!same) return false;
    for (size_t i = 0; i < operands_; ++i) {
      if (*low++ != low_bits(binding.operands[i])) return false;
    }
  }
  return known == end;
}

void Prepared::Bytes::write(std::byte* to, std::span<const Binding> bindings) const noexcept {
  if (bytes.empty()) return;
  std::memcpy(to, bytes.data(), bytes.size());
  for (const Place& place : addresses) {
    const void* const its = address(place, bindings);
    std::memcpy(to + place.at, &its, sizeof its);
  }
  for (const Place& place : numbers) {
    std::memcpy(to + place.at, &bindings[place.member].immediates[place.index], place.bytes);
  }
}

}  // namespace hologram::gpu

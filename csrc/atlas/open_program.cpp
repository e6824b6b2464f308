#include "atlas/open_program.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "atlas/append.h"

namespace hologram {

void OpenProgram::reserve(size_t instructions) {
  program.reserve(instructions);
  dead.reserve(4 * instructions);
  immediates_.reserve(3 * instructions);
  capacity_ = instructions;
}

void OpenProgram::clear() noexcept {
  program.clear();
  indexes_.clear();
  immediates_.clear();
  dead.clear();
  bytes = 0;
  retired = 0;
  more_accesses_ = 0;
  comparisons = 0;
  origins.clear();
  checks.clear();
}

SlotState& OpenProgram::state_of_temporary(uint16_t number) {
  SlotState& state = temporaries_[number - size_t{1}];
  if (state.last_access < 0) {
    state.slot = static_cast<uint16_t>(program.slots.size());
    program.slots.push({true, true});
    program.blocks.push(nullptr);
    program.block_bytes.push(0);
    dead.push(true);
  }
  return state;
}

uint16_t OpenProgram::access_of(const Range& range, uint64_t number, bool written) {
  const View view{range.block, range.offset, range.dtype, Layout::dense};
  return access_of(view, {}, space_of(range.count), number, written);
}

void OpenProgram::append(CallOperands& call, uint64_t number) {
  Instruction instruction{};
  instruction.code = kCall;
  instruction.in = {static_cast<Source>(program.calls.size()), kNothing, kNothing};
  CallKey key{call.name, static_cast<uint32_t>(program.call_accesses.size()),
              static_cast<uint16_t>(call.reads.size()), static_cast<uint16_t>(call.writes.size())};
  for (const Range& range : call.reads) {
    program.call_accesses.push_back(access_of(range, number, false));
  }
  for (const Range& range : call.writes) {
    program.call_accesses.push_back(access_of(range, number, true));
  }
  instruction.out = program.call_accesses[key.first + key.reads];
  instruction.dtype = program.accesses[instruction.out].dtype;
  instruction.space = program.accesses[instruction.out].space;
  program.calls.push_back(key);
  program.bodies.push_back(std::move(call.body));
  program.code.push(instruction);
  more_accesses_ += instructions_of(call) - 1;
}

uint16_t OpenProgram::structure_of(const Dimensions& dimensions) {
  const Structure structure{space_of(dimensions.planes), space_of(dimensions.rows),
                            space_of(dimensions.columns),
                            space_of(dimensions.planes * dimensions.rows)};
  auto& structures = program.structures;
  if (structures.empty()) structures.push_back({});
  for (size_t i = structures.size(); i-- > 1;) {
    if (std::memcmp(&structures[i], &structure, sizeof structure) == 0) {
      return static_cast<uint16_t>(i);
    }
  }
  structures.push_back(structure);
  return static_cast<uint16_t>(structures.size() - 1);
}

uint16_t OpenProgram::shape_of(std::span<const int64_t> sizes) {
  auto& shapes = program.shapes;
  if (shapes.empty()) shapes.emplace_back();
  for (size_t i = shapes.size(); i-- > 1;) {
    if (std::ranges::equal(shapes[i].sizes, sizes)) return static_cast<uint16_t>(i);
  }
  shapes.push_back({{sizes.begin(), sizes.end()}});
  return static_cast<uint16_t>(shapes.size() - 1);
}

uint16_t OpenProgram::strided_access_of(const View& view, const Operands& operands, uint16_t space,
                                        uint64_t number, bool written) {
  SlotState& state = state_of(view, number);
  const uint64_t key = packed(state.slot, view.dtype, view.layout, space, shape_of(operands.sizes));
  int32_t i = state.last_access;
  if (state.index >= 0) [[unlikely]]
    i = last_access_at(state, view.offset);
  while (i >= 0) {
    const auto known = static_cast<size_t>(i);
    const Place& place = program.places[known];
    if (place.offset == view.offset && std::bit_cast<uint64_t>(program.accesses[known]) == key &&
        std::equal(view.strides, view.strides + operands.sizes.size(),
                   program.strides.data() + place.stride)) {
      if (written && !place.written) write(state, static_cast<uint16_t>(i));
      return static_cast<uint16_t>(i);
    }
    i = place.next;
  }
  return another_access(state, view, operands, key, written);
}

uint16_t OpenProgram::another_access(SlotState& state, const View& view, const Operands& operands,
                                     uint64_t key, bool written) {
  const auto access = program.accesses.size();
  program.accesses.push(std::bit_cast<AccessKey>(key));
  program.places.push({view.offset, state.last_access,
                       static_cast<uint32_t>(program.strides.size()) & 0x7fff'ffff, written});
  if (view.layout == Layout::strided) {
    for (size_t d = 0; d < operands.sizes.size(); ++d) program.strides.push_back(view.strides[d]);
  }
  if (state.index >= 0) [[unlikely]] {
    IndexedAccesses& index = indexes_[static_cast<size_t>(state.index)];
    add_to_index(index, static_cast<uint16_t>(access));
    if (written) write_in_index(index, static_cast<uint16_t>(access));
    return static_cast<uint16_t>(access);
  }
  int others = 0;
  for (int32_t i = state.last_access; i >= 0; ++others) {
    const auto other = static_cast<uint16_t>(i);
    if (written || program.places[other].written) compare(static_cast<uint16_t>(access), other);
    i = program.places[other].next;
  }
  state.last_access = static_cast<int32_t>(access);
  if (others == kIndexedFrom) [[unlikely]]
    index_accesses(state);
  return static_cast<uint16_t>(access);
}

// Notes that two accesses of a block, one of which is written, overlap, if they do.
void OpenProgram::compare(uint16_t access, uint16_t other) {
  ++comparisons;
  if (!may_overlap(program, access, other)) return;
  program.overlaps.push_back({std::max(access, other), std::min(access, other)});
}

// An access that has been read is written now. With those that are written it was compared before.
void OpenProgram::write(const SlotState& state, uint16_t access) {
  auto& places = program.places;
  if (state.index >= 0) [[unlikely]] {
    write_in_index(indexes_[static_cast<size_t>(state.index)], access);
  } else {
    for (int32_t i = state.last_access; i >= 0; i = places[static_cast<size_t>(i)].next) {
      const auto other = static_cast<uint16_t>(i);
      if (other != access && !places[other].written) compare(access, other);
    }
  }
  places[access].written = true;
}

// From here on the block's accesses are found by offset.
void OpenProgram::index_accesses(SlotState& state) {
  state.index = static_cast<int32_t>(indexes_.size());
  IndexedAccesses& index = indexes_.emplace_back();
  for (int32_t i = state.last_access; i >= 0;) {
    index.unsorted.push_back(static_cast<uint16_t>(i));
    i = program.places[static_cast<size_t>(i)].next;
  }
  std::ranges::reverse(index.unsorted);
  for (const uint16_t access : index.unsorted) {
    link(index, access);
    if (program.places[access].written) index.written.insert(program, access);
  }
}

void OpenProgram::link(IndexedAccesses& index, uint16_t access) {
  Place& place = program.places[access];
  const auto [found, fresh] = index.last_at.try_emplace(place.offset, access);
  place.next = fresh ? -1 : std::exchange(found->second, access);
}

// Compares a new access with those that are written.
void OpenProgram::add_to_index(IndexedAccesses& index, uint16_t access) {
  link(index, access);
  index.written.find(program, access, found_);
  for (const uint16_t other : found_) compare(access, other);
  index.unsorted.push_back(access);
}

// Compares an access with those that have only been read.
void OpenProgram::write_in_index(IndexedAccesses& index, uint16_t access) {
  for (const uint16_t other : index.unsorted) index.all.insert(program, other);
  index.unsorted.clear();
  index.all.find(program, access, found_);
  for (const uint16_t other : found_) {
    if (other != access && !program.places[other].written) compare(access, other);
  }
  index.written.insert(program, access);
}

int32_t OpenProgram::last_access_at(const SlotState& state, int64_t offset) const {
  const auto& last_at = indexes_[static_cast<size_t>(state.index)].last_at;
  const auto found = last_at.find(offset);
  return found != last_at.end() ? found->second : -1;
}

}  // namespace hologram

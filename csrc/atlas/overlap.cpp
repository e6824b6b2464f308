#include "atlas/overlap.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "atlas/block_state.h"

namespace hologram {
namespace {

struct Steps {
  const int64_t* sizes;
  const int64_t* strides;  // bytes
  size_t rank;
};

// None unless the access is strided.
Steps dimensions(const Program& program, uint16_t access) {
  const AccessKey& key = program.accesses[access];
  if (key.layout != Layout::strided) return {nullptr, nullptr, 0};
  const auto& sizes = program.shapes[key.shape].sizes;
  return {sizes.data(), program.strides.data() + program.places[access].stride, sizes.size()};
}

// Bytes from element 0 of an access to the end of its last one, leaving out the dimensions whose
// stride is a multiple of `modulus`: modulo that, the access lies within so many bytes.
int64_t span(const Program& program, uint16_t access, int64_t modulus) {
  const AccessKey& key = program.accesses[access];
  const auto size = static_cast<int64_t>(dtype_size(key.dtype));
  if (key.layout == Layout::dense) return program.counts[key.space] * size;
  const Steps dims = dimensions(program, access);
  int64_t last = 0;
  for (size_t i = 0; i < dims.rank; ++i) {
    if (dims.sizes[i] == 0) return 0;
    if (dims.strides[i] % modulus != 0) last += (dims.sizes[i] - 1) * dims.strides[i];
  }
  return last + size;
}

// The stride modulo which an access is a short interval, 0 if there is none.
int64_t pitch(const Program& program, uint16_t access) {
  const Steps dims = dimensions(program, access);
  int64_t most = 0;
  for (size_t i = 0; i < dims.rank; ++i) {
    if (dims.sizes[i] > 1) most = std::max(most, dims.strides[i]);
  }
  return most != 0 && span(program, access, most) <= most ? most : 0;
}

// Whether two accesses share no byte because they share none modulo `modulus`.
bool apart(const Program& program, uint16_t a, uint16_t b, int64_t modulus) {
  const int64_t mine = span(program, a, modulus), theirs = span(program, b, modulus);
  int64_t distance = (program.places[b].offset - program.places[a].offset) % modulus;
  if (distance < 0) distance += modulus;
  return distance >= mine && distance + theirs <= modulus;
}

}  // namespace

int64_t extent(const Program& program, uint16_t access) {
  return span(program, access, std::numeric_limits<int64_t>::max());
}

size_t strided_footprint(const Program& program, uint16_t access) {
  auto bytes = static_cast<int64_t>(dtype_size(program.accesses[access].dtype));
  const Steps dims = dimensions(program, access);
  for (size_t i = 0; i < dims.rank; ++i) {
    if (dims.strides[i] != 0) bytes *= dims.sizes[i];
  }
  return static_cast<size_t>(std::min(bytes, extent(program, access)));  // windows share some
}

size_t slot_bytes(const Program& program, uint16_t slot) {
  if (program.block_bytes[slot] != 0) return program.block_bytes[slot];
  std::vector<size_t> bytes;
  temporary_bytes(program, bytes);
  return bytes[slot];
}

void temporary_bytes(const Program& program, std::vector<size_t>& bytes) {
  bytes.assign(program.slots.size(), 0);
  for (size_t i = 0; i < program.accesses.size(); ++i) {
    const uint16_t slot = program.accesses[i].slot;
    if (program.block_bytes[slot] != 0) continue;
    const auto end = static_cast<size_t>(program.places[i].offset) +
                     footprint(program, static_cast<uint16_t>(i));
    bytes[slot] = std::max(bytes[slot], end);
  }
}

bool may_overlap(const Program& program, uint16_t a, uint16_t b) {
  const int64_t mine = program.places[a].offset, theirs = program.places[b].offset;
  if (mine >= theirs + extent(program, b) || theirs >= mine + extent(program, a)) return false;
  for (const uint16_t access : {a, b}) {
    const Steps dims = dimensions(program, access);
    for (size_t i = 0; i < dims.rank; ++i) {
      if (dims.sizes[i] > 1 && dims.strides[i] != 0 && apart(program, a, b, dims.strides[i])) {
        return false;
      }
    }
  }
  return true;
}

void AccessIndex::Intervals::insert(int64_t begin, int64_t length, uint16_t access) {
  by_length[std::bit_width(static_cast<uint64_t>(length))].emplace(begin, access);
}

void AccessIndex::Intervals::find(int64_t begin, int64_t length,
                                  std::vector<uint16_t>& found) const {
  for (const auto& [width, intervals] : by_length) {
    const int64_t longest = (int64_t{1} << width) - 1;
    const auto last = intervals.lower_bound(begin + length);
    for (auto it = intervals.upper_bound(begin - longest); it != last; ++it) {
      found.push_back(it->second);
    }
  }
}

void AccessIndex::insert(const Program& program, uint16_t access) {
  const int64_t offset = program.places[access].offset;
  if (const int64_t modulus = pitch(program, access); modulus != 0) {
    auto family = std::ranges::find(families_, modulus, &Family::modulus);
    if (family == families_.end() && families_.size() < kMostFamilies) {
      families_.push_back({modulus, {}});
      family = families_.end() - 1;
    }
    if (family != families_.end()) {
      family->residues.insert(offset % modulus, span(program, access, modulus), access);
      return;
    }
  }
  extents_.insert(offset, extent(program, access), access);
}

void AccessIndex::find(const Program& program, uint16_t access,
                       std::vector<uint16_t>& found) const {
  found.clear();
  const int64_t offset = program.places[access].offset;
  extents_.find(offset, extent(program, access), found);
  for (const auto& [modulus, residues] : families_) {
    const int64_t length = std::min(span(program, access, modulus), modulus);
    // Intervals begin in [0, modulus) and may go on beyond its end, where they are those of 0.
    for (const int64_t turn : {-modulus, int64_t{0}, modulus}) {
      residues.find(offset % modulus + turn, length, found);
    }
  }
  std::ranges::sort(found);
  const auto rest = std::ranges::unique(found);
  found.erase(rest.begin(), rest.end());
}

}  // namespace hologram

// Which bytes of a block accesses touch, and which accesses share some.
//
// Everything here errs on the safe side: two accesses that share a byte are found; two that do not
// may be reported where telling them apart would take long.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "atlas/program.h"

namespace hologram {

// Bytes from element 0 of an access to the end of its last one.
int64_t extent(const Program& program, uint16_t access);

// Bytes that an access touches. Elements that are broadcast count once.
size_t strided_footprint(const Program& program, uint16_t access);
inline size_t footprint(const Program& program, uint16_t access) {
  const AccessKey& key = program.accesses[access];
  if (key.layout == Layout::strided) return strided_footprint(program, access);
  return dtype_size(key.dtype) * static_cast<size_t>(program.counts[key.space]);
}

// The bytes of what a slot stands for: of its block, or of all that is accessed of a temporary.
size_t slot_bytes(const Program& program, uint16_t slot);
// The same of every temporary, by slot, in one pass over the accesses.
void temporary_bytes(const Program& program, std::vector<size_t>& bytes);

// Whether two accesses of one block may share a byte. Dense ones are compared exactly; strided ones
// by their extents, and modulo each of their strides: two columns of a matrix never overlap.
bool may_overlap(const Program& program, uint16_t a, uint16_t b);

// Accesses of one block, found by what they may overlap.
//
// An access that steps through memory in a large stride lies, modulo that stride, in one short
// interval. Accesses of equal stride are a family and kept by these intervals, all others by their
// extents. So many columns of one matrix are told apart without looking at each.
class AccessIndex {
 public:
  void insert(const Program& program, uint16_t access);
  // The accesses that may overlap one, and perhaps some that do not; in order, each once.
  void find(const Program& program, uint16_t access, std::vector<uint16_t>& found) const;

 private:
  // Half-open intervals by length, 2^k to 2^(k+1)-1, and then by where they begin: those that
  // overlap another one begin in a range that is hardly longer than the two.
  struct Intervals {
    std::map<int, std::multimap<int64_t, uint16_t>> by_length;
    void insert(int64_t begin, int64_t length, uint16_t access);
    void find(int64_t begin, int64_t length, std::vector<uint16_t>& found) const;
  };
  struct Family {
    int64_t modulus;
    Intervals residues;
  };
  static constexpr size_t kMostFamilies = 8;

  Intervals extents_;
  std::vector<Family> families_;
};

// The accesses of a block that has many, such as a flat buffer of parameters.
struct IndexedAccesses {
  std::unordered_map<int64_t, int32_t> last_at;  // by offset; Place::next leads on
  // `all` is only asked when an access is written for the first time: what is read only is not put
  // in order.
  std::vector<uint16_t> unsorted;
  AccessIndex all, written;
};

}  // namespace hologram

// A step of a group (gpu/steps.h) as a kernel in the dialect of csrc/gpu/dialect.
//
// The text depends on the step and the variant alone: the same kernel is always the same text, and
// its name is a hash of that. A group of compute type f64 needs HG_HAS_F64.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "atlas/op_info.h"
#include "gpu/steps.h"

namespace hologram::gpu {

// What a text may take for granted of the launches that it is for.
// Of threads, for a row. Of the tiles of a scan: a block for 32 rows (warp), or for a few. Of
// classes: the last block of a row joins what all have (block), or a kernel of its own does.
enum class Team : uint8_t { thread, warp, block };
struct Variant {
  bool wide = false;     // numbers of elements need 64 bits
  bool vectors = false;  // dense operands are aligned to 16 bytes, rows a whole number of vectors
  uint8_t rank = 0;      // of the space, where an operand is strided
  Team team = Team::warp;
  bool several = false;  // rows have several classes
  // A fold goes through partial results, `classes` always and `fold_down` of many rows: what is
  // emitted makes these, joins them, or makes fewer of them, which is both.
  bool parts = false, joins = false;
  bool many = false;  // one launch of `elements` for many tensors, without strided operands

  bool operator==(const Variant&) const = default;
};

inline constexpr unsigned kWarp = 32;          // threads
inline constexpr unsigned kMostThreads = 256;  // of a block that is not for a row
// Of a block whose threads have several vectors each, and at most of one whose warps have a row
// each: small ones, so that a processor has room for more of their threads, and for the next block
// as soon as a few are done.
inline constexpr unsigned kSmallBlock = 128;
// Of a block for a row: functions of f64 take twice the registers, and so do normal draws.
constexpr unsigned most_threads(ComputeType type) {
  return type == ComputeType::f64 ? 512 : 1024;
}
unsigned most_threads(const Step& step, ComputeType type);
constexpr unsigned accumulators_of(ComputeType type) {
  return static_cast<unsigned>(kFoldBytes) / (type == ComputeType::f32 ? 4 : 8);
}
constexpr int64_t class_elements(ComputeType type) {
  return kClassBytes / (type == ComputeType::f32 ? 4 : 8);
}

// Whether rows are scanned tile by tile, where a thread for each would read single elements.
bool is_tiled(const Step& step);
// Rows and columns of one. A block is a warp, which scans, and these threads, which move elements.
struct ScanTile {
  unsigned rows, columns;
};
ScanTile scan_tile(Team team, bool is_f32);  // the type of the running value
inline constexpr unsigned kTileThreads = 256;

// A field of the parameters.
struct Parameter {
  enum class Kind : uint8_t {
    threads,    // that have something to do; of elements, how many of these there are
    columns,    // of the space
    rows,       // in a plane of the domain
    parts,      // partial results of a value
    part_rows,  // from which one is made, or partial results that are joined to one
    joined,     // partial results after that
    size,       // of dimension `dimension` of the space
    stride,     // of operand `index` along it, in elements
    immediate,  // number `index`, a number of the compute type
    bits,       // the same as it is
  };
  Kind kind;
  uint8_t bytes = 4;
  uint16_t index = 0;
  uint8_t dimension = 0;

  bool operator==(const Parameter&) const = default;
};

// What a kernel's argument is.
struct Buffer {
  bool is_part = false;      // partial results, number `index`
  uint16_t index = 0;        // of Steps::operands
  bool is_counters = false;  // Argument::is_counters

  bool operator==(const Buffer&) const = default;
};

struct Kernel {
  std::string name;                   // hg_<16 hexadecimal digits>, or that of a cold kernel
  std::string text;                   // without the operations; none of a cold kernel
  std::vector<uint32_t> program;      // of a cold kernel (gpu/cold.h)
  std::vector<Op> ops;                // that it has
  std::vector<Buffer> buffers;        // the argument after them is the parameters
  std::vector<Parameter> parameters;  // one after another, as they are aligned
  unsigned vector = 1;                // elements that a thread of `elements` has side by side
  unsigned vectors = 1;               // of these that it has, as far apart as a block is wide
  unsigned threads = 0;               // of a block, at most; 0: of any
  unsigned enough = 0;                // elements of a block whose warps have a row each; 0: of any
  bool needs_f64 = false;
  // Of many tensors: its arguments are a table in device memory and the number of rows there, of 32
  // bits. A row has, for a tensor, the address of each buffer and the first of its blocks, 64 bits
  // each, and the parameters, up to a multiple of 8 bytes.
  bool many = false;

  // The place of a buffer or a parameter, which is added where it is new.
  size_t place_of(const Buffer& buffer) { return place_in(buffers, buffer); }
  size_t place_of(const Parameter& parameter) { return place_in(parameters, parameter); }

 private:
  template <class T>
  static size_t place_in(std::vector<T>& list, const T& its) {
    const auto at = std::ranges::find(list, its);
    const auto place = static_cast<size_t>(at - list.begin());
    if (at == list.end()) list.push_back(its);
    return place;
  }
};

Kernel emit(const Steps& steps, size_t step, const Variant& variant);

// Text to compile, of any kernels.
std::string library_text(std::span<const Kernel* const> kernels);
inline std::string library_text(const Kernel& kernel) {
  const Kernel* const one = &kernel;
  return library_text({&one, 1});
}

// Elements of a vector: 16 bytes of the narrowest operand, up to 32 of the widest. 1: there are no
// vectors.
unsigned vector_of(const Steps& steps, size_t step);

}  // namespace hologram::gpu

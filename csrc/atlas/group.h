// A fusion group: straight-line code over one iteration space, which a backend runs in one pass.
//
// The canonicaliser makes groups, a backend compiles one once (the plan cache keeps the result) and
// runs it with the addresses and numbers of each flush.
//
// A group computes in one type: f32, f64 or i64. A value in flight has its representation
// (b8 is 0 or 1 in it), rounded to the value's dtype: a bf16 value is a float that bf16 can hold.
// So the bits do not depend on whether a value passed through memory on its way.
//
// A space has up to three dimensions: planes, rows and columns. What an operand or a value has of
// them is its spread: an element for each element of the space, one for each row, one for each
// column. A reduction folds a value over the columns, the rows or both, into one of smaller spread.
//
// The order of a fold is part of what a group means. Along a row, element j goes to accumulator
// j mod kFoldBytes / size of a compute type's element; these meet in a tree, the upper half joining
// the lower one until one is left. A row that is longer than a class (kClassBytes of the compute
// type) is folded class by class. Down the rows, each chunk of kFoldRows is folded in order.
// Classes and chunks are joined two neighbours at a time, until one is left.
//
// A scan computes its elements in order, along each row or down each column of a plane: element j
// is op(element j - 1, x_j), the first one op(start, x_0), where the start is the identity, of a
// sum +0. The running value is an int64 of an i64 group, a float of a scan of a half dtype, else a
// double; each element is it rounded to the node's dtype, which is a half or the compute type's
// own.
//
// A draw is of a generator (atlas/random.h): what it gives depends on its immediates and on the
// number of each element in the space alone: an element for each.
//
// A position is a number of the compute type: of an f32 group one is exact up to 2^24. A pick is
// the sum over the row of where(position == b, a, +0), of whatever order: a -0 becomes +0, unless
// it is alone.
#pragma once

#include <cstdint>
#include <vector>

#include "atlas/dtype.h"
#include "atlas/op_info.h"
#include "atlas/random.h"

namespace hologram {

enum class ComputeType : uint8_t { f32, f64, i64 };

// Of what it computes in.
constexpr DType own_dtype(ComputeType type) {
  return type == ComputeType::f32 ? DType::f32 : type == ComputeType::f64 ? DType::f64 : DType::i64;
}

// The dimensions of a space in which elements differ, a bit each. Where there is one plane, its bit
// is that of the rows.
using Spread = uint8_t;
inline constexpr Spread kOne = 0;
inline constexpr Spread kPlanes = 1, kMiddle = 2;  // of three dimensions only
inline constexpr Spread kRows = 3;                 // one for each row of each plane
inline constexpr Spread kColumns = 4;
inline constexpr Spread kPlanesAndColumns = 5;
inline constexpr Spread kEach = 7;

// The dimensions of a space; one plane where there are two.
struct Dimensions {
  int64_t planes = 1, rows = 1, columns = 0;
};

constexpr int64_t spread_count(Spread spread, const Dimensions& dimensions) {
  return ((spread & kPlanes) != 0 ? dimensions.planes : 1) *
         ((spread & kMiddle) != 0 ? dimensions.rows : 1) *
         ((spread & kColumns) != 0 ? dimensions.columns : 1);
}

inline constexpr int64_t kFoldBytes = 512;
inline constexpr int64_t kClassBytes = 12'288;
inline constexpr int64_t kFoldRows = 16;

// Where the elements of an operand lie. The iteration space is row-major over `sizes`.
enum class Layout : uint8_t {
  dense,    // element i at address + i * size, counted in the dimensions of the operand's spread
  scalar,   // the same element for all (a broadcast 0-dim operand)
  strided,  // by the strides of the binding; loads only, or stores to distinct elements
};

struct Operand {
  DType dtype;
  Layout layout;
  // Operands of different areas share no memory. Within an area the memory of a store's operand is
  // that of another operand exactly, element for element, or shares nothing with it; that of two
  // stores is always disjoint. One area for all is right, several let stores happen earlier.
  uint16_t area = 0;
  Spread spread = kEach;  // of a dense operand
};

enum class NodeKind : uint8_t {
  load,       // a: operand. Converts the operand's dtype to the node's, as torch's Tensor.to does.
  immediate,  // a: index of the immediate; b: whether it is of bf16, and a number that bf16 has
  compute,    // op over values a, b, c (as many as the op has)
  cast,       // a: value of the same compute type; rounds it to the node's dtype
  store,      // a: value, b: operand. Converts as load does. Defines no value.
  fold,       // op over the elements of value a; b: spread of the result
  scan,  // op over the elements of value a up to each; b: kColumns, along rows, or kMiddle, down
  pick,  // of the elements a of each row that in the column b, a value of the row; 0 for none
  position,  // b: kColumns, its column, or kRows, its row in its plane. Of the compute type's dtype
  random,    // b: a Draw; a: the first of kDrawImmediates
};

// Raw bits, whatever the compute type: a generator's seed, the first counter, a range or 0.
inline constexpr uint16_t kDrawImmediates = 3;

// Node i defines value i. Values are used after their definition only. Every load reads what memory
// held before the group, whatever the order of nodes. A store may not go to a scalar operand.
// Nothing rounds an immediate: one of a narrow dtype that only arithmetic uses may be any number of
// the compute type. A NaN among them is the default one (its payload is zero).
// The spread of what is computed is that of its operands together; what is stored has at most the
// operand's. A fold over rows (one whose result has columns) may only be stored, as it is. So may a
// scan, to operands with an element for each of the space's, of its dtype or where it is of
// integers of any such.
struct Node {
  NodeKind kind;
  Op op;  // of compute
  DType dtype;
  uint16_t a = 0, b = 0, c = 0;
};

// How many values a node is made of: its a, b and c in this order.
inline int arity_of(const Node& node) {
  switch (node.kind) {
    case NodeKind::compute: return op_info(node.op).arity;
    case NodeKind::pick: return 2;
    case NodeKind::cast:
    case NodeKind::fold:
    case NodeKind::scan:
    case NodeKind::store: return 1;
    default: return 0;
  }
}

// Whether a node's value may only be stored, as it is.
inline bool is_only_stored(const Node& node) {
  return node.kind == NodeKind::scan || (node.kind == NodeKind::fold && node.b != kRows);
}

// Whether an operand of a dtype may be stored a scan of another.
inline bool takes_scan(DType to, DType scan) {
  return to == scan ||
         (scan == DType::i64 && (dtype_bit(to) & (kReal | dtype_bit(DType::b8))) == 0);
}

struct Group {
  ComputeType compute_type;
  std::vector<Operand> operands;
  std::vector<Node> nodes;
  int immediates = 0;
};

// Whether the space has dimensions.
inline bool is_structured(const Group& group) {
  for (const Operand& operand : group.operands) {
    if (operand.layout == Layout::dense && operand.spread != kEach) return true;
  }
  for (const Node& node : group.nodes) {
    switch (node.kind) {
      case NodeKind::fold:
      case NodeKind::scan:
      case NodeKind::pick:
      case NodeKind::position: return true;
      default: break;
    }
  }
  return false;
}

// What changes from flush to flush. The arrays are the caller's, for the time of the run.
struct Binding {
  void* const* operands = nullptr;  // address of element 0, one per operand
  // Bits of a float, double or int64_t by the compute type, or of a draw.
  const uint64_t* immediates = nullptr;
  int64_t count = 0;               // elements of the space, 0 allowed
  int rank = 0;                    // of the space; only read where an operand is strided
  const int64_t* sizes = nullptr;  // rank
  // Bytes, rank for each operand in order (also for those that are not strided).
  const int64_t* strides = nullptr;
  int64_t planes = 1, rows = 1, columns = 0;  // of a structured group
};

// Elements in memory of an operand that is not strided.
inline int64_t element_count(const Operand& operand, const Binding& binding) {
  if (operand.layout == Layout::scalar) return 1;
  if (operand.spread == kEach) return binding.count;
  return spread_count(operand.spread, {binding.planes, binding.rows, binding.columns});
}

}  // namespace hologram

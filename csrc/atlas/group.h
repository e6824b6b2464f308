// A fusion group: straight-line code over one iteration space, which a backend runs in one pass.
//
// The canonicaliser makes groups, a backend compiles one once (the plan cache keeps the result) and
// runs it with the addresses and numbers of each flush.
//
// A group computes in one type: f32, f64 or i64. A value in flight has its representation
// (b8 is 0 or 1 in it), rounded to the value's dtype: a bf16 value is a float that bf16 can hold.
// So the bits do not depend on whether a value passed through memory on its way.
#pragma once

#include <cstdint>
#include <vector>

#include "atlas/dtype.h"
#include "atlas/op_info.h"

namespace hologram {

enum class ComputeType : uint8_t { f32, f64, i64 };

// Where the elements of an operand lie. The iteration space is row-major over `sizes`.
enum class Layout : uint8_t {
  dense,    // element i of the space at address + i * size
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
};

enum class NodeKind : uint8_t {
  load,       // a: operand. Converts the operand's dtype to the node's, as torch's Tensor.to does.
  immediate,  // a: index of the immediate
  compute,    // op over values a, b, c (as many as the op has)
  cast,       // a: value of the same compute type; rounds it to the node's dtype
  store,      // a: value, b: operand. Converts as load does. Defines no value.
};

// Node i defines value i. Values are used after their definition only. Every load reads what memory
// held before the group, whatever the order of nodes. A store may not go to a scalar operand.
// Nothing rounds an immediate: one of a narrow dtype that only arithmetic uses may be any number of
// the compute type. A NaN among them is the default one (its payload is zero).
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
    case NodeKind::cast:
    case NodeKind::store: return 1;
    default: return 0;
  }
}

struct Group {
  ComputeType compute_type;
  std::vector<Operand> operands;
  std::vector<Node> nodes;
  int immediates = 0;
};

// What changes from flush to flush. The arrays are the caller's, for the time of the run.
struct Binding {
  void* const* operands = nullptr;       // address of element 0, one per operand
  const uint64_t* immediates = nullptr;  // bits of a float, double or int64_t by the compute type
  int64_t count = 0;                     // elements of the space, 0 allowed
  int rank = 0;                          // of the space; only read where an operand is strided
  const int64_t* sizes = nullptr;        // rank
  // Bytes, rank for each operand in order (also for those that are not strided).
  const int64_t* strides = nullptr;
};

}  // namespace hologram

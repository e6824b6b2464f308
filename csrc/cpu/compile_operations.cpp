// Operations of one, two and three operands, by the places of their operands.
#include <utility>

#include "cpu/group_compiler.h"

namespace hologram::cpu {

void GroupCompiler::compute(int v) {
  const Node& node = group_.nodes[v];
  const int n = op_info(node.op).arity;
  if (n == 1) {
    emit(node.a);
    release(node.a);
    push(kernels_.unary[index(node.op)]);
  } else if (n == 2) {
    binary(v);
  } else {
    ternary(node);
  }
}

Form GroupCompiler::form_of(Place place) {
  switch (place) {
    case Place::splat: return kSplat;
    case Place::bf16: return kMemoryBf16;
    case Place::f16: return kMemoryF16;
    default: return kMemory;
  }
}

// How two values that have places are read by one instruction, or -1.
int GroupCompiler::pair_of(int a, int b) const {
  const auto kind = [&](int v) {
    switch (values_[v].place) {
      case Place::memory: return 0;
      case Place::bf16: return 1;
      case Place::f16: return 2;
      case Place::splat: return 3;
      case Place::nowhere: break;
    }
    return 4;
  };
  const int x = kind(a), y = kind(b);
  if (x < 3 && x == y) return 3 * x;
  if (x < 3 && y == 3) return 3 * x + 1;
  if (x == 3 && y < 3) return 3 * y + 2;
  return -1;
}

// The pair of a product that its consumer can take in, its operands in the order of the form.
int GroupCompiler::product_pair(int v, int& x, int& y) const {
  const Node& node = group_.nodes[v];
  if (node.kind != NodeKind::compute || node.op != Op::mul || values_[v].uses != 1 ||
      has_place(v) || accumulator_ == v) {
    return -1;
  }
  x = node.a, y = node.b;
  if (has_place(x) && values_[x].place == Place::splat) std::swap(x, y);
  const int pair = pair_of(x, y);
  if (pair < 0 || pair % 3 == 2) return -1;
  if (pair / 3 == 1 && !(values_[x].clean && values_[y].clean)) return -1;
  const DType rounds[] = {own_, DType::bf16, DType::f16};
  return node.dtype == rounds[pair / 3] ? pair : -1;
}

// The pair of the node's second (or first) operand as a product beside the other one.
int GroupCompiler::joins_product(const Node& node, bool second, int& x, int& y) const {
  const int product = second ? node.b : node.a, other = second ? node.a : node.b;
  if (!is_arithmetic(node) || (has_place(other) && accumulator_ != other)) return -1;
  return product_pair(product, x, y);
}

// The accumulator and x * y in one instruction, where the node is that.
bool GroupCompiler::with_product(int v) {
  const Node& node = group_.nodes[v];
  if (node.a == node.b) return false;
  int x = 0, y = 0;
  for (const bool second : {true, false}) {
    const int product = second ? node.b : node.a, other = second ? node.a : node.b;
    if (joins_product(node, second, x, y) < 0) continue;
    emit(other);
    // What was emitted may have moved the product's operands.
    const int pair = product_pair(product, x, y);
    if (pair < 0) {
      spill(other);
      return false;
    }
    for (const int u : {x, y, product, other}) release(u);
    const auto row =
        static_cast<size_t>(arithmetic_index(node.op) + (second ? 0 : kArithmeticCount));
    push_arithmetic(v, kernels_.plain.with_product[row][pair],
                    kernels_.to_bf16.with_product[row][pair], values_[x].where, values_[y].where);
    return true;
  }
  return false;
}

// An arithmetic operation, which rounds its result where there is an instruction for that. Its
// operands have been released: their memory may be what the result is stored to.
void GroupCompiler::push_arithmetic(int v, AnyCode plain, AnyCode to_bf16, Reference x,
                                    Reference y) {
  const Node& node = group_.nodes[v];
  const bool joins = to_bf16 != nullptr && node.dtype == DType::bf16 && is_clean_unrounded(node) &&
                     !stored_at_once(v);
  values_[v].rounded = joins;
  push(joins ? to_bf16 : plain, x, y);
}

void GroupCompiler::binary(int v) {
  const Node& node = group_.nodes[v];
  const int a = node.a, b = node.b;
  if (with_product(v)) return;
  const auto finish = [&](int form, Reference where = {}) {
    release(a);
    release(b);
    const AnyCode to_bf16 =
        is_arithmetic(node) ? kernels_.binary_to_bf16[arithmetic_index(node.op)][form] : nullptr;
    push_arithmetic(v, kernels_.binary[index(node.op)][form], to_bf16, where);
  };
  if (is_arithmetic(node) && has_place(a) && has_place(b) && accumulator_ != a &&
      accumulator_ != b) {
    if (const int pair = pair_of(a, b); pair >= 0) {
      release(a);
      release(b);
      const int row = arithmetic_index(node.op);
      push_arithmetic(v, kernels_.plain.start[row][pair], kernels_.to_bf16.start[row][pair],
                      values_[a].where, values_[b].where);
      return;
    }
  }
  if (a == b) {
    emit(a, 2);
    finish(kSelf);
    return;
  }
  int first = a;  // the one that ends in the accumulator
  if (has_place(a) && has_place(b)) {
    if (accumulator_ == b || (accumulator_ != a && values_[a].place == Place::splat)) first = b;
  } else if (has_place(a)) {
    first = b;
  } else if (!has_place(b)) {
    // What the accumulator has is nowhere else.
    const int heavy = accumulator_ == a || accumulator_ == b ? accumulator_ : heavier(a, b);
    const int light = heavy == a ? b : a;
    emit(heavy);
    first = heavy;
    if (!has_place(light)) {  // or it was a part of the other
      spill(heavy);
      first = light;
    }
  }
  emit(first);
  const int other = first == a ? b : a;
  const int swapped = first == a ? 0 : static_cast<int>(kSwapped);
  finish(swapped + form_of(values_[other].place), values_[other].where);
}

Other GroupCompiler::other_of(Place place) {
  return place == Place::splat ? kFromSplat : place == Place::bf16 ? kFromBf16 : kFromMemory;
}

void GroupCompiler::ternary(const Node& node) {
  const int args[3] = {node.a, node.b, node.c};
  int last = -1;
  while (true) {
    // The heaviest first, what is in the accumulator already before it.
    const int next = heaviest_of(args, last);
    if (next < 0) break;
    if (last >= 0) spill_ternary(last);
    emit(next);
    last = next;
  }
  if (last < 0) {
    last = args[0];
    for (const int v : args) {
      if (accumulator_ == v) last = v;
    }
    if (accumulator_ != last && values_[last].place == Place::splat) {
      for (const int v : args) {
        if (values_[v].place != Place::splat) last = v;
      }
    }
    emit(last);
  }
  const int place = last == args[0] ? 0 : last == args[1] ? 1 : 2;
  int others[2], count = 0;
  for (int k = 0; k < 3; ++k) {
    if (k != place) others[count++] = args[k];
  }
  if (others[0] == last || others[1] == last) spill_ternary(last);
  const Value &y = values_[others[0]], &z = values_[others[1]];
  push(kernels_.ternary[index(node.op)][place][other_of(y.place)][other_of(z.place)], y.where,
       z.where);
  for (const int v : args) release(v);
}

// The accumulator's value gets a place that ternary operations can read.
void GroupCompiler::spill_ternary(int v) {
  Value& value = values_[v];
  if (value.place == Place::f16) {
    if (value.is_leaf) {
      reads_at(group_.nodes[v].a) -= value.uses;
      value.is_leaf = false;
    }
    value.place = Place::nowhere;
  }
  spill(v);
}

}  // namespace hologram::cpu

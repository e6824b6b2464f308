#include "atlas/algebra.h"
#include "atlas/op_table.h"

#include <cmath>
#include <utility>
#include <vector>

namespace hologram {
namespace {

// ---- exact rules ----

Special special_of(const Expression& e, uint16_t node) {
  if (e.nodes[node].kind != NodeKind::immediate) return Special::none;
  return e.program.specials[e.immediates[e.nodes[node].a]];
}

// Whether a node is the identity of an operation.
bool is_identity(const Expression& e, const OpInfo& info, uint16_t node) {
  if (!info.has_identity()) return false;
  // Where denormals are taken for zeros x * 1 makes a zero of one.
  if (e.program.float_mode != 0 && e.compute_type != ComputeType::i64) return false;
  const Special special = special_of(e, node);
  if (info.identity == 1) return special == Special::one;
  if (info.identity != 0) return false;
  if (e.compute_type == ComputeType::i64) return special == Special::zero;
  return special == (std::signbit(info.identity) ? Special::negative_zero : Special::zero);
}

// The operation under test: f is the row, x and y its operands.
struct Subject {
  Op op;
  const OpInfo& info;
  DType dtype;
  uint16_t x, y;
};

// Whether x is f(something), of the same dtype.
bool is_applied_twice(const Expression& e, const Subject& f) {
  const Node& x = e.nodes[f.x];
  return x.kind == NodeKind::compute && x.op == f.op && x.dtype == f.dtype;
}

struct Rule {
  const char* equation;
  int arity;
  int flags;  // OpFlags that f has
  bool (*matches)(const Expression&, const Subject&);
  uint16_t (*result)(const Expression&, const Subject&);
};

uint16_t first(const Expression&, const Subject& f) {
  return f.x;
}
uint16_t second(const Expression&, const Subject& f) {
  return f.y;
}
uint16_t operand_of_first(const Expression& e, const Subject& f) {
  return e.nodes[f.x].a;
}

// e is the row's identity.
constexpr Rule kExact[] = {
    {"f(x, e) = x", 2, kNone,
     [](const Expression& e, const Subject& f) { return is_identity(e, f.info, f.y); }, first},
    {"f(e, y) = y", 2, kCommutative,
     [](const Expression& e, const Subject& f) { return is_identity(e, f.info, f.x); }, second},
    {"f(f(x)) = f(x)", 1, kIdempotent, is_applied_twice, first},
    {"f(f(x)) = x", 1, kInvolution, is_applied_twice, operand_of_first},
};

// ---- contraction ----

struct Contraction {
  const char* equation;  // of a product that nothing else needs
  Op op;
  bool product_first;
  bool negates_product, negates_other;
};

// Of two products the first is taken.
constexpr Contraction kContractions[] = {
    {"x * y + z = fma(x, y, z)", Op::add, true, false, false},
    {"z + x * y = fma(x, y, z)", Op::add, false, false, false},
    {"x * y - z = fma(x, y, -z)", Op::sub, true, false, true},
    {"z - x * y = fma(-x, y, z)", Op::sub, false, true, false},
};

}  // namespace

std::optional<uint16_t> simplified(const Expression& expression, Op op, DType dtype,
                                   const std::array<uint16_t, 3>& operands) {
  const Subject subject{op, op_info(op), dtype, operands[0], operands[1]};
  for (const Rule& rule : kExact) {
    if (rule.arity == subject.info.arity && (subject.info.flags & rule.flags) == rule.flags &&
        rule.matches(expression, subject)) {
      const uint16_t result = rule.result(expression, subject);
      // An immediate of a narrow dtype is not rounded to it (atlas/group.h), and an operation's
      // result is.
      const bool is_number = expression.nodes[result].kind == NodeKind::immediate;
      if (!is_number || dtype == own_dtype(expression.compute_type)) return result;
    }
  }
  return std::nullopt;
}

// sum(where(position == y, x, +0)) = pick(x, y)
std::optional<Node> picked(const Expression& e, std::span<const Spread> spreads, Op fold,
                           uint16_t node) {
  if (fold != Op::add) return std::nullopt;
  const auto is = [&](uint16_t n, Op op) {
    return e.nodes[n].kind == NodeKind::compute && e.nodes[n].op == op;
  };
  const Node& choice = e.nodes[node];
  if (!is(node, Op::where) || !is(choice.a, Op::eq)) return std::nullopt;
  if (e.nodes[choice.c].kind != NodeKind::immediate || special_of(e, choice.c) != Special::zero) {
    return std::nullopt;
  }
  const Node& same = e.nodes[choice.a];
  for (const auto& [x, y] : {std::pair(same.a, same.b), std::pair(same.b, same.a)}) {
    const bool is_column = e.nodes[x].kind == NodeKind::position && e.nodes[x].b == kColumns;
    if (is_column && (spreads[y] & kColumns) == 0) {
      return Node{NodeKind::pick, Op::add, choice.dtype, choice.b, y};
    }
  }
  return std::nullopt;
}

void order_operands(Node& node) {
  if (node.kind == NodeKind::compute && op_info(node.op).has(kCommutative) && node.b < node.a) {
    std::swap(node.a, node.b);
  }
}

void contract(Group& group) {
  const DType own = own_dtype(group.compute_type);
  const std::vector<Node> nodes = std::move(group.nodes);
  const auto is = [&](const Node& node, Op op) {
    return node.kind == NodeKind::compute && node.op == op && node.dtype == own;
  };
  std::vector<int> uses(nodes.size(), 0);
  for (const Node& node : nodes) {
    const int n = arity_of(node);
    if (n > 0) ++uses[node.a];
    if (n > 1) ++uses[node.b];
    if (n > 2) ++uses[node.c];
  }
  // The rule by which each node takes in a product; null for none.
  std::vector<const Contraction*> rules(nodes.size());
  std::vector<bool> gone(nodes.size(), false);
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const Contraction& rule : kContractions) {
      if (!is(nodes[i], rule.op)) continue;
      const uint16_t product = rule.product_first ? nodes[i].a : nodes[i].b;
      if (uses[product] != 1 || !is(nodes[product], Op::mul)) continue;
      rules[i] = &rule;
      gone[product] = true;
      break;
    }
  }
  group.nodes.clear();
  std::vector<uint16_t> renamed(nodes.size());
  const auto push = [&](const Node& node) {
    group.nodes.push_back(node);
    return static_cast<uint16_t>(group.nodes.size() - 1);
  };
  const auto negated = [&](uint16_t node, bool negates) {
    return negates ? push({NodeKind::compute, Op::neg, own, node}) : node;
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (gone[i]) continue;
    Node node = nodes[i];
    if (const Contraction* rule = rules[i]) {
      const Node& product = nodes[rule->product_first ? node.a : node.b];
      const uint16_t x = negated(renamed[product.a], rule->negates_product);
      const uint16_t other = renamed[rule->product_first ? node.b : node.a];
      const uint16_t z = negated(other, rule->negates_other);
      renamed[i] = push({NodeKind::compute, Op::fma, own, x, renamed[product.b], z});
      continue;
    }
    const int n = arity_of(node);
    if (n > 0) node.a = renamed[node.a];
    if (n > 1) node.b = renamed[node.b];
    if (n > 2) node.c = renamed[node.c];
    renamed[i] = push(node);
  }
}

}  // namespace hologram

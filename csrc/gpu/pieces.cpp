#include "gpu/pieces.h"

#include <algorithm>
#include <utility>

#include "atlas/error.h"
#include "gpu/moves.h"
#include "gpu/rounding.h"
#include "gpu/steps.h"

namespace hologram::gpu {
namespace {

bool is_dense(const Operand& operand) {
  return operand.layout == Layout::dense && operand.spread == kEach;
}

class Taking {
 public:
  explicit Taking(const Group& group) : group_(group), sources_(group.nodes.size()) {}

  Pieces run() {
    for (uint16_t i = 0; i < group_.nodes.size(); ++i) {
      const Node& node = group_.nodes[i];
      switch (node.kind) {
        case NodeKind::load: load(i); break;
        case NodeKind::immediate: break;
        case NodeKind::store: stores_.push_back(i); break;
        default:
          if (node.kind != NodeKind::cast || !is_one_with_cast(node.a)) compute(i);
      }
    }
    for (const uint16_t node : stores_) store(group_.nodes[node]);
    // After all that reads what memory held before.
    for (Piece& piece : last_) result_.list.push_back(std::move(piece));
    return std::move(result_);
  }

 private:
  Place new_value(DType dtype) {
    result_.values.push_back(dtype);
    return {Place::Kind::value, static_cast<uint16_t>(result_.values.size() - 1)};
  }
  const Operand& operand_at(const Place& place) const { return group_.operands[place.index]; }
  DType dtype_at(const Place& place) const {
    return place.kind == Place::Kind::value ? result_.values[place.index] : operand_at(place).dtype;
  }

  // ---- what a single operation of a half type is ----
  //
  // Its numbers are floats: it widens what it loads, computes, and a cast narrows the result.

  std::vector<uint16_t> users(uint16_t value) const {
    return nodes_where(group_.nodes, [&](const Node& node, uint16_t) {
      for (int k = 0; k < arity_of(node); ++k) {
        if (argument_of(node, k) == value) return true;
      }
      return false;
    });
  }
  // Of what is in memory where a value is read.
  DType memory_dtype(uint16_t value) const {
    const Node& node = group_.nodes[value];
    return node.kind == NodeKind::load ? group_.operands[node.a].dtype : node.dtype;
  }
  // Whether only a cast reads a computed value, to the dtype of all operands in memory.
  bool is_narrowed(uint16_t value) const {
    const Node& node = group_.nodes[value];
    if (node.kind != NodeKind::compute) return false;
    const auto its = users(value);
    if (its.size() != 1 || group_.nodes[its[0]].kind != NodeKind::cast) return false;
    for (int k = 0; k < arity_of(node); ++k) {
      const uint16_t from = argument_of(node, k);
      if (group_.nodes[from].kind == NodeKind::immediate) continue;
      if (memory_dtype(from) != group_.nodes[its[0]].dtype) return false;
    }
    return true;
  }
  // Whether a load's conversion is a part of what reads it.
  bool is_widened_by_users(uint16_t load) const {
    const Node& node = group_.nodes[load];
    return holds(node.dtype, memory_dtype(load)) &&
           std::ranges::all_of(users(load), [&](uint16_t user) { return is_narrowed(user); });
  }
  bool is_one_with_cast(uint16_t value) const {
    if (!is_narrowed(value)) return false;
    const Node& node = group_.nodes[value];
    for (int k = 0; k < arity_of(node); ++k) {
      const uint16_t from = argument_of(node, k);
      if (group_.nodes[from].kind == NodeKind::load &&
          group_.nodes[from].dtype != memory_dtype(from) && !is_widened_by_users(from)) {
        return false;
      }
    }
    return true;
  }

  // ---- pieces ----

  struct Building {
    Piece piece;

    explicit Building(ComputeType type) { piece.group.compute_type = type; }
    uint16_t add(const Node& node) {
      piece.group.nodes.push_back(node);
      return static_cast<uint16_t>(piece.group.nodes.size() - 1);
    }
    uint16_t operand(const Place& place, DType dtype, Layout layout) {
      piece.group.operands.push_back({dtype, layout});
      piece.operands.push_back(place);
      return static_cast<uint16_t>(piece.operands.size() - 1);
    }
  };

  uint16_t argument(Building& building, uint16_t value) const {
    const Node& node = group_.nodes[value];
    if (node.kind == NodeKind::immediate) {
      building.piece.immediates.push_back(node.a);
      const auto number = static_cast<uint16_t>(building.piece.group.immediates++);
      return building.add({NodeKind::immediate, node.op, node.dtype, number, node.b});
    }
    const Place& place = sources_[value];
    const bool scalar =
        place.kind == Place::Kind::operand && operand_at(place).layout == Layout::scalar;
    // What is read twice is one operand.
    const auto known = std::ranges::find(building.piece.operands, place);
    const auto operand =
        known != building.piece.operands.end()
            ? static_cast<uint16_t>(known - building.piece.operands.begin())
            : building.operand(place, dtype_at(place), scalar ? Layout::scalar : Layout::dense);
    for (uint16_t i = 0; i < building.piece.group.nodes.size(); ++i) {
      const Node& other = building.piece.group.nodes[i];
      if (other.kind == NodeKind::load && other.a == operand && other.dtype == node.dtype) return i;
    }
    return building.add({NodeKind::load, Op{}, node.dtype, operand});
  }

  static void end(Building& building, uint16_t value, const Place& to, DType dtype) {
    const uint16_t operand = building.operand(to, dtype, Layout::dense);
    building.add({NodeKind::store, Op{}, dtype, value, operand});
  }

  // The value as it is, or converted by the store.
  Piece copied(uint16_t value, const Place& to, DType dtype) const {
    Building building(group_.compute_type);
    const uint16_t from = argument(building, value);
    end(building, from, to, dtype);
    return std::move(building.piece);
  }

  // ---- nodes ----

  // What is not dense is copied; what the load converts is converted.
  void load(uint16_t number) {
    const Node& node = group_.nodes[number];
    const Operand& operand = group_.operands[node.a];
    sources_[number] = {Place::Kind::operand, node.a};
    if (!is_dense(operand) && operand.layout != Layout::scalar) {
      const Place dense = new_value(operand.dtype);
      result_.list.push_back({{}, {dense, sources_[number]}, {}});
      sources_[number] = dense;
    }
    if (operand.dtype == node.dtype || operand.layout == Layout::scalar) return;
    if (is_widened_by_users(number)) return;
    const Place converted = new_value(node.dtype);
    result_.list.push_back(copied(number, converted, node.dtype));
    sources_[number] = converted;
  }

  void compute(uint16_t number) {
    Node node = group_.nodes[number];
    Building building(group_.compute_type);
    if (node.kind == NodeKind::random) {
      for (uint16_t k = 0; k < kDrawImmediates; ++k) {
        building.piece.immediates.push_back(static_cast<uint16_t>(node.a + k));
      }
      building.piece.group.immediates = kDrawImmediates;
      node.a = 0;
    } else {
      uint16_t* const arguments[] = {&node.a, &node.b, &node.c};
      const int arity = arity_of(node);
      // As operands are when they are recorded: tensors before numbers, where both are alike.
      const bool swaps = node.kind == NodeKind::compute && op_info(node.op).has(kCommutative) &&
                         group_.nodes[node.a].kind == NodeKind::immediate;
      if (swaps) std::swap(node.a, node.b);
      for (int k = 0; k < arity; ++k) *arguments[k] = argument(building, *arguments[k]);
    }
    uint16_t value = building.add(node);
    if (is_one_with_cast(number)) {
      number = users(number)[0];
      node = group_.nodes[number];
      node.a = value;
      value = building.add(node);
    }
    sources_[number] = new_value(node.dtype);
    end(building, value, sources_[number], node.dtype);
    result_.list.push_back(std::move(building.piece));
  }

  void store(const Node& node) {
    const Operand& operand = group_.operands[node.b];
    const Place to{Place::Kind::operand, node.b};
    const bool is_value = group_.nodes[node.a].kind != NodeKind::immediate &&
                          sources_[node.a].kind == Place::Kind::value;
    if (is_dense(operand)) {
      if (is_value && dtype_at(sources_[node.a]) == operand.dtype && may_store_at_once(to) &&
          !is_stored_twice(node.a)) {
        redirect(sources_[node.a], to);
        return;
      }
      if (!is_value && stores_.size() > 1) keep(node.a);
      last_.push_back(copied(node.a, to, operand.dtype));
      return;
    }
    const Place dense = new_value(operand.dtype);
    result_.list.push_back(copied(node.a, dense, operand.dtype));
    last_.push_back({{}, {to, dense}, {}});
  }

  bool is_stored_twice(uint16_t value) const {
    return std::ranges::count_if(stores_,
                                 [&](uint16_t node) { return group_.nodes[node].a == value; }) > 1;
  }
  // Whether nothing reads of the operand's area what it held before.
  bool may_store_at_once(const Place& to) const {
    for (const Piece& piece : result_.list) {
      for (const Place& place : piece.operands) {
        if (place.kind == Place::Kind::operand && operand_at(place).area == operand_at(to).area) {
          return false;
        }
      }
    }
    for (const uint16_t store : stores_) {
      const Node& node = group_.nodes[group_.nodes[store].a];
      const Place& place = sources_[group_.nodes[store].a];
      if (node.kind != NodeKind::immediate && place.kind == Place::Kind::operand &&
          operand_at(place).area == operand_at(to).area) {
        return false;
      }
    }
    return true;
  }
  // What memory holds is kept before others store.
  void keep(uint16_t value) {
    if (group_.nodes[value].kind == NodeKind::immediate) return;
    const Place kept = new_value(group_.nodes[value].dtype);
    result_.list.push_back(copied(value, kept, group_.nodes[value].dtype));
    sources_[value] = kept;
  }
  void redirect(const Place from, const Place& to) {
    const auto change = [&](Place& place) {
      if (place == from) place = to;
    };
    for (Piece& piece : result_.list) std::ranges::for_each(piece.operands, change);
    for (Piece& piece : last_) std::ranges::for_each(piece.operands, change);
    std::ranges::for_each(sources_, change);
  }

  const Group& group_;
  std::vector<Place> sources_;  // of each node that is loaded or computed
  std::vector<uint16_t> stores_;
  std::vector<Piece> last_;
  Pieces result_;
};

// Planned addresses of values, which become places in scratch memory: no memory lies there.
constexpr uintptr_t kValues = uintptr_t{1} << 60;

// Of a piece that copies: whether to memory of the group's from a dense value, or from memory to a
// dense place, which is a value or, where that is stored as it is, a dense operand.
bool is_copied_to_memory(const Piece& piece) {
  return piece.operands[1].kind == Place::Kind::value;
}
const Operand& operand_of_copy(const std::vector<Operand>& operands, const Piece& piece) {
  return operands[piece.operands[is_copied_to_memory(piece) ? 0 : 1].index];
}
size_t element_bytes(const std::vector<Operand>& operands, const Piece& piece) {
  return dtype_size(operand_of_copy(operands, piece).dtype);
}

std::vector<int64_t> dense_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) strides[d] = std::exchange(stride, stride * sizes[d]);
  return strides;
}

// Sizes and strides of where a copy goes, and of where it comes from.
std::pair<Tensor, Tensor> tensors_of(const std::vector<Operand>& operands, const Piece& piece,
                                     const Binding& binding) {
  const Operand& operand = operand_of_copy(operands, piece);
  const bool stores = is_copied_to_memory(piece);
  const uint16_t number = piece.operands[stores ? 0 : 1].index;
  Tensor other, dense;
  if (operand.layout == Layout::strided) {
    const auto rank = static_cast<size_t>(binding.rank);
    const auto bytes = static_cast<int64_t>(dtype_size(operand.dtype));
    other.sizes.assign(binding.sizes, binding.sizes + rank);
    for (size_t d = 0; d < rank; ++d) {
      const int64_t stride = binding.strides[number * rank + d];
      if (stride % bytes != 0) throw Error("a stride of a part of an element");
      other.strides.push_back(stride / bytes);
    }
  } else {
    other.sizes = {binding.planes, binding.rows, binding.columns};
    const Spread bits[] = {kPlanes, kMiddle, kColumns};
    other.strides.resize(3);
    int64_t stride = 1;
    for (size_t d = 3; d-- > 0;) {
      if ((operand.spread & bits[d]) != 0) {
        other.strides[d] = std::exchange(stride, stride * other.sizes[d]);
      }
    }
  }
  dense.sizes = other.sizes;
  dense.strides = dense_strides(dense.sizes);
  return stores ? std::pair(other, dense) : std::pair(dense, other);
}

bool is_kept_whole(NodeKind kind) {
  return kind == NodeKind::fold || kind == NodeKind::scan || kind == NodeKind::pick ||
         kind == NodeKind::position;
}

}  // namespace

std::optional<Pieces> take_apart(const Group& group) {
  const bool whole =
      std::ranges::any_of(group.nodes, [](const Node& node) { return is_kept_whole(node.kind); });
  if (whole) return std::nullopt;
  Pieces pieces = Taking(group).run();
  if (pieces.list.size() < 2) return std::nullopt;
  return pieces;
}

PieceCode::PieceCode(const Group& group, Pieces pieces, const Target& emitted, const Target& cold)
    : operands_(group.operands),
      pieces_(std::move(pieces)),
      target_(emitted),
      last_use_(pieces_.values.size(), 0) {
  for (size_t i = 0; i < pieces_.list.size(); ++i) {
    const Piece& piece = pieces_.list[i];
    codes_.emplace_back();
    if (!piece.group.nodes.empty()) {
      codes_.back() = {std::make_unique<const GroupCode>(piece.group, emitted),
                       std::make_unique<const GroupCode>(piece.group, cold)};
    }
    for (const Place& place : piece.operands) {
      if (place.kind == Place::Kind::value) last_use_[place.index] = i;
    }
  }
}

Launches PieceCode::launches(size_t piece, const Binding& binding,
                             const Available& available) const {
  Launches launches = codes_[piece].emitted->launches(binding);
  const bool all = std::ranges::all_of(
      launches.list, [&](const Launch& launch) { return available(*launch.kernel); });
  return all ? std::move(launches) : codes_[piece].cold->launches(binding);
}

Launches PieceCode::launches(const Binding& binding, const Available& available) const {
  // Memory of values, taken again when their last reader has run.
  struct Part {
    size_t offset, bytes;
  };
  std::vector<Part> free;
  std::vector<Part> parts(pieces_.values.size());
  std::vector<bool> taken(pieces_.values.size(), false);
  size_t bytes_of_values = 0;
  const auto take = [&](uint16_t value) {
    if (taken[value]) return;
    taken[value] = true;
    const size_t bytes =
        scratch_size(static_cast<size_t>(binding.count) * dtype_size(pieces_.values[value]));
    const auto found = std::ranges::find(free, bytes, &Part::bytes);
    if (found != free.end()) {
      parts[value] = *found;
      free.erase(found);
      return;
    }
    parts[value] = {bytes_of_values, bytes};
    bytes_of_values += bytes;
  };
  const auto address = [&](const Place& place) {
    return place.kind == Place::Kind::operand
               ? binding.operands[place.index]
               : reinterpret_cast<void*>(kValues + parts[place.index].offset);
  };

  Launches result;
  for (size_t i = 0; i < pieces_.list.size(); ++i) {
    const Piece& piece = pieces_.list[i];
    for (const Place& place : piece.operands) {
      if (place.kind == Place::Kind::value) take(place.index);
    }
    Launches its;
    if (piece.group.nodes.empty()) {
      const auto [to, from] = tensors_of(operands_, piece, binding);
      its = copy(target_, element_bytes(operands_, piece),
                 {address(piece.operands[0]), to.sizes, to.strides},
                 {address(piece.operands[1]), from.sizes, from.strides});
    } else {
      std::vector<void*> operands;
      std::vector<uint64_t> immediates;
      for (const Place& place : piece.operands) operands.push_back(address(place));
      for (const uint16_t number : piece.immediates) {
        immediates.push_back(binding.immediates[number]);
      }
      Binding own;
      own.operands = operands.data();
      own.immediates = immediates.data();
      own.count = binding.count;
      its = launches(i, own, available);
    }
    if (its.scratch_bytes != 0) throw Error("a piece of several steps");
    for (Launch& launch : its.list) result.list.push_back(std::move(launch));
    for (uint16_t value = 0; value < pieces_.values.size(); ++value) {
      if (taken[value] && last_use_[value] == i) free.push_back(parts[value]);
    }
  }
  result.scratch_bytes = bytes_of_values;
  for (Launch& launch : result.list) {
    for (Argument& argument : launch.arguments) {
      const auto at = reinterpret_cast<uintptr_t>(argument.address);
      if (at >= kValues && at < kValues + bytes_of_values) {
        argument = {nullptr, at - kValues};
      }
    }
  }
  return result;
}

}  // namespace hologram::gpu

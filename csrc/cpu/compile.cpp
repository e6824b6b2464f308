#include <algorithm>
#include <cassert>
#include <string>

#include "atlas/error.h"
#include "cpu/check_group.h"
#include "cpu/exact.h"
#include "cpu/group_compiler.h"
#include "cpu/row_group.h"

namespace hologram::cpu {
namespace {

// Of the compute type f32, dtypes whose values are clean (cpu/convert.h).
constexpr DTypeSet kClean = dtype_bit(DType::b8) | dtype_bit(DType::u8) | dtype_bit(DType::i8) |
                            dtype_bit(DType::i16) | dtype_bit(DType::bf16);

constexpr size_t index_of(DType dtype) {
  return static_cast<size_t>(dtype);
}

}  // namespace

const GroupKernels& kernels_for([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return avx512_kernels();
  if (isa == Isa::avx2) return avx2_kernels();
#endif
  return baseline_kernels();
}

const TypeKernels& kernels_of(ComputeType type, Isa isa) {
  return kernels_for(isa).types[static_cast<size_t>(type)];
}

GroupCompiler::GroupCompiler(const Group& group, Isa isa, bool whole)
    : group_(group),
      kernels_(choose(kernels_for(isa), group, whole)),
      own_(kernels_.own),
      out_(std::make_unique<CompiledGroup>()) {}

std::unique_ptr<CompiledGroup> GroupCompiler::compile() {
  check(group_, kernels_);
  count_uses();
  lay_out();
  for (size_t i = 0; i < group_.nodes.size(); ++i) {
    if (group_.nodes[i].kind == NodeKind::store) store_value(static_cast<int>(i));
  }
  for (const int store : deferred_) {
    const Node& node = group_.nodes[store];
    emit(node.a);
    emit_store(store);
    release(node.a);
  }
  push(kernels_.end);
  finish();
  return std::move(out_);
}

// Groups in which everything is a truth value in memory have lanes of their own.
const TypeKernels& GroupCompiler::choose(const GroupKernels& kernels, const Group& group,
                                         bool whole) {
  const auto in_memory = [](const Operand& operand) {
    return operand.dtype == DType::b8 && operand.layout != Layout::scalar;
  };
  const auto truth = [](const Node& node) {
    return node.kind == NodeKind::store ||
           (node.dtype == DType::b8 && node.kind != NodeKind::immediate);
  };
  if (!whole && std::all_of(group.operands.begin(), group.operands.end(), in_memory) &&
      std::all_of(group.nodes.begin(), group.nodes.end(), truth)) {
    return kernels.bytes;
  }
  return kernels.types[static_cast<size_t>(group.compute_type)];
}

uint16_t GroupCompiler::argument(const Node& node, int k) {
  return k == 0 ? node.a : k == 1 ? node.b : node.c;
}

// Uses by what the stores need, and Sethi-Ullman numbers.
void GroupCompiler::count_uses() {
  const auto& nodes = group_.nodes;
  values_.resize(nodes.size());
  next_store_.assign(nodes.size(), -1);
  done_.assign(nodes.size(), false);
  computed_.assign(nodes.size(), false);
  for (size_t i = nodes.size(); i-- > 0;) {
    const Node& node = nodes[i];
    if (node.kind != NodeKind::store && values_[i].uses == 0) continue;
    for (int k = 0; k < arity_of(node); ++k) ++values_[argument(node, k)].uses;
    if (node.kind == NodeKind::store) {
      next_store_[i] = values_[node.a].first_store;
      values_[node.a].first_store = static_cast<int>(i);
    }
  }
}

// Pointers of the frame: operands, slots, immediates, converted scalars. Leaves get their places.
void GroupCompiler::lay_out() {
  const auto& nodes = group_.nodes;
  const auto operands = static_cast<int32_t>(group_.operands.size());
  slots_pointer_ = operands;
  const int32_t immediates = operands + 1, scalars = operands + 2;
  used_.assign(group_.operands.size(), -1);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    Value& value = values_[i];
    if (node.kind == NodeKind::store) {
      use(node.b).stored = true;
      continue;
    }
    if (value.uses == 0) continue;
    if (node.kind == NodeKind::immediate) {
      value.where = {immediates, 8 * node.a, 0};
      value.place = Place::splat;
    } else if (node.kind == NodeKind::load) {
      const Operand& operand = group_.operands[node.a];
      if (operand.layout == Layout::scalar) {
        value.place = Place::splat;
        value.where = {node.a, 0, 0};
        // Of the compute type by row, it is what the node says.
        if (operand.spread != kRows && (operand.dtype != own_ || node.dtype != own_)) {
          value.where = {scalars, 8 * static_cast<int32_t>(out_->scalars_.size()), 0};
          out_->scalars_.push_back({node.a, operand.dtype, node.dtype});
        }
      } else {
        use(node.a).loaded = true;
        value.where = {node.a, 0, -1};
        if (is_exact(operand.dtype, node.dtype)) value.place = place_of(operand.dtype);
        reads_at(node.a) += value.place == Place::nowhere ? 1 : value.uses;
      }
    } else if (node.kind == NodeKind::random) {
      out_->draws_ = true;
      value.where = {immediates, 8 * node.a, 0};
      value.registers = 1;
    } else if (node.kind == NodeKind::position) {
      use(node.a).loaded = true;
      value.where = {node.a, 0, -1};
      value.registers = 1;
    } else {
      int most = 0, count = 0;
      for (int k = 0; k < arity_of(node); ++k) {
        const Value& v = values_[argument(node, k)];
        if (v.is_leaf) continue;
        if (v.registers > most) {
          most = v.registers, count = 0;
        }
        if (v.registers == most) ++count;
      }
      value.registers = static_cast<uint8_t>(std::min(std::max(most + count - 1, 1), 255));
    }
    if (node.kind == NodeKind::load && value.place == Place::nowhere) value.registers = 1;
    value.is_leaf = value.place != Place::nowhere;
    value.exact = value.is_leaf && node.kind == NodeKind::load && value.place != Place::splat;
    value.clean = (kClean & dtype_bit(node.dtype)) != 0 || is_clean_unrounded(node);
  }
}

// Whether a value is clean (cpu/convert.h) before it is rounded to its dtype: operations keep the
// payload of a NaN that they are given, or make one without.
bool GroupCompiler::is_clean_unrounded(const Node& node) const {
  switch (node.kind) {
    case NodeKind::load: return (kClean & dtype_bit(group_.operands[node.a].dtype)) != 0;
    case NodeKind::immediate:
    case NodeKind::position: return true;
    default: break;
  }
  for (int k = 0; k < arity_of(node); ++k) {
    if (!values_[argument(node, k)].clean) return false;
  }
  return true;
}

GroupCompiler::Place GroupCompiler::place_of(DType dtype) const {
  if (dtype == own_) return Place::memory;
  if (own_ != DType::f32) return Place::nowhere;
  return dtype == DType::bf16 ? Place::bf16 : dtype == DType::f16 ? Place::f16 : Place::nowhere;
}

OperandUse& GroupCompiler::use(uint16_t operand) {
  int& at = used_[operand];
  if (at < 0) {
    at = static_cast<int>(out_->uses_.size());
    const Operand& o = group_.operands[operand];
    const bool strided = o.layout == Layout::strided;
    out_->uses_.push_back(
        {operand, static_cast<uint8_t>(dtype_size(o.dtype)), strided, false, false, 0});
    out_->strided_ = out_->strided_ || strided;
  }
  return out_->uses_[at];
}

// Reads of memory that are still to be emitted, by area.
int& GroupCompiler::reads_at(uint16_t operand) {
  const size_t area = group_.operands[operand].area;
  if (area >= reads_.size()) reads_.resize(area + 1);
  return reads_[area];
}

void GroupCompiler::push(AnyCode code, Reference x, Reference y) {
  out_->code_.push_back({code, x, y});
}

// One use of a value is emitted.
void GroupCompiler::release(int v) {
  Value& value = values_[v];
  --value.uses;
  if (value.is_leaf && group_.nodes[v].kind == NodeKind::load && value.where.mask != 0) {
    --reads_at(group_.nodes[v].a);
  }
  if (value.uses == 0 && value.slot >= 0) {
    free_slots_.push_back(value.slot);
    value.slot = -1;
  }
}

// The value, which is in the accumulator, gets a place in memory.
void GroupCompiler::spill(int v) {
  Value& value = values_[v];
  if (value.place != Place::nowhere) return;
  if (free_slots_.empty()) {
    value.slot = static_cast<int16_t>(slot_count_++);
  } else {
    const auto least = std::min_element(free_slots_.begin(), free_slots_.end());
    value.slot = *least;
    free_slots_.erase(least);
  }
  const int32_t bytes = kernels_.lanes * static_cast<int32_t>(dtype_size(own_));
  value.where = {slots_pointer_, value.slot * bytes, 0};
  value.place = Place::memory;
  push(kernels_.store[index_of(own_)], value.where);
}

void GroupCompiler::load_place(int v) {
  const Value& value = values_[v];
  switch (value.place) {
    case Place::splat: push(kernels_.load_splat, value.where); break;
    case Place::bf16: push(kernels_.load[index_of(DType::bf16)], value.where); break;
    case Place::f16: push(kernels_.load[index_of(DType::f16)], value.where); break;
    default: push(kernels_.load[index_of(own_)], value.where); break;
  }
}

// Brings value v to the accumulator, for a consumer that has `own` of its uses.
void GroupCompiler::emit(int v, int own) {
  if (accumulator_ == v) return;
  if (has_place(v)) {
    load_place(v);
    accumulator_ = v;
    return;
  }
  // Down to where code starts and back, so that only second operands make the compiler recurse.
  const size_t base = path_.size();
  for (int u = v; u >= 0 && u != accumulator_ && !has_place(u); u = first_operand(u)) {
    path_.push_back(u);
  }
  while (path_.size() > base) {
    const int u = path_.back();
    path_.pop_back();
    if (u == v) {
      emit_node(u, own);
    } else {
      const Node& consumer = group_.nodes[path_.back()];
      emit_node(u, is_square(consumer) ? 2 : 1);
    }
  }
}

bool GroupCompiler::is_arithmetic(const Node& node) {
  return node.kind == NodeKind::compute && op_info(node.op).cost == Cost::arithmetic;
}

bool GroupCompiler::is_square(const Node& node) const {
  return node.kind == NodeKind::compute && op_info(node.op).arity == 2 && node.a == node.b;
}

// The operand that has to be in the accumulator first, or -1.
int GroupCompiler::first_operand(int v) const {
  const Node& node = group_.nodes[v];
  const int n = arity_of(node);
  if (n < 2) return n == 0 ? -1 : node.a;
  const int args[3] = {node.a, node.b, node.c};
  if (n == 3) return heaviest_of(args, -1);
  if (node.a == node.b) return node.a;
  int x, y;
  for (const bool second : {true, false}) {
    if (joins_product(node, second, x, y) >= 0) return second ? node.a : node.b;
  }
  if (has_place(node.a)) return has_place(node.b) ? -1 : node.b;
  return has_place(node.b) ? node.a : heavier(node.a, node.b);
}

// Of the operands of a ternary operation that cannot be read from memory, but not `last`.
int GroupCompiler::heaviest_of(const int (&args)[3], int last) const {
  int next = -1;
  for (const int v : args) {
    if (v == last || has_ternary_place(v)) continue;
    if (next < 0 || values_[v].registers > values_[next].registers) next = v;
  }
  return next;
}

void GroupCompiler::emit_node(int v, int own) {
  Value& value = values_[v];
  assert(!computed_[v] && "a value was lost");
  computed_[v] = true;
  const Node& node = group_.nodes[v];
  bool rounded = false;
  switch (node.kind) {
    case NodeKind::load: {
      const DType from = group_.operands[node.a].dtype;
      push(kernels_.load[index_of(from)], value.where);
      --reads_at(node.a);
      rounded = is_exact(from, node.dtype);
      break;
    }
    case NodeKind::position:
      push(kernels_.position, value.where);
      rounded = true;
      break;
    case NodeKind::random: {
      const auto draw = static_cast<Draw>(node.b);
      push(kernels_.draws[node.b][index_of(node.dtype)], {slots_pointer_ + 3, 0, -1}, value.where);
      rounded = draw != Draw::normal;
      break;
    }
    case NodeKind::cast:
      emit(node.a);
      release(node.a);
      rounded = is_exact(group_.nodes[node.a].dtype, node.dtype);
      break;
    default: {
      compute(v);
      const OpInfo& info = op_info(node.op);
      rounded = info.has(kPredicate) || value.rounded;
      if (!rounded && (info.exact == Exact::always ||
                       (info.exact == Exact::real && (dtype_bit(node.dtype) & kReal) != 0))) {
        rounded = true;
        for (int k = info.has(kCondition) ? 1 : 0; k < info.arity; ++k) {
          rounded = rounded && is_exact(group_.nodes[argument(node, k)].dtype, node.dtype);
        }
      }
    }
  }
  accumulator_ = v;
  rounded = rounded || node.dtype == own_;
  value.exact = rounded || !stored_at_once(v);
  if (!rounded && value.exact) push(round_to(node));
  // Stores that can happen now spare a place; a store that keeps every bit is one.
  for (int s = value.first_store; s >= 0; s = next_store_[s]) {
    if (done_[s] || is_hazard(s)) continue;
    emit_store(s);
    const uint16_t operand = group_.nodes[s].b;
    const DType dtype = group_.operands[operand].dtype;
    release(v);
    if (value.place == Place::nowhere && is_exact(node.dtype, dtype)) {
      value.place = place_of(dtype);
      value.where = {operand, 0, -1};
    }
  }
  if (value.uses > own) spill(v);
}

// Rounds the result of a node to its dtype.
AnyCode GroupCompiler::round_to(const Node& node) const {
  const bool clean = node.dtype == DType::bf16 && own_ == DType::f32 && is_clean_unrounded(node);
  return clean ? kernels_.round_clean : kernels_.round[index_of(node.dtype)];
}

// Whether the only use is a store that rounds to the value's dtype itself and can happen now.
bool GroupCompiler::stored_at_once(int v) {
  const Value& value = values_[v];
  const int s = value.first_store;
  return value.uses == 1 && s >= 0 &&
         group_.operands[group_.nodes[s].b].dtype == group_.nodes[v].dtype && !is_hazard(s);
}

void GroupCompiler::emit_store(int s) {
  const uint16_t operand = group_.nodes[s].b;
  const DType dtype = group_.operands[operand].dtype;
  const uint16_t v = group_.nodes[s].a;
  AnyCode store = kernels_.store[index_of(dtype)];
  if (dtype == DType::bf16 && own_ == DType::f32) {
    if (values_[v].exact && group_.nodes[v].dtype == DType::bf16) {
      store = kernels_.store_exact;
    } else if (is_clean_unrounded(group_.nodes[v])) {
      store = kernels_.store_clean;
    }
  }
  push(store, {operand, 0, -1});
  done_[s] = true;
}

void GroupCompiler::store_value(int s) {
  if (done_[s]) return;
  const int v = group_.nodes[s].a;
  emit(v);
  Value& value = values_[v];
  if (done_[s]) {
    if (value.uses > 0) spill(v);
    return;
  }
  if (value.is_leaf && group_.nodes[v].kind == NodeKind::load && value.where.mask != 0) {
    // A copy: its own read is over. Keep it where later stores cannot change it.
    release(v);
    ++value.uses;
    if (is_hazard(s)) {
      keep(v);
      deferred_.push_back(s);
    } else {
      --value.uses;
      emit_store(s);
    }
    return;
  }
  if (is_hazard(s)) {
    spill(v);
    deferred_.push_back(s);
    return;
  }
  emit_store(s);
  release(v);
}

// A leaf of the accumulator becomes a value of a slot.
void GroupCompiler::keep(int v) {
  Value& value = values_[v];
  // The uses that remain read the slot.
  reads_at(group_.nodes[v].a) -= value.uses - 1;
  value.is_leaf = false;
  value.place = Place::nowhere;
  spill(v);
}

// A loop of the whole code if there is one.
RunCode GroupCompiler::run_of(const std::vector<MicroOp>& code) const {
  // In a loop every operand runs on, which slots do not.
  const auto in_slot = [&](const MicroOp& i) {
    return i.x.pointer == slots_pointer_ || i.y.pointer == slots_pointer_;
  };
  const size_t length = code.size() - 1;
  if (length > Loop::kMost || std::any_of(code.begin(), code.end(), in_slot)) return kernels_.run;
  for (int i = 0; i < kernels_.loop_count; ++i) {
    const Loop& loop = kernels_.loops[i];
    if (static_cast<size_t>(loop.length) == length &&
        std::equal(code.begin(), code.end() - 1, loop.code,
                   [](const MicroOp& a, AnyCode b) { return a.code == b; })) {
      return loop.run;
    }
  }
  return kernels_.run;
}

void GroupCompiler::finish() {
  auto& out = *out_;
  out.kernels_ = &kernels_;
  out.run_ = run_of(out.code_);
  out.compute_type_ = group_.compute_type;
  out.operands_ = static_cast<int>(group_.operands.size());
  const auto round_up = [](size_t bytes) { return (bytes + 63) & ~size_t{63}; };
  // Two sets of pointers: the operands' and those of a tile that is in scratch.
  size_t size = round_up(2 * sizeof(char*) * static_cast<size_t>(out.pointer_count()));
  out.scalars_at_ = static_cast<uint32_t>(size);
  size += round_up(8 * out.scalars_.size());
  out.slots_ = static_cast<uint32_t>(size);
  size += static_cast<size_t>(slot_count_) * kernels_.lanes * dtype_size(own_);
  for (auto& use : out.uses_) {
    use.scratch = static_cast<uint32_t>(size);
    const size_t tiles = out.strided_ ? kRowTiles : 1;
    size += round_up(tiles * static_cast<size_t>(kernels_.lanes) * use.size);
  }
  if (size > UINT32_MAX / 2) throw Error("cannot compute the group: its frame is too large");
  out.frame_size_ = static_cast<uint32_t>(size);
}

std::unique_ptr<CompiledGroup> compile(const Group& group, Isa isa) {
  if (!is_structured(group)) return GroupCompiler(group, isa).compile();
  auto compiled = std::make_unique<CompiledGroup>();
  compiled->rows_ = std::make_shared<RowGroup>(group, isa);
  return compiled;
}

bool CompiledGroup::is_loop() const noexcept {
  return kernels_ != nullptr && run_ != kernels_->run;
}

size_t CompiledGroup::bytes() const noexcept {
  if (rows_ != nullptr) return sizeof *this + rows_->bytes();
  return sizeof *this + code_.size() * sizeof code_[0] + uses_.size() * sizeof uses_[0] +
         scalars_.size() * sizeof scalars_[0];
}

}  // namespace hologram::cpu

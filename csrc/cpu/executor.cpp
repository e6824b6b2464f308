#include "cpu/executor.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstring>
#include <new>
#include <string>

#include "atlas/error.h"
#include "atlas/float_mode.h"
#include "cpu/convert.h"

namespace hologram::cpu {
namespace {

constexpr int kMaxNodes = 4096;
constexpr int kMaxRank = 64;
constexpr int64_t kClassBytes = 12'288;  // of the compute class's elements: the unit of work
constexpr int64_t kSerialElements = 32'768;
constexpr int kMaxStreams = 16;
constexpr size_t kFewStreams = 3;  // the processor fetches fewer ahead by itself
constexpr long kPrefetchDistance = 2048;
// Bytes that the caches may still hold: there, fetching ahead is only more work.
constexpr int64_t kPrefetchFrom = int64_t{4} << 20;
constexpr uint32_t kStackFrame = 32'768;
// Of f32's class, dtypes whose values are clean (cpu/convert.h).
constexpr DTypeSet kClean = dtype_bit(DType::b8) | dtype_bit(DType::u8) | dtype_bit(DType::i8) |
                            dtype_bit(DType::i16) | dtype_bit(DType::bf16);

const GroupKernels& kernels_for([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return avx512_kernels();
  if (isa == Isa::avx2) return avx2_kernels();
#endif
  return baseline_kernels();
}

constexpr size_t index_of(DType dtype) {
  return static_cast<size_t>(dtype);
}

// Dtypes whose every value a class represents.
DTypeSet exact_dtypes(ComputeClass compute_class) {
  constexpr DTypeSet small =
      dtype_bit(DType::b8) | dtype_bit(DType::u8) | dtype_bit(DType::i8) | dtype_bit(DType::i16);
  constexpr DTypeSet f32 = small | kHalves | dtype_bit(DType::f32);
  switch (compute_class) {
    case ComputeClass::f32: return f32;
    case ComputeClass::f64: return f32 | dtype_bit(DType::i32) | dtype_bit(DType::f64);
    case ComputeClass::i64: break;
  }
  return small | kIntegral;
}

// Whether `to` holds every value of `from`.
bool is_exact(DType from, DType to) {
  if (from == to || from == DType::b8) return true;
  switch (to) {
    case DType::i16: return from == DType::u8 || from == DType::i8;
    case DType::i32: return dtype_size(from) < 4 && !(dtype_bit(from) & kReal);
    case DType::i64: return !(dtype_bit(from) & kReal);
    case DType::f16: return from == DType::u8 || from == DType::i8;
    case DType::bf16: return from == DType::u8 || from == DType::i8;
    case DType::f32: return dtype_size(from) < 4;
    case DType::f64: return from != DType::i64;
    default: return false;
  }
}

[[noreturn]] void refuse(const std::string& why) {
  throw Error("cannot compile the group: " + why);
}

}  // namespace

Parallel& serial() {
  static auto& parallel = *new Parallel;
  return parallel;
}

// ---- compilation ----

// Emits instructions for the stores in order. One value is in the accumulator; a value that is
// needed when the accumulator is taken has a place in memory: its operand, or a slot.
class GroupCompiler {
 public:
  GroupCompiler(const Group& group, Isa isa)
      : group_(group),
        kernels_(choose(kernels_for(isa), group)),
        own_(kernels_.own),
        out_(std::make_unique<CompiledGroup>()) {}

  std::unique_ptr<CompiledGroup> compile() {
    check();
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

 private:
  // How an operation can read a value beside the accumulator.
  enum class Place : uint8_t {
    nowhere,  // not computed yet, or in the accumulator only
    memory,   // the class's dtype
    bf16,
    f16,
    splat,
  };
  struct Value {
    Reference where{};
    Place place = Place::nowhere;
    uint8_t registers = 0;  // Sethi-Ullman number: values alive at once while it is computed
    bool is_leaf = false;   // its place exists before any code
    bool clean = false;     // cpu/convert.h
    bool rounded = false;   // by the instruction that computes it
    bool exact = false;     // its dtype can hold it as it is in the accumulator
    int16_t slot = -1;
    int32_t uses = 0;          // not emitted yet
    int32_t first_store = -1;  // of the list through next_store_
  };

  // Groups in which everything is a truth value in memory have lanes of their own.
  static const ClassKernels& choose(const GroupKernels& kernels, const Group& group) {
    const auto in_memory = [](const Operand& operand) {
      return operand.dtype == DType::b8 && operand.layout != Layout::scalar;
    };
    const auto truth = [](const Node& node) {
      return node.kind == NodeKind::store ||
             (node.dtype == DType::b8 && node.kind != NodeKind::immediate);
    };
    if (std::all_of(group.operands.begin(), group.operands.end(), in_memory) &&
        std::all_of(group.nodes.begin(), group.nodes.end(), truth)) {
      return kernels.bytes;
    }
    return kernels.classes[static_cast<size_t>(group.compute_class)];
  }

  void check() {
    const auto& nodes = group_.nodes;
    if (nodes.size() > static_cast<size_t>(kMaxNodes)) refuse("too many nodes");
    if (group_.operands.size() > INT16_MAX) refuse("too many operands");
    const DTypeSet exact = exact_dtypes(group_.compute_class);
    const auto require = [](bool holds, const char* why) {
      if (!holds) refuse(why);
    };
    for (const Operand& operand : group_.operands) {
      require(kernels_.load[index_of(operand.dtype)] != nullptr, "an operand's dtype");
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      const Node& node = nodes[i];
      const auto value = [&](uint16_t v) {
        require(v < i && nodes[v].kind != NodeKind::store, "an operand is not an earlier value");
      };
      if (node.kind != NodeKind::store) {
        require((exact & dtype_bit(node.dtype)) != 0, "a dtype outside its compute class");
      }
      switch (node.kind) {
        case NodeKind::load: {
          require(node.a < group_.operands.size(), "an operand that is not there");
          const DType from = group_.operands[node.a].dtype;
          // Through f32 a tiny f64 would become false, a large one another integer.
          require(group_.compute_class != ComputeClass::f32 ||
                      (from != DType::f64 && from != DType::i64 && from != DType::i32) ||
                      (dtype_bit(node.dtype) & kReal) != 0,
                  "a conversion that the class cannot hold");
          require(group_.compute_class != ComputeClass::i64 || !(dtype_bit(from) & kReal) ||
                      node.dtype != DType::b8,
                  "a conversion that the class cannot hold");
          break;
        }
        case NodeKind::immediate:
          require(node.a < group_.immediates, "an immediate that is not there");
          break;
        case NodeKind::cast: value(node.a); break;
        case NodeKind::store:
          value(node.a);
          require(node.b < group_.operands.size(), "an operand that is not there");
          require(group_.operands[node.b].layout != Layout::scalar, "a store to a scalar");
          break;
        case NodeKind::compute: {
          require(static_cast<int>(node.op) < kOpCount, "an unknown operation");
          const OpInfo& info = op_info(node.op);
          const uint16_t args[] = {node.a, node.b, node.c};
          for (int k = 0; k < info.arity; ++k) value(args[k]);
          require(!info.has(kPredicate) || node.dtype == DType::b8, "a predicate that is not b8");
          for (int k = 0; k < info.arity; ++k) {
            const bool logical = info.has(kCondition) ? k == 0 : info.is_logical();
            require(!logical || nodes[args[k]].dtype == DType::b8, "a truth value that is not b8");
          }
          require(info.has(kPredicate) || info.supports_in_group(node.dtype),
                  "an operation without this dtype");
          const bool there = info.arity == 1 ? kernels_.unary[index(node.op)] != nullptr
                             : info.arity == 2
                                 ? kernels_.binary[index(node.op)][0] != nullptr
                                 : kernels_.ternary[index(node.op)][0][0][0] != nullptr;
          require(there, "an operation that its class does not have");
          break;
        }
      }
    }
  }

  static size_t index(Op op) { return static_cast<size_t>(op); }
  static int arity(const Node& node) {
    return node.kind == NodeKind::compute                                ? op_info(node.op).arity
           : node.kind == NodeKind::cast || node.kind == NodeKind::store ? 1
                                                                         : 0;
  }
  static uint16_t argument(const Node& node, int k) {
    return k == 0 ? node.a : k == 1 ? node.b : node.c;
  }

  // Uses by what the stores need, and Sethi-Ullman numbers.
  void count_uses() {
    const auto& nodes = group_.nodes;
    values_.resize(nodes.size());
    next_store_.assign(nodes.size(), -1);
    done_.assign(nodes.size(), false);
    computed_.assign(nodes.size(), false);
    for (size_t i = nodes.size(); i-- > 0;) {
      const Node& node = nodes[i];
      if (node.kind != NodeKind::store && values_[i].uses == 0) continue;
      for (int k = 0; k < arity(node); ++k) ++values_[argument(node, k)].uses;
      if (node.kind == NodeKind::store) {
        next_store_[i] = values_[node.a].first_store;
        values_[node.a].first_store = static_cast<int>(i);
      }
    }
  }

  // Pointers of the frame: operands, slots, immediates, converted scalars. Leaves get their places.
  void lay_out() {
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
          if (operand.dtype != own_ || node.dtype != own_) {
            value.where = {scalars, 8 * static_cast<int32_t>(out_->scalars_.size()), 0};
            out_->scalars_.push_back({node.a, operand.dtype, node.dtype});
          }
        } else {
          use(node.a).loaded = true;
          value.where = {node.a, 0, -1};
          if (is_exact(operand.dtype, node.dtype)) value.place = place_of(operand.dtype);
          reads_at(node.a) += value.place == Place::nowhere ? 1 : value.uses;
        }
      } else {
        int most = 0, count = 0;
        for (int k = 0; k < arity(node); ++k) {
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
  bool is_clean_unrounded(const Node& node) const {
    switch (node.kind) {
      case NodeKind::load: return (kClean & dtype_bit(group_.operands[node.a].dtype)) != 0;
      case NodeKind::immediate: return true;
      default: break;
    }
    for (int k = 0; k < arity(node); ++k) {
      if (!values_[argument(node, k)].clean) return false;
    }
    return true;
  }

  Place place_of(DType dtype) const {
    if (dtype == own_) return Place::memory;
    if (own_ != DType::f32) return Place::nowhere;
    return dtype == DType::bf16 ? Place::bf16 : dtype == DType::f16 ? Place::f16 : Place::nowhere;
  }

  CompiledGroup::Use& use(uint16_t operand) {
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
  int& reads_at(uint16_t operand) {
    const size_t area = group_.operands[operand].area;
    if (area >= reads_.size()) reads_.resize(area + 1);
    return reads_[area];
  }

  void push(AnyCode code, Reference x = {}, Reference y = {}) {
    out_->code_.push_back({code, x, y});
  }

  // ---- values ----

  // One use of a value is emitted.
  void release(int v) {
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
  void spill(int v) {
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

  void load_place(int v) {
    const Value& value = values_[v];
    switch (value.place) {
      case Place::splat: push(kernels_.load_splat, value.where); break;
      case Place::bf16: push(kernels_.load[index_of(DType::bf16)], value.where); break;
      case Place::f16: push(kernels_.load[index_of(DType::f16)], value.where); break;
      default: push(kernels_.load[index_of(own_)], value.where); break;
    }
  }

  // Brings value v to the accumulator, for a consumer that has `own` of its uses.
  void emit(int v, int own = 1) {
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

  static bool is_arithmetic(const Node& node) {
    return node.kind == NodeKind::compute && op_info(node.op).cost == Cost::arithmetic;
  }

  bool is_square(const Node& node) const {
    return node.kind == NodeKind::compute && op_info(node.op).arity == 2 && node.a == node.b;
  }

  // The operand that has to be in the accumulator first, or -1.
  int first_operand(int v) const {
    const Node& node = group_.nodes[v];
    const int n = arity(node);
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

  int heavier(int a, int b) const { return values_[b].registers > values_[a].registers ? b : a; }

  // Of the operands of a ternary operation that cannot be read from memory, but not `last`.
  int heaviest_of(const int (&args)[3], int last) const {
    int next = -1;
    for (const int v : args) {
      if (v == last || has_ternary_place(v)) continue;
      if (next < 0 || values_[v].registers > values_[next].registers) next = v;
    }
    return next;
  }

  void emit_node(int v, int own) {
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
  AnyCode round_to(const Node& node) const {
    const bool clean = node.dtype == DType::bf16 && own_ == DType::f32 && is_clean_unrounded(node);
    return clean ? kernels_.round_clean : kernels_.round[index_of(node.dtype)];
  }

  // Whether the only use is a store that rounds to the value's dtype itself and can happen now.
  bool stored_at_once(int v) {
    const Value& value = values_[v];
    const int s = value.first_store;
    return value.uses == 1 && s >= 0 &&
           group_.operands[group_.nodes[s].b].dtype == group_.nodes[v].dtype && !is_hazard(s);
  }

  // ---- stores ----

  // Whether memory that the store may overwrite is still to be read.
  bool is_hazard(int store) { return reads_at(group_.nodes[store].b) > 0; }

  void emit_store(int s) {
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

  void store_value(int s) {
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
  void keep(int v) {
    Value& value = values_[v];
    // The uses that remain read the slot.
    reads_at(group_.nodes[v].a) -= value.uses - 1;
    value.is_leaf = false;
    value.place = Place::nowhere;
    spill(v);
  }

  // ---- operations ----

  void compute(int v) {
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

  bool has_place(int v) const { return values_[v].place != Place::nowhere; }

  static Form form_of(Place place) {
    switch (place) {
      case Place::splat: return kSplat;
      case Place::bf16: return kMemoryBf16;
      case Place::f16: return kMemoryF16;
      default: return kMemory;
    }
  }

  // How two values that have places are read by one instruction, or -1.
  int pair_of(int a, int b) const {
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
  int product_pair(int v, int& x, int& y) const {
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
  int joins_product(const Node& node, bool second, int& x, int& y) const {
    const int product = second ? node.b : node.a, other = second ? node.a : node.b;
    if (!is_arithmetic(node) || (has_place(other) && accumulator_ != other)) return -1;
    return product_pair(product, x, y);
  }

  // The accumulator and x * y in one instruction, where the node is that.
  bool with_product(int v) {
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
  void push_arithmetic(int v, AnyCode plain, AnyCode to_bf16, Reference x = {}, Reference y = {}) {
    const Node& node = group_.nodes[v];
    const bool joins = to_bf16 != nullptr && node.dtype == DType::bf16 &&
                       is_clean_unrounded(node) && !stored_at_once(v);
    values_[v].rounded = joins;
    push(joins ? to_bf16 : plain, x, y);
  }

  void binary(int v) {
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

  // As the operand of a ternary operation: f16 is converted first.
  bool has_ternary_place(int v) const { return has_place(v) && values_[v].place != Place::f16; }
  static Other other_of(Place place) {
    return place == Place::splat ? kFromSplat : place == Place::bf16 ? kFromBf16 : kFromMemory;
  }

  void ternary(const Node& node) {
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
  void spill_ternary(int v) {
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

  // ---- the frame ----

  // A loop of the whole code if there is one.
  RunCode run_of(const std::vector<Instruction>& code) const {
    // In a loop every operand runs on, which slots do not.
    const auto in_slot = [&](const Instruction& i) {
      return i.x.pointer == slots_pointer_ || i.y.pointer == slots_pointer_;
    };
    const size_t length = code.size() - 1;
    if (length > Loop::kMost || std::any_of(code.begin(), code.end(), in_slot)) return kernels_.run;
    for (int i = 0; i < kernels_.loop_count; ++i) {
      const Loop& loop = kernels_.loops[i];
      if (static_cast<size_t>(loop.length) == length &&
          std::equal(code.begin(), code.end() - 1, loop.code,
                     [](const Instruction& a, AnyCode b) { return a.code == b; })) {
        return loop.run;
      }
    }
    return kernels_.run;
  }

  void finish() {
    auto& out = *out_;
    out.kernels_ = &kernels_;
    out.run_ = run_of(out.code_);
    out.class_ = group_.compute_class;
    out.operands_ = static_cast<int>(group_.operands.size());
    const auto round_up = [](size_t bytes) { return (bytes + 63) & ~size_t{63}; };
    // Two sets of pointers: the operands' and those of a block that is in scratch.
    size_t size = round_up(2 * sizeof(char*) * (group_.operands.size() + 3));
    out.scalars_at_ = static_cast<uint32_t>(size);
    size += round_up(8 * out.scalars_.size());
    out.slots_ = static_cast<uint32_t>(size);
    size += static_cast<size_t>(slot_count_) * kernels_.lanes * dtype_size(own_);
    for (auto& use : out.uses_) {
      use.scratch = static_cast<uint32_t>(size);
      size += round_up(static_cast<size_t>(kernels_.lanes) * use.size);
    }
    if (size > UINT32_MAX / 2) refuse("too large");
    out.frame_size_ = static_cast<uint32_t>(size);
  }

  const Group& group_;
  const ClassKernels& kernels_;
  const DType own_;
  std::unique_ptr<CompiledGroup> out_;
  std::vector<Value> values_;
  std::vector<int> next_store_;
  std::vector<bool> done_;      // of stores
  std::vector<bool> computed_;  // of values
  std::vector<int> path_;       // of emit
  std::vector<int> used_;       // index in uses_ by operand
  std::vector<int> reads_;
  std::vector<int> deferred_;
  std::vector<int16_t> free_slots_;
  int slot_count_ = 0;
  int32_t slots_pointer_ = 0;
  int accumulator_ = -1;
};

std::unique_ptr<CompiledGroup> compile(const Group& group, Isa isa) {
  return GroupCompiler(group, isa).compile();
}

// ---- running ----

namespace {

// Bits of `x` in the class's representation, rounded to `to`.
template <class T>
uint64_t scalar_bits(const void* x, DType from, DType to) {
  T value{};
  const auto each = [](DType dtype, auto&& body) {
    switch (dtype) {
      case DType::b8: body.template operator()<uint8_t>(); break;
      case DType::u8: body.template operator()<uint8_t>(); break;
      case DType::i8: body.template operator()<int8_t>(); break;
      case DType::i16: body.template operator()<int16_t>(); break;
      case DType::i32: body.template operator()<int32_t>(); break;
      case DType::i64: body.template operator()<int64_t>(); break;
      case DType::f16: body.template operator()<F16>(); break;
      case DType::bf16: body.template operator()<Bf16>(); break;
      case DType::f32: body.template operator()<float>(); break;
      case DType::f64: body.template operator()<double>(); break;
      default: break;
    }
  };
  each(from, [&]<class S>() {
    S s;
    std::memcpy(&s, x, sizeof s);
    value = convert<T>(s);
  });
  if (from == DType::b8 || to == DType::b8) value = value != T(0) ? T(1) : T(0);
  if (to != DType::b8 && !is_exact(from, to)) {
    each(to, [&]<class D>() { value = convert<T>(convert<D>(value)); });
  }
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

// `n` elements between strided memory and a block. `step` is in bytes.
void copy_strided(char* to, int64_t to_step, const char* from, int64_t from_step, int64_t n,
                  size_t size) {
  const auto loop = [&]<class U>(U) {
    if (to_step == static_cast<int64_t>(sizeof(U)) && from_step == to_step) {
      std::memcpy(to, from, static_cast<size_t>(n) * sizeof(U));
      return;
    }
    if (from_step == 0 && to_step == static_cast<int64_t>(sizeof(U))) {
      char pattern[16];
      for (size_t i = 0; i < sizeof pattern; i += sizeof(U))
        std::memcpy(pattern + i, from, sizeof(U));
      constexpr auto each = static_cast<int64_t>(sizeof pattern / sizeof(U));
      for (; n >= each; n -= each, to += sizeof pattern) std::memcpy(to, pattern, sizeof pattern);
      std::memcpy(to, pattern, static_cast<size_t>(n) * sizeof(U));
      return;
    }
    for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * to_step, from + i * from_step, sizeof(U));
  };
  switch (size) {
    case 1: loop(uint8_t{}); break;
    case 2: loop(uint16_t{}); break;
    case 4: loop(uint32_t{}); break;
    default: loop(uint64_t{}); break;
  }
}

}  // namespace

class GroupRun {
 public:
  GroupRun(const CompiledGroup& group, std::span<const Binding> bindings)
      : group_(group),
        bindings_(bindings),
        kernels_(*group.kernels_),
        size_(static_cast<long>(dtype_size(kernels_.own))),
        class_elements_(kClassBytes / size_) {}

  void run(Parallel& parallel) {
    int64_t elements = 0;
    for (const Binding& binding : bindings_) elements += binding.count;
    int threads = 1;
    if (elements >= kSerialElements) {
      for (const Binding& binding : bindings_) classes_ += classes_of(binding);
      threads = static_cast<int>(std::min<int64_t>(std::max(parallel.threads(), 1), classes_));
    }
    if (group_.strided_) {
      if (bindings_.size() > 1) {
        more_spaces_.resize(bindings_.size());
        spaces_ = more_spaces_.data();
      }
      for (size_t i = 0; i < bindings_.size(); ++i) collapse(bindings_[i], spaces_[i]);
    }
    std::unique_ptr<char, Free> frames;
    if (group_.frame_size_ > kStackFrame) {
      frames.reset(allocate(group_.frame_size_ * static_cast<size_t>(threads)));
      frames_ = frames.get();
    }
    if (threads == 1) {
      if (frames_ != nullptr) {
        whole(frames_);
      } else {
        alignas(64) char frame[kStackFrame];
        whole(frame);
      }
      return;
    }
    // Few enough for the processor to see streams, enough for threads to finish together.
    mode_ = float_mode();
    claim_ = std::clamp<int64_t>(classes_ / (threads * int64_t{16}), 1, 16);
    part_count_ = threads;
    parts_ = std::make_unique<Part[]>(static_cast<size_t>(threads));
    for (int i = 0; i < threads; ++i) {
      parts_[static_cast<size_t>(i)].next = classes_ * i / threads;
      parts_[static_cast<size_t>(i)].end = classes_ * (i + 1) / threads;
    }
    parallel.run(
        threads, [](void* self, int thread) { static_cast<GroupRun*>(self)->work(thread); }, this);
  }

 private:
  struct Free {
    void operator()(char* p) const { operator delete (p, std::align_val_t{64}); }
  };
  static char* allocate(size_t bytes) {
    void* p = operator new (bytes, std::align_val_t{64}, std::nothrow);
    if (p == nullptr) throw OutOfMemory(bytes, 0, 0, 0);
    return static_cast<char*>(p);
  }

  // The space of a binding with as few dimensions as the strides of its strided operands allow.
  struct Space {
    int rank = 0;
    size_t step = 1;               // from one row of numbers to the next
    std::vector<int64_t> numbers;  // sizes, then strides in bytes of each use

    int64_t* sizes() { return numbers.data(); }
    const int64_t* sizes() const { return numbers.data(); }
    int64_t* strides(size_t use) { return numbers.data() + (use + 1) * step; }
    const int64_t* strides(size_t use) const { return numbers.data() + (use + 1) * step; }
  };

  // A binding on its way through one thread.
  struct Member {
    Member(const Binding& what, const Space* where, char* memory)
        : binding(what), space(where), frame(memory) {}
    char* const* pointers() const { return reinterpret_cast<char* const*>(frame); }

    const Binding& binding;
    const Space* space;  // null where no operand is strided
    char* frame;
    int stream_count = 0;
    Stream streams[kMaxStreams];  // only so many have a value
  };

  int64_t classes_of(const Binding& binding) const {
    return (binding.count + class_elements_ - 1) / class_elements_;
  }

  // All of it, by the calling thread.
  void whole(char* frame) const {
    for (size_t i = 0; i < bindings_.size(); ++i) {
      if (bindings_[i].count > 0) range(set_up(i, frame), 0, bindings_[i].count);
    }
  }

  // A thread's part of all classes. Each begins with its own, the same in every run over as many:
  // what it has touched last is near. Then it helps the others.
  struct alignas(64) Part {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  void work(int thread) {
    if (frames_ != nullptr) {
      const auto taken = static_cast<size_t>(next_frame_.fetch_add(1, std::memory_order_relaxed));
      share(thread, frames_ + taken * group_.frame_size_);
    } else {
      alignas(64) char frame[kStackFrame];
      share(thread, frame);
    }
  }

  void share(int thread, char* frame) {
    const FloatModeGuard mode(mode_);
    for (int i = 0; i < part_count_; ++i) {
      finish(parts_[static_cast<size_t>((thread + i) % part_count_)], frame);
    }
  }

  // Some classes at a time as long as there are any.
  void finish(Part& part, char* frame) {
    size_t member = 0;
    int64_t first = 0;  // class of the member
    while (true) {
      int64_t at = part.next.fetch_add(claim_, std::memory_order_relaxed);
      const int64_t end = std::min(at + claim_, part.end);
      if (at >= end) break;
      while (at < end) {
        int64_t beyond = first + classes_of(bindings_[member]);
        for (; beyond <= at; beyond += classes_of(bindings_[++member])) first = beyond;
        const int64_t stop = std::min(end, beyond);
        range(set_up(member, frame), (at - first) * class_elements_,
              std::min((stop - first) * class_elements_, bindings_[member].count));
        at = stop;
      }
    }
  }

  int pointer_count() const { return group_.operands_ + 3; }

  Member set_up(size_t index, char* frame) const {
    const Binding& binding = bindings_[index];
    char** R = reinterpret_cast<char**>(frame);
    const int n = group_.operands_;
    for (int i = 0; i < n; ++i) R[i] = static_cast<char*>(binding.operands[i]);
    R[n] = frame + group_.slots_;
    R[n + 1] = reinterpret_cast<char*>(const_cast<uint64_t*>(binding.immediates));
    R[n + 2] = frame + group_.scalars_at_;
    for (size_t i = 0; i < group_.scalars_.size(); ++i) {
      const auto& use = group_.scalars_[i];
      const void* x = binding.operands[use.operand];
      uint64_t bits = 0;
      switch (group_.class_) {
        case ComputeClass::f32: bits = scalar_bits<float>(x, use.from, use.to); break;
        case ComputeClass::f64: bits = scalar_bits<double>(x, use.from, use.to); break;
        case ComputeClass::i64: bits = scalar_bits<int64_t>(x, use.from, use.to); break;
      }
      std::memcpy(R[n + 2] + 8 * i, &bits, sizeof bits);
    }
    Member member(binding, group_.strided_ ? &spaces_[index] : nullptr, frame);
    choose_streams(member);
    return member;
  }

  // Elements [begin, end); begin is the first of a block.
  void range(const Member& member, int64_t begin, int64_t end) const {
    if (group_.strided_) {
      strided_range(member, begin, end);
      return;
    }
    const int64_t whole = begin + (end - begin) / kernels_.lanes * kernels_.lanes;
    if (whole > begin) {
      group_.run_(group_.code_.data(), member.pointers(), begin * size_, whole * size_,
                  member.streams, member.stream_count);
    }
    if (whole < end) tail(member.frame, whole, end - whole);
  }

  char** block_pointers(char* frame) const {
    char** R = reinterpret_cast<char**>(frame);
    char** B = R + pointer_count();
    std::copy_n(R, pointer_count(), B);
    return B;
  }

  // Fewer elements than a block, all operands dense: in scratch.
  void tail(char* frame, int64_t at, int64_t n) const {
    char** B = block_pointers(frame);
    for (const auto& use : group_.uses_) {
      char* scratch = frame + use.scratch;
      const char* data = B[use.operand] + at * use.size;
      B[use.operand] = scratch;
      if (!use.loaded) continue;
      const size_t bytes = static_cast<size_t>(n) * use.size;
      std::memcpy(scratch, data, bytes);
      std::memset(scratch + bytes, 0, static_cast<size_t>(kernels_.lanes) * use.size - bytes);
    }
    group_.run_(group_.code_.data(), B, 0, 1, nullptr, 0);
    char* const* R = reinterpret_cast<char* const*>(frame);
    for (const auto& use : group_.uses_) {
      if (!use.stored) continue;
      std::memcpy(R[use.operand] + at * use.size, frame + use.scratch,
                  static_cast<size_t>(n) * use.size);
    }
  }

  // ---- strided operands: block by block ----

  void collapse(const Binding& binding, Space& space) const {
    const int rank = binding.rank;
    if (rank > kMaxRank) throw Error("more than 64 dimensions");
    const auto uses = group_.uses_.size();
    space.step = static_cast<size_t>(std::max(rank, 1));
    space.numbers.resize((uses + 1) * space.step);
    const auto stride = [&](size_t use, int d) {
      return binding.strides[group_.uses_[use].operand * rank + d];
    };
    for (int d = 0; d < rank; ++d) {
      const int64_t size = binding.sizes[d];
      if (size == 1) continue;
      bool merge = space.rank > 0;
      for (size_t u = 0; merge && u < uses; ++u) {
        if (!group_.uses_[u].strided) continue;
        merge = space.strides(u)[space.rank - 1] == stride(u, d) * size;
      }
      if (!merge) space.sizes()[space.rank++] = 1;
      space.sizes()[space.rank - 1] *= size;
      for (size_t u = 0; u < uses; ++u) space.strides(u)[space.rank - 1] = stride(u, d);
    }
    if (space.rank == 0) space.sizes()[space.rank++] = 1;
  }

  void strided_range(const Member& member, int64_t begin, int64_t end) const {
    const Space& space = *member.space;
    char* frame = member.frame;
    int64_t position[kMaxRank];
    int64_t rest = begin;
    for (int d = space.rank - 1; d >= 0; --d) {
      position[d] = rest % space.sizes()[d];
      rest /= space.sizes()[d];
    }
    char* const* R = member.pointers();
    char** B = block_pointers(frame);
    const char* held[kHeld] = {};
    for (int64_t at = begin; at < end; at += kernels_.lanes) {
      const int64_t n = std::min<int64_t>(kernels_.lanes, end - at);
      for (size_t u = 0; u < group_.uses_.size(); ++u) {
        const auto& use = group_.uses_[u];
        B[use.operand] = place_block(member, u, at, n, position, held);
      }
      group_.run_(group_.code_.data(), B, 0, 1, nullptr, 0);
      for (size_t u = 0; u < group_.uses_.size(); ++u) {
        const auto& use = group_.uses_[u];
        char* scratch = frame + use.scratch;
        if (!use.stored || B[use.operand] != scratch) continue;
        if (use.strided) {
          walk(space, u, R[use.operand], n, position,
               [&](char* data, int64_t stride, int64_t done, int64_t run) {
                 copy_strided(data, stride, scratch + done * use.size, use.size, run, use.size);
               });
        } else {
          std::memcpy(R[use.operand] + at * use.size, scratch, static_cast<size_t>(n) * use.size);
        }
      }
      advance(space, position, n);
    }
  }

  // Where the code finds the block of one operand: in its memory if that is contiguous, or a copy.
  // held[u]: the element that fills the copy since an earlier block, or null.
  char* place_block(const Member& member, size_t u, int64_t at, int64_t n, const int64_t* position,
                    const char** held) const {
    const auto& use = group_.uses_[u];
    const Space& space = *member.space;
    char* const* R = member.pointers();
    char* scratch = member.frame + use.scratch;
    const bool full = n == kernels_.lanes;
    if (!use.strided) {
      char* data = R[use.operand] + at * use.size;
      if (full) return data;
      if (use.loaded) std::memcpy(scratch, data, static_cast<size_t>(n) * use.size);
    } else {
      const int64_t left = space.sizes()[space.rank - 1] - position[space.rank - 1];
      const int64_t stride = space.strides(u)[space.rank - 1];
      if (full && left >= n && stride == use.size) {
        return R[use.operand] + offset(space, u, position);
      }
      if (use.loaded && !use.stored && u < kHeld) {
        const char* element = nullptr;
        if (full && left >= n && stride == 0) {
          element = R[use.operand] + offset(space, u, position);
          if (element == held[u]) return scratch;
        }
        held[u] = element;
      }
      if (use.loaded) {
        walk(space, u, R[use.operand], n, position,
             [&](const char* data, int64_t step, int64_t done, int64_t run) {
               copy_strided(scratch + done * use.size, use.size, data, step, run, use.size);
             });
      }
    }
    if (use.loaded && !full) {
      std::memset(scratch + n * use.size, 0, static_cast<size_t>(kernels_.lanes - n) * use.size);
    }
    return scratch;
  }

  static int64_t offset(const Space& space, size_t u, const int64_t* position) {
    int64_t bytes = 0;
    for (int d = 0; d < space.rank; ++d) bytes += position[d] * space.strides(u)[d];
    return bytes;
  }

  // Calls body(address, stride, elements before, elements) for each piece of a row in the block.
  template <class Body>
  static void walk(const Space& space, size_t u, char* base, int64_t n, const int64_t* position,
                   Body&& body) {
    int64_t here[kMaxRank];
    std::copy_n(position, space.rank, here);
    const int inner = space.rank - 1;
    const int64_t stride = space.strides(u)[inner];
    for (int64_t done = 0; done < n;) {
      const int64_t run = std::min(space.sizes()[inner] - here[inner], n - done);
      body(base + offset(space, u, here), stride, done, run);
      done += run;
      advance(space, here, run);
    }
  }

  static void advance(const Space& space, int64_t* position, int64_t n) {
    for (int d = space.rank - 1; d >= 0; --d) {
      position[d] += n;
      if (position[d] < space.sizes()[d]) return;
      n = position[d] / space.sizes()[d];
      position[d] %= space.sizes()[d];
    }
  }

  void choose_streams(Member& member) const {
    if (group_.strided_ || group_.uses_.size() < kFewStreams) return;
    int64_t bytes = 0;
    for (const auto& use : group_.uses_) bytes += use.size * member.binding.count;
    if (bytes < kPrefetchFrom) return;
    for (const auto& use : group_.uses_) {
      if (member.stream_count == kMaxStreams) break;
      member.streams[member.stream_count++] = {use.operand, use.size, kPrefetchDistance};
    }
  }

  static constexpr size_t kHeld = 16;

  const CompiledGroup& group_;
  const std::span<const Binding> bindings_;
  const ClassKernels& kernels_;
  const long size_;  // of the class's elements
  const int64_t class_elements_;
  FloatMode mode_ = 0;   // of the calling thread
  int64_t classes_ = 0;  // of all members
  int64_t claim_ = 1;    // classes that a thread takes at a time
  Space space_, *spaces_ = &space_;
  std::vector<Space> more_spaces_;  // of members, where operands are strided
  char* frames_ = nullptr;          // one per thread, if they do not fit the stack
  std::unique_ptr<Part[]> parts_;   // where several threads run
  int part_count_ = 0;
  std::atomic<int> next_frame_{0};
};

size_t CompiledGroup::bytes() const noexcept {
  return sizeof *this + code_.size() * sizeof code_[0] + uses_.size() * sizeof uses_[0] +
         scalars_.size() * sizeof scalars_[0];
}

void run(const CompiledGroup& group, std::span<const Binding> bindings, Parallel& parallel) {
  GroupRun(group, bindings).run(parallel);
}

}  // namespace hologram::cpu

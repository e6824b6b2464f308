#include "gpu/cold.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "atlas/error.h"
#include "gpu/dialect/cold_program.h"
#include "gpu/op_text.h"
#include "gpu/rounding.h"

namespace hologram::gpu {
namespace {

static_assert(HG_COLD_BUFFERS + 1 == kColdArguments);
static_assert(kColdArguments + 1 == kMostBuffers);
// The numbers that cold.h has in its text.
static_assert(static_cast<int>(DType::b8) == 0 && static_cast<int>(DType::u8) == 1 &&
              static_cast<int>(DType::i8) == 2 && static_cast<int>(DType::i16) == 3 &&
              static_cast<int>(DType::i32) == 4 && static_cast<int>(DType::i64) == 5 &&
              static_cast<int>(DType::f16) == 6 && static_cast<int>(DType::bf16) == 7 &&
              static_cast<int>(DType::f32) == 8 && static_cast<int>(DType::f64) == 9);
static_assert(static_cast<int>(Draw::uniform) == 0 && static_cast<int>(Draw::normal) == 1 &&
              static_cast<int>(Draw::integer) == 2 && static_cast<int>(Draw::long_integer) == 3);
static_assert(kPlanes == 1 && kMiddle == 2 && kRows == 3 && kColumns == 4 && kEach == 7);
static_assert(kFoldRows == 16 && kClassBytes == 12288 && kFoldBytes == 512);
static_assert(HG_COLD_SLOTS <= HG_COLD_PLACE);

// The counts before the words of the parameters.
constexpr Parameter::Kind kCounts[] = {Parameter::Kind::threads,   Parameter::Kind::columns,
                                       Parameter::Kind::rows,      Parameter::Kind::parts,
                                       Parameter::Kind::part_rows, Parameter::Kind::joined};
static_assert((std::size(kCounts) + HG_COLD_WORDS) * 8 == kMostParameterBytes);

// The bits of a number in a compute type.
uint64_t bits_of(double number, ComputeType type) {
  switch (type) {
    case ComputeType::f32: return std::bit_cast<uint32_t>(static_cast<float>(number));
    case ComputeType::f64: return std::bit_cast<uint64_t>(number);
    case ComputeType::i64: break;
  }
  using Limits = std::numeric_limits<int64_t>;
  if (std::isinf(number)) return static_cast<uint64_t>(number < 0 ? Limits::min() : Limits::max());
  return static_cast<uint64_t>(static_cast<int64_t>(number));
}

class ColdStep {
 public:
  ColdStep(const Steps& steps, const Step& step, const Variant& variant)
      : steps_(steps),
        step_(step),
        nodes_(step.nodes),
        variant_(variant),
        spreads_(spreads_of(nodes_, steps.operands, steps.structured)),
        turns_(turns_of(nodes_)),
        places_(nodes_.size(), kNowhere) {
    kernel_.needs_f64 = steps.compute_type == ComputeType::f64;
    for (const Parameter::Kind kind : kCounts) kernel_.parameters.push_back({kind, 8});
  }

  Kernel run() {
    const char* skeleton = "joins";
    if (variant_.joins) {
      folds_down();
    } else {
      switch (step_.skeleton) {
        case Skeleton::elements: skeleton = "elements", elements(); break;
        case Skeleton::rows: skeleton = "rows", rows(); break;
        case Skeleton::classes: skeleton = "classes", classes(); break;
        case Skeleton::fold_down: skeleton = "fold_down", folds_down(); break;
        case Skeleton::scan: skeleton = "scan", scan(); break;
      }
    }
    kernel_.name = std::string("hg_cold_") + skeleton + "_" + dtype_name(own());
    kernel_.program = program();
    if (kernel_.parameters.size() - std::size(kCounts) > HG_COLD_WORDS) refuse("numbers");
    if (kernel_.buffers.size() > HG_COLD_BUFFERS) refuse("buffers");
    return std::move(kernel_);
  }

 private:
  using Words = std::vector<uint32_t>;
  using Indices = std::vector<uint16_t>;
  static constexpr uint32_t kNowhere = 0xffff;

  [[noreturn]] static void refuse(const std::string& of_what) {
    throw Error("cannot compute the group without compiling it: it has too many " + of_what);
  }
  DType own() const { return own_dtype(steps_.compute_type); }

  // ---- what is known of nodes ----

  bool is_of_elements(uint16_t node) const {
    // Threads of elements have no row of their own.
    if (step_.skeleton == Skeleton::elements) return true;
    if (step_.skeleton == Skeleton::fold_down || step_.skeleton == Skeleton::scan) return true;
    return has_columns(spreads_[node]);
  }
  Indices stores(bool of_columns) const {
    return nodes_where(nodes_, [&](const Node& node, uint16_t) {
      return node.kind == NodeKind::store &&
             has_columns(steps_.operands[node.b].spread) == of_columns;
    });
  }
  Indices all_stores() const { return nodes_of(nodes_, NodeKind::store); }
  // What is computed for elements, for a value; not through folds, scans and picks.
  void need(uint16_t node, std::vector<bool>& needed) const {
    if (needed[node]) return;
    needed[node] = true;
    const Node& its = nodes_[node];
    if (is_fold_or_scan(its)) return;
    if (its.kind == NodeKind::pick) {  // what is picked is computed beside
      if (!is_of_elements(node)) return;
      need(its.b, needed);
      return need_of_row(its.a, needed);
    }
    for (int k = 0; k < arity_of(its); ++k) need(argument_of(its, k), needed);
  }
  // Of what is picked, what is the same in all columns: that is not computed beside.
  void need_of_row(uint16_t picked, std::vector<bool>& needed) const {
    std::vector<bool> all(nodes_.size());
    need(picked, all);
    for (uint16_t i = 0; i < nodes_.size(); ++i) {
      if (all[i] && !has_columns(spreads_[i])) need(i, needed);
    }
  }

  // ---- arguments ----

  uint32_t buffer(const Buffer& its) { return static_cast<uint32_t>(kernel_.place_of(its)); }
  uint32_t part(size_t number) { return buffer({true, static_cast<uint16_t>(number)}); }
  // The place of a parameter in the words.
  uint32_t word(Parameter its) {
    its.bytes = 8;
    return static_cast<uint32_t>(kernel_.place_of(its) - std::size(kCounts));
  }
  // As instructions name a value.
  uint32_t value(uint16_t node) {
    if (nodes_[node].kind == NodeKind::immediate) {
      return HG_COLD_NUMBER + word({Parameter::Kind::immediate, 8, nodes_[node].a});
    }
    if (places_[node] == kNowhere) throw Error("a value of a cold program is not there");
    return places_[node];
  }

  // Of an operand, the last word of its instruction.
  uint32_t place_in(uint16_t which) {
    const Operand& its = steps_.operands[which];
    uint32_t kind = steps_.structured ? its.spread : kEach, strides = 0;
    if (its.layout == Layout::scalar) kind = HG_COLD_SCALAR;
    if (its.layout == Layout::strided) {
      kind = HG_COLD_STRIDED;
      for (uint8_t d = 0; d < variant_.rank; ++d) {
        const uint32_t size = word({Parameter::Kind::size, 8, 0, d});
        if (d == 0) sizes_ = size;
      }
      for (uint8_t d = 0; d < variant_.rank; ++d) {
        const uint32_t stride = word({Parameter::Kind::stride, 8, which, d});
        if (d == 0) strides = stride;
      }
    }
    return buffer({false, which}) | kind << 8 | strides << 16;
  }

  // ---- slots ----

  // Elements' values are there for one run of their code.
  uint32_t element_slot() {
    if (element_slots_ == HG_COLD_SLOTS) refuse("values");
    return element_slots_++;
  }
  uint32_t row_slot() {
    if (row_slots_ == HG_COLD_SLOTS) refuse("values");
    return HG_COLD_ROW + row_slots_++;
  }

  // ---- instructions ----

  void put(uint32_t kind, uint32_t code, uint32_t dtype, uint32_t operand, uint32_t slot,
           uint32_t x, uint32_t y, uint32_t z, uint32_t last) {
    Words& to = *code_;
    to.push_back(kind | code << 8 | dtype << 16 | operand << 24);
    to.push_back((slot & HG_COLD_PLACE) | x << 16);
    to.push_back(y | z << 16);
    to.push_back(last);
  }
  uint32_t slot_of(bool to_rows) { return to_rows ? row_slot() : element_slot(); }

  // The instruction of a node that is neither an immediate nor a fold nor a scan.
  void instruction(uint16_t i, bool to_rows) {
    const Node& node = nodes_[i];
    const uint32_t dtype = is_rounded(nodes_, i, steps_.operands, steps_.compute_type)
                               ? static_cast<uint32_t>(node.dtype)
                               : HG_COLD_NO_DTYPE;
    switch (node.kind) {
      case NodeKind::load: {
        const auto from = static_cast<uint32_t>(steps_.operands[node.a].dtype);
        const uint32_t at = place_in(node.a);
        put(HG_COLD_LOAD, 0, dtype, from, places_[i] = slot_of(to_rows), 0, 0, 0, at);
        break;
      }
      case NodeKind::compute: {
        const int arity = op_info(node.op).arity;
        const uint32_t x = value(node.a), y = arity > 1 ? value(node.b) : x,
                       z = arity > 2 ? value(node.c) : x;
        put(HG_COLD_COMPUTE, static_cast<uint32_t>(node.op), dtype, 0,
            places_[i] = slot_of(to_rows), x, y, z, 0);
        break;
      }
      case NodeKind::cast: {
        const uint32_t x = value(node.a);
        put(HG_COLD_CAST, 0, dtype, 0, places_[i] = slot_of(to_rows), x, 0, 0, 0);
        break;
      }
      case NodeKind::position:
        put(HG_COLD_POSITION, node.b == kColumns, dtype, 0, places_[i] = slot_of(to_rows), 0, 0, 0,
            0);
        break;
      case NodeKind::random: {
        std::array<uint32_t, kDrawImmediates> bits{};
        for (uint16_t k = 0; k < kDrawImmediates; ++k) {
          bits[k] = word({Parameter::Kind::bits, 8, static_cast<uint16_t>(node.a + k)});
        }
        put(HG_COLD_DRAW, node.b, dtype, 0, places_[i] = slot_of(to_rows), bits[0], bits[1],
            bits[2], static_cast<uint32_t>(digits_of(node.dtype)));
        break;
      }
      case NodeKind::pick: pick(i, to_rows); break;
      case NodeKind::store: {
        const uint32_t x = value(node.a), at = place_in(node.b);
        put(HG_COLD_STORE, 0, HG_COLD_NO_DTYPE,
            static_cast<uint32_t>(steps_.operands[node.b].dtype), 0, x, 0, 0, at);
        break;
      }
      default: break;
    }
  }

  // The elements' code that makes what is picked has slots of rows, for its own time.
  void pick(uint16_t i, bool to_rows) {
    const Node& node = nodes_[i];
    const uint32_t y = value(node.b);
    std::vector<bool> needed(nodes_.size());
    need(node.a, needed);
    const std::vector<uint32_t> places = places_;
    const uint32_t slots = row_slots_;
    Words own;
    Words* const outside = std::exchange(code_, &own);
    for (uint16_t k = 0; k < i; ++k) {
      if (needed[k] && has_columns(spreads_[k]) && !is_fold_or_scan(nodes_[k]))
        instruction(k, true);
    }
    code_ = outside;
    const uint32_t x = value(node.a);
    places_ = places;
    row_slots_ = slots;
    const auto count = static_cast<uint32_t>(own.size() / HG_COLD_INSTRUCTION);
    const auto at = static_cast<uint32_t>(picked_.size());
    picked_.insert(picked_.end(), own.begin(), own.end());
    put(HG_COLD_PICK, 0, HG_COLD_NO_DTYPE, 0, places_[i] = slot_of(to_rows), x, y, 0,
        at | count << 16);
  }

  // ---- phases ----

  struct Phase {
    Words rows, elements, folds, later;
  };
  Phase& phase() { return phases_.emplace_back(); }

  void into(Words& code, const Indices& nodes, bool to_rows) {
    code_ = &code;
    for (const uint16_t i : nodes) {
      if (nodes_[i].kind != NodeKind::immediate) instruction(i, to_rows);
    }
  }
  // The values of elements that some values are of.
  Indices elements_of(const Indices& values) const {
    std::vector<bool> needed(nodes_.size());
    for (const uint16_t i : values) need(nodes_[i].a, needed);
    return nodes_where(nodes_, [&](const Node&, uint16_t i) {
      return needed[i] && is_of_elements(i) && !is_fold_or_scan(nodes_[i]);
    });
  }
  void elements_code(Phase& to, const Indices& values) {
    element_slots_ = 0;
    into(to.elements, elements_of(values), false);
  }
  void fold_or_scan(Phase& to, uint16_t i, uint32_t from, uint32_t joined, uint32_t slot,
                    uint32_t x) {
    const Node& node = nodes_[i];
    double start = op_info(node.op).identity;
    if (node.kind == NodeKind::scan && start == 0) start = 0;  // of a sum it is +0
    const uint64_t bits = bits_of(start, steps_.compute_type);
    to.folds.push_back(static_cast<uint32_t>(node.op) | static_cast<uint32_t>(node.dtype) << 8 |
                       from << 16 | joined << 24);
    to.folds.push_back((slot & HG_COLD_PLACE) | x << 16);
    to.folds.push_back(static_cast<uint32_t>(bits));
    to.folds.push_back(static_cast<uint32_t>(bits >> 32));
  }
  // Folds, a few to a phase, each with the elements' code that it needs. The first one's row code
  // is in `first`.
  void folds(const Indices& all, Phase first, const std::function<uint32_t(size_t)>& part_of) {
    for (size_t begin = 0; begin < all.size(); begin += HG_COLD_FOLDS) {
      Phase& its = phase();
      if (begin == 0) its = std::move(first);
      const size_t end = std::min<size_t>(all.size(), begin + HG_COLD_FOLDS);
      elements_code(its, {all.begin() + static_cast<int64_t>(begin),
                          all.begin() + static_cast<int64_t>(end)});
      for (size_t k = begin; k < end; ++k) {
        const uint32_t x = value(nodes_[all[k]].a);
        places_[all[k]] = row_slot();
        fold_or_scan(its, all[k], part_of(k), 0, places_[all[k]], x);
      }
    }
  }

  // ---- skeletons ----

  void elements() {
    Phase& its = phase();
    const Indices all = all_stores();
    elements_code(its, all);
    into(its.elements, all, false);  // after all loads
  }

  // What there is one of for a row, of one turn.
  Indices row_values(int turn) const {
    return nodes_where(nodes_, [&](const Node& node, uint16_t i) {
      return node.kind != NodeKind::store && turns_[i] == turn && !is_of_elements(i) &&
             !is_fold_or_scan(node);
    });
  }

  void rows() {
    const int last = *std::ranges::max_element(turns_);
    for (int turn = 0; turn <= last; ++turn) {
      Phase first;
      into(first.rows, row_values(turn), true);
      const Indices of_turn = nodes_where(nodes_, [&](const Node& node, uint16_t i) {
        return is_row_fold(node) && turns_[i] == turn + 1;
      });
      if (turn < last) {
        folds(of_turn, std::move(first), [](size_t) { return 0u; });
        continue;
      }
      const Indices of_elements = stores(true), of_rows = stores(false);
      Phase& elements = phase();
      elements = std::move(first);
      if (!of_elements.empty()) {
        elements_code(elements, of_elements);
        into(elements.elements, of_elements, false);
      }
      if (!of_rows.empty()) {
        Phase& its = of_elements.empty() ? elements : phase();
        into(its.rows, of_rows, true);
      }
    }
  }

  void classes() {
    Phase first;
    into(first.rows, row_values(0), true);
    folds(nodes_of(nodes_, NodeKind::fold), std::move(first), [&](size_t k) { return part(k); });
  }

  // Folds down rows, and what joins the partial results of any folds.
  void folds_down() {
    const Indices all = nodes_of(nodes_, NodeKind::fold);
    if (variant_.joins) {
      Phase& its = phase();
      for (size_t k = 0; k < all.size(); ++k) {
        const uint32_t from = part(k), to = variant_.parts ? part(all.size() + k) : 0;
        places_[all[k]] = row_slot();
        fold_or_scan(its, all[k], from, to, places_[all[k]], 0);
      }
    } else {
      folds(all, {}, [&](size_t k) { return variant_.parts ? part(k) : 0; });
    }
    if (variant_.parts) return;
    code_ = &phases_.back().later;
    for (const uint16_t i : all_stores()) {
      const Node& node = nodes_[i];
      const uint32_t x = value(node.a),
                     dtype = static_cast<uint32_t>(steps_.operands[node.b].dtype);
      // One for each thread, wherever they are in the space.
      const uint32_t at = buffer({false, node.b}) | static_cast<uint32_t>(kEach) << 8;
      put(HG_COLD_STORE, 0, HG_COLD_NO_DTYPE, dtype, 0, x, 0, 0, at);
    }
  }

  void scan() {
    const Indices scans = nodes_of(nodes_, NodeKind::scan);
    if (scans.size() > HG_COLD_SCANS) refuse("scans");
    Phase& its = phase();
    elements_code(its, scans);
    for (const uint16_t i : scans) {
      const uint32_t slot = element_slot();
      fold_or_scan(its, i, 0, 0, slot, value(nodes_[i].a));
      places_[i] = slot;
    }
    into(its.later, all_stores(), false);
  }

  // ---- the whole ----

  Words program() const {
    Words all(HG_COLD_HEADER);
    const bool down = step_.skeleton == Skeleton::fold_down ||
                      (step_.skeleton == Skeleton::scan && step_.axis == kMiddle);
    all[0] = (steps_.structured ? HG_COLD_STRUCTURED : 0u) |
             (has_columns(step_.domain) ? HG_COLD_COLUMNS : 0u) | (down ? HG_COLD_DOWN : 0u) |
             (variant_.parts ? HG_COLD_PARTS : 0u);
    all[1] = static_cast<uint32_t>(phases_.size());
    all[2] = HG_COLD_HEADER;
    all[3] = variant_.rank;
    all[4] = sizes_;
    const size_t picked_at = all.size() + phases_.size() * HG_COLD_PHASE;
    all.resize(picked_at);
    const auto add = [&](const Words& code) {
      Words moved = code;
      for (size_t i = 0; i < moved.size(); i += HG_COLD_INSTRUCTION) {
        if ((moved[i] & 0xff) == HG_COLD_PICK) moved[i + 3] += static_cast<uint32_t>(picked_at);
      }
      all.insert(all.end(), moved.begin(), moved.end());
      return static_cast<uint32_t>(all.size());
    };
    if (add(picked_) > 0xffff) refuse("picks");
    for (size_t i = 0; i < phases_.size(); ++i) {
      const Phase& its = phases_[i];
      const size_t at = HG_COLD_HEADER + i * HG_COLD_PHASE;
      all[at] = static_cast<uint32_t>(all.size());
      all[at + 1] = add(its.rows);
      all[at + 2] = all[at + 1];
      all[at + 3] = add(its.elements);
      all[at + 4] = all[at + 3];
      all[at + 5] = static_cast<uint32_t>(its.folds.size() / HG_COLD_INSTRUCTION);
      all.insert(all.end(), its.folds.begin(), its.folds.end());
      all[at + 6] = static_cast<uint32_t>(all.size());
      all[at + 7] = add(its.later);
    }
    return all;
  }

  const Steps& steps_;
  const Step& step_;
  const std::vector<Node>& nodes_;
  const Variant variant_;
  const std::vector<Spread> spreads_;
  const std::vector<int> turns_;
  Kernel kernel_;
  std::vector<uint32_t> places_;  // of each value that is there
  std::vector<Phase> phases_;
  Words picked_;  // elements' code of picks
  Words* code_ = nullptr;
  uint32_t element_slots_ = 0, row_slots_ = 0, sizes_ = 0;
};

}  // namespace

unsigned cold_elements(ComputeType type) {
  return type == ComputeType::f32 ? 4 : 2;
}

Kernel make_cold(const Steps& steps, size_t step, const Variant& variant) {
  return ColdStep(steps, steps.list[step], variant).run();
}

namespace {

template <class Has>
std::string apply_text(const std::string& type, Has&& has) {
  std::string text = "HG_FUNCTION " + type + " hg_cold_apply(hg_u32 op, " + type + " x, " + type +
                     " y, " + type + " z) {\n  switch (op) {\n";
  for (size_t i = 0; i < kOpInfos.size(); ++i) {
    const OpInfo& info = kOpInfos[i];
    if (!has(info)) continue;
    text += "    case " + std::to_string(i) + "u: return hg_op_" + info.name + "<" + type +
            ">(x, y, z);\n";
  }
  return text + "    default: return x;\n  }\n}\n";
}
// What a device without f64 computes in it: running values of scans.
bool is_scan(const OpInfo& info) {
  return info.scan != nullptr;
}

}  // namespace

std::string cold_library_text() {
  std::string text = "#include \"hologram_gpu.h\"\n\n" + op_table_text();
  for (const ComputeType type : {ComputeType::f32, ComputeType::i64, ComputeType::f64}) {
    const std::string own = type_text(type);
    const auto is_of_type = [&](const OpInfo& info) {
      return info.supports(own_dtype(type)) || info.supports(DType::b8);
    };
    if (type == ComputeType::f64) text += "#if HG_HAS_F64\n";
    text += apply_text(own, is_of_type);
    if (type == ComputeType::f64) text += "#else\n" + apply_text("hg_double", is_scan) + "#endif\n";
  }
  return text + "\n#include \"cold.h\"\n";
}

}  // namespace hologram::gpu

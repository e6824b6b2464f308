// What makes the text of a step's kernel, for emit.cpp and emit_*.cpp only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "atlas/group.h"
#include "atlas/op_info.h"
#include "gpu/emit.h"
#include "gpu/steps.h"

namespace hologram::gpu {

inline std::string number(uint64_t n) {
  return std::to_string(n);
}

class Emitter {
 public:
  Emitter(const Steps& steps, const Step& step, const Variant& variant, unsigned vector,
          unsigned vectors);

  Kernel run();

 private:
  // ---- text ----

  void line(const std::string& text);
  void open(const std::string& text);
  void close();
  static std::string value(uint16_t node) { return "v" + number(node); }
  static std::string fold(uint16_t node) { return "f" + number(node); }
  static std::string half(uint16_t node) { return "h" + number(node); }

  std::string apply(Op op, const std::string& type, const std::string& x, const std::string& y,
                    const std::string& z);
  // Of a fold, in its order: x comes before y.
  std::string join(Op op, const std::string& x, const std::string& y);

  // ---- arguments ----

  std::string buffer(const Buffer& its) { return "b" + number(kernel_.place_of(its)); }
  std::string operand(uint16_t which) { return buffer({false, which}); }
  std::string part(uint16_t which) { return buffer({true, which}); }
  std::string parameter(Parameter its);
  std::string parameter(Parameter::Kind kind) { return parameter(Parameter{kind}); }
  std::string field_type(const Parameter& its) const;

  // ---- where elements are (emit_places.cpp) ----
  //
  // e: the element of the space, c: its column, r: its row of all planes, m: that in its plane,
  // l: the plane. What of these a kernel needs is put before its body.

  std::string place(char which);
  std::string place_of(Spread spread);
  bool needs(char which) const { return needed_.find(which) != std::string::npos; }
  // Declares what is needed of them, given the row.
  std::string row_places(const std::string& indent = "");
  std::string place_in(uint16_t which);
  // Where the element of each strided operand lies.
  std::string strided_places();
  // The first element of a thread's in an operand.
  std::string first_place(uint16_t which);
  // The number of the thread, of those that have something to do.
  std::string thread_text();
  std::string return_text(const std::string& which);

  // ---- values (emit_values.cpp) ----

  // A value as it is used: a name, or a parameter.
  std::string use(uint16_t node);
  // Whether a value that is rounded to a half dtype is kept as its bits: to be stored, or widened
  // where it is used.
  bool is_in_half(uint16_t i) const;
  std::string in_half(uint16_t i, const std::string& x) const;
  // The value of a node, rounded where it has to be.
  std::string rounded(uint16_t i, const std::string& x) const;
  std::string loaded(const Node& node, const std::string& element);
  unsigned drawn_at_once(const Node& node) const;
  std::string bits(const Node& node, int i);
  std::string drawn(uint16_t i);
  bool has_words(const Node& node) const;
  void emit_words(const std::vector<bool>& needed);
  // The elements of an operand that a thread has side by side, in a register; empty where an
  // element is read by itself.
  std::string few_of(uint16_t i);
  // The value of a node that is neither a fold nor a store, nor a pick, before it is rounded.
  std::string node_text(uint16_t i);
  // Declares the value of a node that is neither a fold nor a store.
  void emit_node(uint16_t i);
  bool is_by_divisor(uint16_t i) const;
  std::string divisor(const Node& quotient) const;
  void emit_divisor(uint16_t i);
  void emit_pick(uint16_t i);

  // What is computed for elements, for a value; not through folds, nor picks.
  void need(uint16_t node, std::vector<bool>& needed) const;
  // What folds and picks are made of as well: also of elements, which they compute themselves.
  void need_through(std::vector<bool>& needed) const;
  // Declares the values that there are one of for a row, of those that `needed` is made of.
  void emit_row_values(std::vector<bool> needed);
  // Elements beside rows: what differs from column to column.
  bool is_of_elements(uint16_t node) const;
  // The values of `needed` that elements have, or that rows have.
  void emit_values(const std::vector<bool>& needed, bool of_elements);
  // What the values of some folds or scans are of, for one element.
  void emit_all(const std::vector<uint16_t>& of);

  std::string stored(const Node& store);
  void emit_store(const Node& store);
  std::vector<uint16_t> stores() const { return nodes_of(nodes_, NodeKind::store); }
  std::vector<uint16_t> folds_of_step() const { return nodes_of(nodes_, NodeKind::fold); }

  // ---- bf16, two elements at a time (emit_bf16.cpp) ----

  // Whether numbers that bf16 has become one, rounded to it.
  bool takes_bf16(const Node& node) const;
  bool stays_in_bf16(const Node& node) const;
  // Whether a function has a form for that (dialect/functions.h).
  bool has_bf16_form(uint16_t i) const;
  bool becomes_bf16(uint16_t i) const;
  bool is_rounded_result(uint16_t i) const;
  // Whether what has been computed in f32 becomes bf16 only where it is stored.
  bool stores_rounded_result(const Node& store) const;

  bool computes_two() const;
  // Whether a node has two values where the text is now.
  bool is_two(uint16_t i) const;
  // Whether they lie in a word: half(i).
  bool is_pair(uint16_t i) const;
  // The element of a turn that the text is of, and what its values' names end in.
  std::string element() const { return lane_ == 0 ? "k" : "k + 1u"; }
  std::string lane() const { return lane_ == 0 ? "a" : "b"; }
  // A text of the one element and of the other.
  std::pair<std::string, std::string> both(const std::function<std::string()>& text);
  std::string pair_of(uint16_t i);
  void emit_two(uint16_t i);
  // Puts what an element is to be, or two, among those that a thread stores at once.
  void emit_few_set(const Node& store);

  // ---- elements (emit_elements.cpp) ----

  // Whether an operand is read or written a vector at a time.
  bool in_vectors(uint16_t which) const;
  void elements();
  void elements_prologue();
  void vectors(const std::vector<bool>& needed);
  // A line for each operand: `what` moves its vector, `rest` comes behind the place.
  void each_few(const std::vector<uint16_t>& operands, const std::string& what,
                const std::string& rest);
  // Where a thread has several vectors, what follows is for each of them.
  void open_vectors();
  std::string of_vector() const { return kernel_.vectors > 1 ? "[u]" : ""; }
  // How many elements a vector has that there are, if there is one.
  std::string left_text();
  std::string threads_text() { return parameter(Parameter::Kind::threads); }
  // Of so many of a thread's; unrolled, so that the elements stay in registers.
  void each_element(unsigned count);
  // Ends it. What its body needs of places goes to `begin`, where `before` was needed.
  void close_each_element(size_t begin, const std::string& before);

  // ---- rows (emit_rows.cpp) ----

  struct Held {
    std::optional<uint16_t> read, written;  // by a pass
  };

  unsigned accumulators() const { return accumulators_of(type_); }
  bool is_warp() const { return variant_.team == Team::warp; }
  unsigned accumulators_of_thread() const { return accumulators() / kWarp; }
  void rows();
  // A number of each warp of a block.
  std::string shared_text() const;
  // What folds and stores take in.
  std::vector<uint16_t> values_of(const std::vector<uint16_t>& folds,
                                  const std::vector<uint16_t>& stored) const;
  void pass(const std::vector<uint16_t>& folds, const std::vector<uint16_t>& stored);
  // Whether folds may be in any order first.
  bool may_have_any_order(const std::vector<uint16_t>& folds) const;

  // What a pass computes for elements, given one value.
  std::vector<bool> needed_beside(const std::vector<uint16_t>& values,
                                  std::optional<uint16_t> given) const;
  bool loads_rows(const std::vector<bool>& needed) const;
  void choose_held(const std::vector<std::vector<uint16_t>>& passes);
  std::string held(uint16_t value) const;
  std::string held_name(uint16_t i) const;
  std::string held_type(uint16_t i) const;
  // Emits a line for each name that the value has in a turn.
  void each_held(uint16_t i, const std::function<std::string()>& text);
  bool reads_held(const std::vector<uint16_t>& folds, const std::vector<uint16_t>& stored) const;
  std::string held_text() const;

  // ---- classes of rows (emit_classes.cpp) ----

  void classes();
  void join_warps(uint16_t i, const std::string& columns, const std::string& of_class);
  bool has_no_functions(const std::vector<bool>& needed) const;
  // A warp's, from `begin` to `end`. take(i) emits what takes the result of a fold, v<i>c.
  void of_one_class(const std::vector<uint16_t>& folds, const std::vector<uint16_t>& stored,
                    const std::function<void(uint16_t)>& take);
  unsigned several_of(const std::vector<bool>& needed) const;
  // Of those that are loaded, each once.
  std::vector<uint16_t> operands_of_elements(const std::vector<bool>& needed) const;
  void neighbours(const std::vector<bool>& needed, const std::vector<uint16_t>& folds,
                  const std::vector<uint16_t>& stored, unsigned several, bool last);
  void warp_tree(uint16_t i);
  void warp_tree_of_any_order(uint16_t i);

  // ---- folds over rows, and partial results (emit_folds.cpp) ----

  void declare_stack(uint16_t i);
  // `x` is number `at`.
  void push(uint16_t i, Op op, const std::string& x, const std::string& at);
  void pop_all(uint16_t i, Op op, const std::string& name);

  void fold_down();
  // Columns of a thread.
  unsigned down_columns() const { return variant_.vectors ? accumulators_of_thread() : 1; }
  void each_column(const std::string& text);
  void down_rows(const std::vector<bool>& needed, const std::vector<uint16_t>& folds,
                 unsigned several);

  void store_joined();
  void joins();
  void join_parts(const std::vector<uint16_t>& folds,
                  const std::function<std::string(const std::string&)>& place);
  void joins_of_block();
  void join_by_block(const std::vector<uint16_t>& folds);

  // ---- scans (emit_scans.cpp) ----

  struct PartedTile;

  std::string running_type(const Node& scan) const;
  std::string running_start(const Node& scan);
  std::string scanned(const Node& scan);
  std::string of_running(const Node& scan, const std::string& y) const;
  void scan();
  void scan_by_row(const Node& node, const std::string& running, const std::string& height,
                   const std::string& of_row, const std::string& width, unsigned vecs);
  void scan_in_parts(const Node& node, const std::string& start, const PartedTile& its);
  void scan_tiles();

  // ---- the whole ----

  Kernel finish();
  bool is_written(const Buffer& its) const;
  std::string type_of(const Buffer& its) const;
  unsigned most_of_block() const;
  // Whether a thread's registers are bounded, in blocks of kSmallBlock.
  bool is_bounded() const;
  unsigned blocks_at_once() const;
  std::string of_many();
  void order_parameters();

  // Times its neighbours that a thread keeps from one pass over a row to the next.
  static constexpr unsigned kKept = 8;

  const Steps& steps_;
  const Step& step_;
  const std::vector<Node>& nodes_;
  const Variant variant_;
  const ComputeType type_;
  const std::string own_, index_;
  const std::vector<Spread> spreads_;
  const std::vector<int> turns_;
  Kernel kernel_;
  std::string body_;
  size_t depth_ = 1;
  std::string needed_;  // places
  bool is_strided_ = false, has_shared_ = false;
  std::vector<Held> helds_;      // of each pass over a row
  size_t pass_ = 0;              // the next one
  Held held_;                    // of the one that is emitted
  std::string held_index_;       // of the elements that are held; empty where none are
  bool has_neighbours_ = false;  // what of elements is loaded is there
  bool has_any_order_ = false;   // whether folds are in an order of their own (kAnyOrder)
  bool is_two_ = false;          // whether loops over a thread's elements take two at a time
  bool is_of_two_ = false;       // whether the text is inside of such a loop
  unsigned lane_ = 0;            // and of which of the two
  std::vector<uint16_t> strided_;
};

}  // namespace hologram::gpu

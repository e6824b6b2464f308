// The compiler of groups, for compile.cpp and compile_operations.cpp only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "atlas/group.h"
#include "cpu/compiled_group.h"
#include "cpu/kernel_table.h"

namespace hologram::cpu {

const TypeKernels& kernels_of(ComputeType type, Isa isa);

// Emits micro-operations for the stores in order. One value is in the accumulator; a value that is
// needed when the accumulator is taken has a place in memory: its operand, or a slot.
class GroupCompiler {
 public:
  // `whole`: not in lanes of a byte, whatever the dtypes are.
  GroupCompiler(const Group& group, Isa isa, bool whole = false);

  std::unique_ptr<CompiledGroup> compile();

 private:
  // How an operation can read a value beside the accumulator.
  enum class Place : uint8_t {
    nowhere,  // not computed yet, or in the accumulator only
    memory,   // the compute type's dtype
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

  static const TypeKernels& choose(const GroupKernels& kernels, const Group& group, bool whole);
  static size_t index(Op op) { return static_cast<size_t>(op); }
  static uint16_t argument(const Node& node, int k);
  void count_uses();
  void lay_out();
  bool is_clean_unrounded(const Node& node) const;
  Place place_of(DType dtype) const;
  OperandUse& use(uint16_t operand);
  // Reads of memory that are still to be emitted, by area.
  int& reads_at(uint16_t operand);
  void push(AnyCode code, Reference x = {}, Reference y = {});

  // ---- values ----

  void release(int v);
  void spill(int v);
  void load_place(int v);
  void emit(int v, int own = 1);
  static bool is_arithmetic(const Node& node);
  bool is_square(const Node& node) const;
  int first_operand(int v) const;
  int heavier(int a, int b) const { return values_[b].registers > values_[a].registers ? b : a; }

  int heaviest_of(const int (&args)[3], int last) const;
  void emit_node(int v, int own);
  AnyCode round_to(const Node& node) const;
  bool stored_at_once(int v);

  // ---- stores ----

  // Whether memory that the store may overwrite is still to be read.
  bool is_hazard(int store) { return reads_at(group_.nodes[store].b) > 0; }

  void emit_store(int s);
  void store_value(int s);
  void keep(int v);

  // ---- operations (compile_operations.cpp) ----

  void compute(int v);
  bool has_place(int v) const { return values_[v].place != Place::nowhere; }

  static Form form_of(Place place);
  int pair_of(int a, int b) const;
  int product_pair(int v, int& x, int& y) const;
  int joins_product(const Node& node, bool second, int& x, int& y) const;
  bool with_product(int v);
  void push_arithmetic(int v, AnyCode plain, AnyCode to_bf16, Reference x = {}, Reference y = {});
  void binary(int v);
  // As the operand of a ternary operation: f16 is converted first.
  bool has_ternary_place(int v) const { return has_place(v) && values_[v].place != Place::f16; }
  static Other other_of(Place place);
  void ternary(const Node& node);
  void spill_ternary(int v);

  // ---- the frame ----

  RunCode run_of(const std::vector<MicroOp>& code) const;
  void finish();

  const Group& group_;
  const TypeKernels& kernels_;
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

}  // namespace hologram::cpu

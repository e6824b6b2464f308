// The checker of programs and plans finds what it is there to find.
#include "atlas/checker.h"

#include <stdexcept>

#include "atlas/canonicalise.h"
#include "atlas/op_table.h"
#include "check.h"

using namespace hologram;

TEST(checker_finds_what_a_pass_gets_wrong) {
  // y = x * x; z = y + x; all live.
  Program program;
  program.counts.push_back(4);
  program.shapes.emplace_back();
  for (uint16_t slot = 0; slot < 3; ++slot) {
    program.slots.push_back({false, true});
    program.accesses.push_back({slot, DType::f32, Layout::dense, 0, 0});
  }
  program.code.push_back({static_cast<Code>(Op::mul), DType::f32, 2, 1, {0, 0, kNothing}, 0});
  program.code.push_back({static_cast<Code>(Op::add), DType::f32, 2, 2, {1, 0, kNothing}, 0});
  validate(program);
  const Plan plan = canonicalise(program);
  validate(plan, program);
  const auto broken = [&](auto&& damage, const char* what) {
    Plan copy = plan;
    damage(copy.batches.front());
    CHECK_THROWS(validate(copy, program), std::logic_error, what);
  };
  broken([](Batch& b) { b.group.nodes.pop_back(); }, "what lives is not stored");
  broken([](Batch& b) { b.group.nodes.front().a = 9; }, "a load has no operand");
  broken([](Batch& b) { b.group.nodes[1].a = 1; }, "used before it is there");
  broken([](Batch& b) { b.group.operands[0].dtype = DType::bf16; }, "not what its group says");
  broken([](Batch& b) { b.members.push_back(b.members.front()); },
         "two members of a batch overlap");
  broken([](Batch& b) { b.members.front().accesses.pop_back(); }, "operands are missing");
  const auto wrong = [&](auto&& damage, const char* what) {
    Program copy = program;
    damage(copy);
    CHECK_THROWS(validate(copy), std::logic_error, what);
  };
  wrong([](Program& p) { p.code[0].arity = 1; }, "operands are missing");
  wrong([](Program& p) { p.code[0].in[1] = 7; }, "an operand is unknown");
  wrong([](Program& p) { p.accesses[1].slot = 5; }, "an access has no block");
  wrong([](Program& p) { p.overlaps.push_back({2, 1}); }, "of two blocks");
}

TEST(checker_knows_what_scans_are) {
  // y = the cumulative sum of x along the rows of [2, 2].
  Program program;
  for (const int64_t count : {4, 1, 2}) program.counts.push_back(count);
  program.shapes.emplace_back();
  program.structures.push_back({});
  program.structures.push_back({1, 2, 2, 2});
  for (uint16_t slot = 0; slot < 2; ++slot) {
    program.slots.push_back({false, true});
    program.accesses.push_back({slot, DType::f32, Layout::dense, 0, 0});
  }
  program.code.push_back(
      {scan_of(Op::add, kColumns), DType::f32, 1, 1, {0, kNothing, kNothing}, 0, 1});
  validate(program);
  const Plan plan = canonicalise(program);
  validate(plan, program);
  const auto broken = [&](auto&& damage, const char* what) {
    Plan copy = plan;
    damage(copy.batches.front().group.nodes);
    CHECK_THROWS(validate(copy, program), std::logic_error, what);
  };
  broken([](auto& nodes) { nodes[1].b = kRows; }, "no such axis");
  broken([](auto& nodes) { nodes[1].op = Op::sub; }, "no such scan");
  broken([](auto& nodes) { nodes[1].dtype = DType::bf16; }, "not stored as it is");
  broken(
      [](auto& nodes) {
        nodes.insert(nodes.begin() + 2, {NodeKind::cast, Op{}, DType::f32, 1});
      },
      "not just stored");
  const auto wrong = [&](auto&& damage, const char* what) {
    Program copy = program;
    damage(copy.code[0]);
    CHECK_THROWS(validate(copy), std::logic_error, what);
  };
  wrong([](Instruction& its) { its.structure = 0; }, "no dimensions");
  wrong([](Instruction& its) { its.dtype = DType::i32; }, "of another dtype");
  wrong([](Instruction& its) { its.code = scan_of(Op::maximum, kMiddle); }, "no such scan");
}

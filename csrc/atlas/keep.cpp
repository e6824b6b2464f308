#include "atlas/keep.h"

#include <array>
#include <cstdint>
#include <map>
#include <vector>

namespace hologram {
namespace {

// Instructions with equal computations compute equal values: the operation, and for each operand
// either its bits or its access and the instruction that wrote it last.
using Computation = std::array<uint64_t, 6>;

class Walk {
 public:
  explicit Walk(const Program& program)
      : program_(program), overlaps_(program.accesses.size()), wrote_(program.accesses.size(), -1) {
    for (const auto& [a, b] : program.overlaps) {
      overlaps_[a].push_back(b);
      overlaps_[b].push_back(a);
    }
  }

  // The last instruction that has written any of the bytes of an access, -1 for none.
  int32_t writer(uint16_t access) const {
    int32_t last = wrote_[access];
    for (const uint16_t other : overlaps_[access]) last = std::max(last, wrote_[other]);
    return last;
  }
  // The one that has written exactly this access.
  int32_t exact_writer(uint16_t access) const { return wrote_[access]; }

  template <class F>
  void each_writer(uint16_t access, F&& call) const {
    if (wrote_[access] >= 0) call(static_cast<size_t>(wrote_[access]));
    for (const uint16_t other : overlaps_[access]) {
      if (wrote_[other] >= 0) call(static_cast<size_t>(wrote_[other]));
    }
  }

  void write(uint16_t access, size_t instruction) {
    wrote_[access] = static_cast<int32_t>(instruction);
  }

  Computation computation(const Instruction& instruction) const {
    Computation result{instruction.code,
                       static_cast<uint64_t>(instruction.dtype) << 16 | instruction.space,
                       0,
                       0,
                       0,
                       uint64_t{instruction.structure} << 16 | instruction.spreads};
    if (instruction.code == kCall) result[2] = instruction.in[0];  // each is another computation
    for (size_t i = 0; i < instruction.arity; ++i) {
      const Source source = instruction.in[i];
      if ((source & kImmediate) != 0) {
        result[2 + i] = program_.immediates[source & ~kImmediate];
        result[1] |= uint64_t{1} << (32 + i);
      } else {
        const int32_t from = is_access(source) ? writer(source) : -1;
        result[2 + i] = uint64_t{source} << 32 | static_cast<uint32_t>(from);
      }
    }
    return result;
  }

 private:
  const Program& program_;
  std::vector<std::vector<uint16_t>> overlaps_;  // of each access
  std::vector<int32_t> wrote_;                   // by access: the instruction that wrote it last
};

void mark_unread(Program& program) {
  Walk walk(program);
  for (size_t i = 0; i < program.code.size(); ++i) {
    Instruction& instruction = program.code[i];
    program.each_read(instruction, [&](uint16_t access) {
      walk.each_writer(access, [&](size_t writer) { program.code[writer].kept = 0; });
    });
    instruction.kept = 1;
    for (const uint16_t access : program.writes_of(instruction)) walk.write(access, i);
  }
}

void number_turns(Program& program) {
  Walk walk(program);
  std::map<Computation, size_t> computed;  // by instructions of the turn: kept results before it
  size_t begin = 0, kept = 0;
  uint16_t turn = 0;
  for (size_t i = 0; i < program.code.size(); ++i) {
    Instruction& instruction = program.code[i];
    const Computation computation = walk.computation(instruction);
    const auto same = computed.find(computation);
    const bool again = same != computed.end() && same->second != kept;
    const int32_t over = walk.exact_writer(instruction.out);
    const bool overwrites =
        over >= static_cast<int32_t>(begin) && program.code[static_cast<size_t>(over)].kept != 0;
    if (again || overwrites) {
      ++turn;
      begin = i;
      computed.clear();
    }
    computed.insert_or_assign(computation, kept);
    instruction.turn = turn & Instruction::kMostTurns;
    kept += instruction.kept;
    for (const uint16_t access : program.writes_of(instruction)) walk.write(access, i);
  }
}

}  // namespace

void mark_kept(Program& program) {
  mark_unread(program);
  number_turns(program);
}

}  // namespace hologram

// A group as one operation after the other, with the values between them in memory: for groups that
// have no kernel of their own, while single operations have (gpu/libraries.h). It moves more bytes
// than one kernel would, and has the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "atlas/group.h"
#include "gpu/launch.h"

namespace hologram::gpu {

// Where elements of the space lie.
struct Place {
  enum class Kind : uint8_t { operand, value };
  Kind kind;
  uint16_t index;  // of the group's operands, or of the values in between

  bool operator==(const Place&) const = default;
};

// A step: a group over dense and scalar operands, or a copy of elements as they are to or from an
// operand that is not dense.
struct Piece {
  Group group;                       // without nodes: a copy
  std::vector<Place> operands;       // of the group; of a copy where to and where from
  std::vector<uint16_t> immediates;  // numbers of the whole group's
};

struct Pieces {
  std::vector<Piece> list;    // in order
  std::vector<DType> values;  // in between, an element for each of the space
};

// None for a group with folds, scans, picks or positions, one that stores less than an element for
// each of the space, and one that is a piece itself.
std::optional<Pieces> take_apart(const Group& group);

// Thread-safe.
class PieceCode {
 public:
  // Of a group and what it was taken apart into. Throws Error where the targets cannot run it.
  PieceCode(const Group& group, Pieces pieces, const Target& emitted, const Target& cold);

  // Each piece by emitted kernels where these are there, else by cold ones. Throws Error where
  // neither will do.
  using Available = std::function<bool(const Kernel&)>;
  Launches launches(const Binding& binding, const Available& available) const;

 private:
  struct Codes {  // null for a copy
    std::unique_ptr<const GroupCode> emitted, cold;
  };
  Launches launches(size_t piece, const Binding& binding, const Available& available) const;

  const std::vector<Operand> operands_;
  const Pieces pieces_;
  const Target target_;
  std::vector<Codes> codes_;
  std::vector<size_t> last_use_;  // of each value, the piece
};

}  // namespace hologram::gpu

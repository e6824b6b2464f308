#include "atlas/op_table.h"

namespace hologram {

const OpInfo& op_info(Op op) noexcept {
  static constexpr OpInfo rows[] = {
#define HOLOGRAM_X(name, arity, dtypes, integers, expression, flags, identity) \
  {#name, arity, dtypes, integers, #expression, static_cast<uint8_t>(flags), identity},
      HOLOGRAM_OPS(HOLOGRAM_X)
#undef HOLOGRAM_X
  };
  return rows[static_cast<size_t>(op)];
}

}  // namespace hologram

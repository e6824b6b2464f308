#include "atlas/op_table.h"

namespace hologram {

constinit const std::span<const OpInfo> kOpInfos = kOpTable;

}  // namespace hologram

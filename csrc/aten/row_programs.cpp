#include "aten/precompiled.h"

#include "aten/row_programs.h"

namespace hologram::aten {

void register_row_programs() {}

}  // namespace hologram::aten

#pragma once

namespace hologram::aten {

void register_arange();

}  // namespace hologram::aten

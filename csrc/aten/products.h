// Matrix products as recorded calls.
#pragma once

namespace hologram::aten {

void register_products();

}  // namespace hologram::aten

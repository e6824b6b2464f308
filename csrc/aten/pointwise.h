// Registration of the op table's rows, and of the composites made of them, as ATen kernels.
#pragma once

#include <string>
#include <vector>

namespace hologram::aten {

// Called once, before register_delegates().
void register_pointwise();

// The first part of it: composites come before the rows of their name.
void register_composites();

// The operators that are made of several rows.
std::vector<std::string> composite_names();

}  // namespace hologram::aten

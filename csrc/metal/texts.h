// Texts of kernels as Metal's compiler is given them: it finds no files that they include.
#pragma once

#include <string>

namespace hologram::metal {

// A text with the dialect's headers in the places where it includes them. Throws Error for another
// header.
std::string self_contained(const std::string& text);

}  // namespace hologram::metal

#include "gpu/libraries.h"

#include <array>

#include "gpu/cold.h"
#include "gpu/moves.h"

namespace hologram::gpu {

std::span<const Library> libraries() {
  static constexpr std::array<Library, 2> kLibraries{
      {{"cold", &cold_library_text}, {"moves", &moves_library_text}}};
  return kLibraries;
}

}  // namespace hologram::gpu

#include "gpu/libraries.h"

#include <algorithm>
#include <array>

#include "atlas/error.h"
#include "gpu/cold.h"
#include "gpu/launch.h"
#include "gpu/moves.h"
#include "gpu/steps.h"
#include "gpu/variants.h"

namespace hologram::gpu {

std::span<const Library> libraries() {
  static constexpr std::array<Library, 2> kLibraries{
      {{"cold", &cold_library_text}, {"moves", &moves_library_text}}};
  return kLibraries;
}

void KernelSet::add(const Group& group, uint8_t rank, bool of_many) {
  const auto has_complex = [](const Operand& its) {
    return its.dtype == DType::c64 || its.dtype == DType::c128;
  };
  if (std::ranges::any_of(group.operands, has_complex)) return;
  const bool folds = std::ranges::any_of(group.nodes, is_row_fold);
  for (const bool long_rows : {false, true}) {
    if (long_rows && !folds) continue;
    const Steps steps = split(group, long_rows);
    for (size_t i = 0; i < steps.list.size(); ++i) {
      for (const auto& [kind, variant] : variants_of(steps, i, rank)) {
        if (variant.many && !of_many) continue;
        Kernel kernel = emit(steps, i, variant);
        std::string name = kernel.name;
        kernels_.try_emplace(std::move(name), std::move(kernel));
      }
    }
  }
}

std::vector<std::string> KernelSet::texts(size_t count) const {
  std::vector<std::vector<const Kernel*>> parts(count);
  size_t next = 0;
  for (const auto& [name, kernel] : kernels_) parts[next++ % count].push_back(&kernel);
  std::vector<std::string> result;
  for (const auto& part : parts) {
    if (!part.empty()) result.push_back(library_text(part));
  }
  return result;
}

}  // namespace hologram::gpu

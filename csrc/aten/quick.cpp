#include "aten/precompiled.h"

#include "aten/quick.h"

#include <string>
#include <unordered_map>

namespace hologram::aten {

// Written by setup.py from quick_calls.tsv.
#include "quick_tables.inc"

MakeQuickKernel find_quick_kernel(const std::string& name) {
  static const auto* kernels = [] {
    auto* map = new std::unordered_map<std::string, MakeQuickKernel>();
    for (const auto& [rows, count] : quick_tables()) {
      for (size_t index = 0; index < count; ++index) {
        const QuickRow& row = rows[index];
        const std::string overload = row.overload;
        map->emplace(overload.empty() ? row.name : row.name + ("." + overload), row.make);
      }
    }
    return map;
  }();
  const auto found = kernels->find(name);
  return found == kernels->end() ? nullptr : found->second;
}

}  // namespace hologram::aten

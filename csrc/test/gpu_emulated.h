// Launches of groups on the emulator of test/gpu: kernels are compiled for the CPU by clang, many
// at once, and run on the memory of a test.
#pragma once

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../../test/gpu/kernel_library.h"
#include "gpu/cold.h"
#include "gpu/launch.h"

namespace hologram::test {

inline bool is_full_run() {
  const char* const full = std::getenv("HOLOGRAM_TEST_FULL");
  return full != nullptr && std::string(full) == "1";
}

class Emulated {
 public:
  // Of all kernels of some launches. prelude: "cuda" or "metal".
  Emulated(const std::vector<const gpu::Launches*>& all, const std::string& prelude) {
    std::map<std::string, const gpu::Kernel*> by_name;
    for (const gpu::Launches* launches : all) {
      for (const gpu::Launch& launch : launches->list) {
        by_name[launch.kernel->name] = launch.kernel;
      }
    }
    // Cold kernels are among these all or none.
    std::vector<const gpu::Kernel*> kernels;
    std::vector<std::string> names;
    for (const auto& [name, kernel] : by_name) {
      kernels.push_back(kernel);
      names.push_back(name);
    }
    const bool is_cold = !kernels.empty() && kernels.front()->text.empty();
    const std::string text = is_cold ? gpu::cold_library_text() : gpu::library_text(kernels);
    // Emitted kernels take longer to compile than to run.
    library_.emplace(text, prelude, is_cold || is_full_run() ? 2 : 0);
    find(names);
  }
  // Of kernels that are in a text.
  Emulated(const std::string& text, const std::vector<std::string>& names,
           const std::string& prelude) {
    library_.emplace(text, prelude);
    find(names);
  }

  void run(const gpu::Launches& launches, int order = HG_ORDER_FORWARD) const {
    const KernelScratch scratch(launches.scratch_bytes);
    for (const gpu::Launch& launch : launches.list) {
      library_->run(kernels_.at(launch.kernel->name), launch, scratch.data(), order);
    }
  }

 private:
  void find(const std::vector<std::string>& names) {
    for (const std::string& name : names) kernels_[name] = library_->find(name);
  }

  std::optional<const KernelLibrary> library_;
  std::map<std::string, const hg_kernel*> kernels_;
};

}  // namespace hologram::test

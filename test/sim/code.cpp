#include "code.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "../gpu/kernel_library.h"
#include "atlas/error.h"
#include "gpu/cold.h"

namespace sim {

using namespace hologram;

namespace {

// All kernels of the process, as the environment wants them.
class Kernels {
 public:
  static Kernels* instance() {  // null where the CPU's code is wanted; outlives the queues
    static Kernels* const kernels = [] {
      const char* const prelude = std::getenv("HOLOGRAM_TEST_SIM_KERNELS");
      return prelude != nullptr && *prelude != '\0' ? new Kernels(prelude) : nullptr;
    }();
    return kernels;
  }

  // Blocks and partial results are many with few elements.
  gpu::Target target() const {
    return {
        .has_f64 = prelude_ == "cuda", .cold = !is_emitted_, .threads = 64, .enough_threads = 2048};
  }

  // None for what csrc/gpu refuses.
  std::unique_ptr<const gpu::GroupCode> code(const Group& group) {
    try {
      return std::make_unique<const gpu::GroupCode>(group, target());
    } catch (const Error& error) {
      note(error);
      return nullptr;
    }
  }
  std::optional<gpu::Launches> launches(const gpu::GroupCode& code, const Binding& binding) {
    try {
      return code.launches(binding);
    } catch (const Error& error) {
      note(error);
      return std::nullopt;
    }
  }

  void compile(const std::vector<gpu::Launches>& all) {
    const std::lock_guard guard(mutex_);
    std::map<std::string, const gpu::Kernel*> missing;
    for (const gpu::Launches& launches : all) {
      for (const gpu::Launch& launch : launches.list) {
        const gpu::Kernel* const kernel = launch.kernel;
        if (!ready_.contains(kernel->name)) missing[kernel->name] = kernel;
      }
    }
    if (missing.empty()) return;
    if (cold_ == nullptr && !is_emitted_) {
      cold_ = new test::KernelLibrary(gpu::cold_library_text(), prelude_);
    }
    const test::KernelLibrary* library = cold_;
    if (is_emitted_) {
      std::vector<const gpu::Kernel*> kernels;
      for (const auto& [name, kernel] : missing) kernels.push_back(kernel);
      library = new test::KernelLibrary(gpu::library_text(kernels), prelude_);
    }
    for (const auto& [name, kernel] : missing) ready_[name] = {library, library->find(name)};
  }

  void run(const gpu::Launches& launches) {
    const test::KernelScratch scratch(launches.scratch_bytes);
    for (const gpu::Launch& launch : launches.list) {
      const Ready ready = find(launch.kernel->name);
      ready.library->run(ready.kernel, launch, scratch.data());
    }
  }

  std::string refusals() {
    const std::lock_guard guard(mutex_);
    std::string text;
    for (const std::string& why : refusals_) text += why + "\n";
    return text;
  }

 private:
  struct Ready {
    const test::KernelLibrary* library;
    const hg_kernel* kernel;
  };

  explicit Kernels(std::string prelude) : prelude_(std::move(prelude)) {
    if (prelude_ != "cuda" && prelude_ != "metal") {
      throw Error("HOLOGRAM_TEST_SIM_KERNELS is neither cuda nor metal");
    }
    const char* const emitted = std::getenv("HOLOGRAM_TEST_SIM_EMITTED");
    is_emitted_ = emitted != nullptr && std::string(emitted) == "1";
  }

  Ready find(const std::string& name) {
    const std::lock_guard guard(mutex_);
    return ready_.at(name);
  }
  void note(const Error& error) {
    const std::lock_guard guard(mutex_);
    refusals_.insert(error.what());
  }

  const std::string prelude_;
  bool is_emitted_ = false;
  std::mutex mutex_;
  std::map<std::string, Ready> ready_;
  const test::KernelLibrary* cold_ = nullptr;
  std::set<std::string> refusals_;
};

}  // namespace

Code::Code(const Plan& plan) : cpu_(plan), groups_(plan.batches.size()) {
  Kernels* const kernels = Kernels::instance();
  if (kernels == nullptr) return;
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (cpu_.groups[i] != nullptr) groups_[i] = kernels->code(plan.batches[i].group);
  }
}

void Code::prepare(size_t first, std::span<const OwnBindings> passes) const {
  Kernels* const kernels = Kernels::instance();
  if (kernels == nullptr) return;
  std::vector<gpu::Launches> all;
  for (size_t i = 0; i < passes.size(); ++i) {
    if (groups_[first + i] == nullptr) continue;
    for (const Binding& binding : passes[i].bindings()) {
      if (auto launches = kernels->launches(*groups_[first + i], binding)) {
        all.push_back(std::move(*launches));
      }
    }
  }
  kernels->compile(all);
}

void Code::run(size_t pass, std::span<const Binding> bindings) const {
  Kernels* const kernels = Kernels::instance();
  if (kernels == nullptr) return cpu::run(*cpu_.groups[pass], bindings);
  for (const Binding& binding : bindings) {
    std::optional<gpu::Launches> launches;
    if (groups_[pass] != nullptr) launches = kernels->launches(*groups_[pass], binding);
    if (launches) {
      kernels->run(*launches);
      ++runs_by_kernels;
    } else {
      cpu::run(*cpu_.groups[pass], binding);
      ++runs_by_cpu;
    }
  }
}

std::string Code::refusals() {
  Kernels* const kernels = Kernels::instance();
  return kernels == nullptr ? "" : kernels->refusals();
}

}  // namespace sim

#include "code.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

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

  bool are_emitted() const { return mode_ != Mode::cold; }
  bool are_compiled_at_once() const { return mode_ != Mode::later; }

  // None for what csrc/gpu refuses.
  std::unique_ptr<const gpu::GroupCode> code(const Group& group, bool cold) {
    // Blocks and partial results are many with few elements.
    const bool is_cuda = prelude_ == "cuda";
    const gpu::Target target{
        .has_f64 = is_cuda, .cold = cold, .counts = is_cuda, .threads = 64, .enough_threads = 2048};
    try {
      return std::make_unique<const gpu::GroupCode>(group, target);
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

  // Whether all kernels of these are there. Those that are not compile() makes: the cold ones now.
  bool are_ready(const gpu::Launches& all) {
    const std::lock_guard guard(mutex_);
    bool are = true;
    for (const gpu::Launch& launch : all.list) {
      const gpu::Kernel& kernel = *launch.kernel;
      if (ready_.contains(kernel.name)) continue;
      if (kernel.text.empty()) {
        if (cold_ == nullptr) {
          cold_ = new test::KernelLibrary(gpu::cold_library_text(), prelude_);
        }
        ready_[kernel.name] = {cold_, cold_->find(kernel.name)};
      } else {
        are = false;
        wanted_.emplace(kernel.name, kernel);
      }
    }
    return are;
  }
  // All in one call of the compiler.
  int compile() {
    const std::lock_guard guard(mutex_);
    if (wanted_.empty()) return 0;
    std::vector<const gpu::Kernel*> kernels;
    for (const auto& [name, kernel] : wanted_) kernels.push_back(&kernel);
    const auto* const library = new test::KernelLibrary(gpu::library_text(kernels), prelude_, 0);
    for (const auto& [name, kernel] : wanted_) ready_[name] = {library, library->find(name)};
    const auto count = static_cast<int>(wanted_.size());
    wanted_.clear();
    return count;
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
  enum class Mode { cold, emitted, later };
  struct Ready {
    const test::KernelLibrary* library;
    const hg_kernel* kernel;
  };

  explicit Kernels(std::string prelude) : prelude_(std::move(prelude)) {
    if (prelude_ != "cuda" && prelude_ != "metal") {
      throw Error("HOLOGRAM_TEST_SIM_KERNELS is neither cuda nor metal");
    }
    const char* const text = std::getenv("HOLOGRAM_TEST_SIM_EMITTED");
    const std::string emitted = text != nullptr ? text : "";
    mode_ = emitted == "1" ? Mode::emitted : emitted == "later" ? Mode::later : Mode::cold;
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
  Mode mode_ = Mode::cold;
  std::mutex mutex_;
  std::map<std::string, Ready> ready_;
  std::map<std::string, const gpu::Kernel> wanted_;  // not compiled yet
  const test::KernelLibrary* cold_ = nullptr;
  std::set<std::string> refusals_;
};

}  // namespace

Code::Code(const Plan& plan) : cpu_(plan), groups_(plan.batches.size()) {
  Kernels* const kernels = Kernels::instance();
  if (kernels == nullptr) return;
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (cpu_.groups[i] == nullptr) continue;
    const Group& group = plan.batches[i].group;
    if (kernels->are_emitted()) groups_[i].emitted = kernels->code(group, false);
    if (!kernels->are_emitted() || !kernels->are_compiled_at_once()) {
      groups_[i].cold = kernels->code(group, true);
    }
  }
}

void Code::prepare(size_t first, std::span<const OwnBindings> passes) const {
  Kernels* const kernels = Kernels::instance();
  if (kernels == nullptr || !kernels->are_emitted()) return;
  for (size_t i = 0; i < passes.size(); ++i) {
    const auto& code = groups_[first + i].emitted;
    if (code == nullptr) continue;
    for (const Binding& binding : passes[i].bindings()) {
      if (const auto launches = kernels->launches(*code, binding)) kernels->are_ready(*launches);
    }
  }
  if (kernels->are_compiled_at_once()) kernels->compile();
}

void Code::run(size_t pass, std::span<const Binding> bindings) const {
  Kernels* const kernels = Kernels::instance();
  if (kernels == nullptr) return cpu::run(*cpu_.groups[pass], bindings);
  const auto run_one = [&](const std::unique_ptr<const gpu::GroupCode>& code,
                           const Binding& binding) {
    if (code == nullptr) return false;
    const auto launches = kernels->launches(*code, binding);
    if (!launches || !kernels->are_ready(*launches)) return false;
    kernels->run(*launches);
    return true;
  };
  for (const Binding& binding : bindings) {
    if (run_one(groups_[pass].emitted, binding)) {
      ++runs_by_emitted;
    } else if (run_one(groups_[pass].cold, binding)) {
      ++runs_by_cold;
    } else {
      cpu::run(*cpu_.groups[pass], binding);
      ++runs_by_cpu;
    }
  }
}

int Code::compile() {
  Kernels* const kernels = Kernels::instance();
  return kernels == nullptr ? 0 : kernels->compile();
}

std::string Code::refusals() {
  Kernels* const kernels = Kernels::instance();
  return kernels == nullptr ? "" : kernels->refusals();
}

}  // namespace sim

#include "cuda/code.h"

#include <utility>

#include "atlas/error.h"

namespace hologram::cuda {
namespace {

// The H100 has 132 multiprocessors of 2048 threads each; with a quarter of these a fold is bound by
// memory.
constexpr gpu::Target kTarget{.cold = true, .threads = 256};

// About what one group takes: steps, kernels and their programs.
constexpr size_t kBytesOfNode = 64, kBytesOfGroup = 2048;

}  // namespace

Code::Code(const Plan& plan, Kernels& kernels, Constants& constants)
    : plan_(plan), kernels_(kernels), constants_(constants), on_cpu_(plan.batches.size()) {
  for (const Batch& batch : plan.batches) {
    groups_.emplace_back();
    if (batch.is_call()) continue;
    bytes_ += kBytesOfGroup + kBytesOfNode * batch.group.nodes.size();
    try {
      groups_.back() = std::make_unique<gpu::GroupCode>(batch.group, kTarget);
    } catch (const Error&) {  // on_cpu() throws where the CPU cannot compute it either
    }
  }
}

Code::~Code() {
  for (const auto& [kernel, loaded] : loaded_) {
    if (loaded.program != 0) constants_.remove(loaded.program, kernel->program.size());
  }
}

const cpu::CompiledGroup& Code::on_cpu(size_t pass) const {
  const std::lock_guard guard(mutex_);
  auto& code = on_cpu_[pass];
  if (code == nullptr) code = cpu::compile(plan_.batches[pass].group);
  return *code;
}

Loaded Code::loaded(const gpu::Kernel& kernel) const {
  const std::lock_guard guard(mutex_);
  const auto found = loaded_.find(&kernel);
  if (found != loaded_.end()) return found->second;
  Loaded its{kernels_.find(kernel.name), 0};
  if (!kernel.program.empty()) its.program = constants_.add(kernel.program);
  loaded_.emplace(&kernel, its);
  return its;
}

}  // namespace hologram::cuda

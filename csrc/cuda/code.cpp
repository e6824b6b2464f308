#include "cuda/code.h"

#include <utility>

#include "atlas/error.h"

namespace hologram::cuda {
namespace {

constexpr gpu::Target kEmitted{};
constexpr gpu::Target kCold{.cold = true};

// About what one group takes: steps, kernels and their programs.
constexpr size_t kBytesOfNode = 64, kBytesOfGroup = 2048;

std::unique_ptr<const gpu::GroupCode> code_of(const Group& group, const gpu::Target& target) {
  try {
    return std::make_unique<const gpu::GroupCode>(group, target);
  } catch (const Error&) {  // Code::on_cpu() throws where the CPU cannot compute it either
    return nullptr;
  }
}

}  // namespace

Code::Code(const Plan& plan, Kernels& kernels, Constants& constants)
    : plan_(plan),
      kernels_(kernels),
      constants_(constants),
      on_cpu_(plan.batches.size()),
      pieces_(plan.batches.size()) {
  for (const Batch& batch : plan.batches) {
    forms_.emplace_back();
    if (batch.is_call()) continue;
    bytes_ += kBytesOfGroup + kBytesOfNode * batch.group.nodes.size();
    forms_.back() = {code_of(batch.group, kEmitted), code_of(batch.group, kCold)};
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

const gpu::PieceCode* Code::pieces(size_t pass) const {
  const std::lock_guard guard(mutex_);
  auto& code = pieces_[pass];
  if (!code) {
    code.emplace();
    const Group& group = plan_.batches[pass].group;
    try {
      if (auto pieces = gpu::take_apart(group)) {
        *code = std::make_unique<const gpu::PieceCode>(group, *std::move(pieces), kEmitted, kCold);
      }
    } catch (const Error&) {  // an operation that csrc/gpu refuses
    }
  }
  return code->get();
}

Loaded Code::loaded(const gpu::Kernel& kernel) const {
  const std::lock_guard guard(mutex_);
  const auto found = loaded_.find(&kernel);
  if (found != loaded_.end()) return found->second;
  Loaded its{kernels_.find_if(kernel.name), 0};
  if (its.function != nullptr && !kernel.program.empty())
    its.program = constants_.add(kernel.program);
  loaded_.emplace(&kernel, its);
  return its;
}

}  // namespace hologram::cuda

#include "cuda/code.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "atlas/error.h"

namespace hologram::cuda {
namespace {

constexpr gpu::Target kEmitted{.counts = true};
constexpr gpu::Target kCold{.cold = true};

// About what one group takes: steps, kernels, their programs and their launches.
constexpr size_t kBytesOfNode = 64, kBytesOfGroup = 4096;
// With fewer elements cold kernels take no longer than a launch for each operation.
constexpr int64_t kLeastForPieces = 32'768;

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
      recent_(plan.batches.size()),
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

std::shared_ptr<const Ready> Code::ready_if_known(
    size_t pass, std::span<const Binding> bindings) const noexcept {
  const std::lock_guard guard(recent_lock_);
  for (const ReadyCode& its : recent_[pass].list) {
    if (its == nullptr) break;
    if (its->prepared.fits(bindings)) return its;
  }
  return nullptr;
}

std::shared_ptr<const Ready> Code::ready(size_t pass, std::span<const Binding> bindings) const {
  if (ReadyCode known = ready_if_known(pass, bindings)) return known;
  ReadyCode made = make_ready(pass, bindings);
  if (made == nullptr) return made;
  ReadyCode forgotten;  // not under the lock
  const std::lock_guard guard(recent_lock_);
  Recent& recent = recent_[pass];
  forgotten = std::exchange(recent.list[recent.oldest], made);
  recent.oldest = (recent.oldest + 1) % recent.list.size();
  return made;
}

std::shared_ptr<const Ready> Code::ready_without_pieces(size_t pass,
                                                        std::span<const Binding> bindings) const {
  return make_ready(pass, bindings, Form::cold);
}

Code::ReadyCode Code::make_ready(size_t pass, std::span<const Binding> bindings) const {
  if (ReadyCode its = make_ready(pass, bindings, Form::emitted)) return its;
  int64_t elements = 0;
  for (const Binding& binding : bindings) elements += binding.count;
  const bool many = elements >= kLeastForPieces;
  ReadyCode its = make_ready(pass, bindings, many ? Form::pieces : Form::cold);
  return its != nullptr ? its : make_ready(pass, bindings, many ? Form::cold : Form::pieces);
}

Code::ReadyCode Code::make_ready(size_t pass, std::span<const Binding> bindings, Form form) const {
  gpu::Prepared::Planner planner;
  if (form == Form::pieces) {
    const gpu::PieceCode* const its = pieces(pass);
    if (its == nullptr) return nullptr;
    planner = [this, its](std::span<const Binding> all) {
      const auto available = [this](const gpu::Kernel& kernel) {
        return loaded(kernel).function != nullptr;
      };
      gpu::Launches result;
      for (const Binding& binding : all) {
        if (binding.count == 0) continue;
        gpu::Launches launches = its->launches(binding, available);
        std::ranges::move(launches.list, std::back_inserter(result.list));
        result.scratch_bytes = std::max(result.scratch_bytes, launches.scratch_bytes);
      }
      return result;
    };
  } else {
    const Forms& forms = forms_[pass];
    const gpu::GroupCode* const its =
        form == Form::emitted ? forms.emitted.get() : forms.cold.get();
    if (its == nullptr) return nullptr;
    planner = [its](std::span<const Binding> all) { return its->launches(all); };
  }
  std::shared_ptr<Ready> ready;
  try {
    ready = std::make_shared<Ready>(
        Ready{form, gpu::Prepared(plan_.batches[pass].group, bindings, planner), {}});
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error&) {  // its numbers do not fit
    return nullptr;
  }
  for (const gpu::Prepared::Launch& launch : ready->prepared.launches()) {
    const Loaded its = loaded(*launch.kernel);
    if (its.function == nullptr) return nullptr;
    ready->loaded.push_back(its);
  }
  return ready;
}

// Null where it cannot be taken apart.
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

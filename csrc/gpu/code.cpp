#include "gpu/code.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "atlas/error.h"

namespace hologram::gpu {
namespace {

Target cold_of(Target device) {
  device.cold = true;
  device.counts = false;
  return device;
}

// About what one group takes: steps, kernels, their programs and their launches.
constexpr size_t kBytesOfNode = 64, kBytesOfGroup = 4096;
// With fewer elements cold kernels take no longer than a launch for each operation.
constexpr int64_t kLeastForPieces = 32'768;
// What runs once is not worth a compilation.
constexpr uint32_t kRunsBeforeCompiling = 1;

std::unique_ptr<const GroupCode> code_of(const Group& group, const Target& target) {
  try {
    return std::make_unique<const GroupCode>(group, target);
  } catch (const Error&) {  // Code::on_cpu() throws where the CPU cannot compute it either
    return nullptr;
  }
}

// The launches of each run, with the same scratch memory.
template <class F>
Launches one_by_one(std::span<const Binding> bindings, F&& launches_of) {
  Launches result;
  for (const Binding& binding : bindings) {
    if (binding.count == 0) continue;
    Launches launches = launches_of(binding);
    std::ranges::move(launches.list, std::back_inserter(result.list));
    result.scratch_bytes = std::max(result.scratch_bytes, launches.scratch_bytes);
  }
  return result;
}

}  // namespace

void RunCounts::count(Form form, uint64_t times) noexcept {
  std::atomic<uint64_t>& runs = form == Form::emitted  ? emitted
                                : form == Form::pieces ? pieces
                                                       : cold;
  runs.fetch_add(times, std::memory_order_relaxed);
}

std::vector<std::pair<std::string, uint64_t>> RunCounts::named() const {
  return {{"groups.emitted", emitted},
          {"groups.pieces", pieces},
          {"groups.cold", cold},
          {"groups.cpu", cpu},
          {"groups.moves", moves}};
}

std::string described(const Batch& batch, std::span<const Binding> bindings) {
  constexpr size_t kMostCounts = 4;
  std::string text = ", which computes " + operation_names(batch) + " of ";
  for (size_t i = 0; i < std::min(bindings.size(), kMostCounts); ++i) {
    text += (i == 0 ? "" : " and ") + std::to_string(bindings[i].count);
  }
  return text + (bindings.size() > kMostCounts ? " and more elements" : " elements");
}

Code::Code(const Plan& plan, KernelStore& kernels, const Target& device)
    : plan_(plan),
      kernels_(kernels),
      emitted_(device),
      cold_(cold_of(device)),
      recent_(plan.batches.size()),
      on_cpu_(plan.batches.size()),
      pieces_(plan.batches.size()) {
  for (const Batch& batch : plan.batches) {
    forms_.emplace_back();
    if (batch.is_call()) continue;
    bytes_ += kBytesOfGroup + kBytesOfNode * batch.group.nodes.size();
    forms_.back() = {code_of(batch.group, emitted_), code_of(batch.group, cold_)};
  }
}

Code::~Code() {
  for (const auto& [kernel, loaded] : loaded_) {
    if (loaded.program != 0) kernels_.remove_program(loaded.program, kernel->program.size());
  }
}

const cpu::CompiledGroup& Code::on_cpu(size_t pass) const {
  const std::lock_guard guard(mutex_);
  auto& code = on_cpu_[pass];
  if (code == nullptr) code = cpu::compile(plan_.batches[pass].group);
  return *code;
}

Code::ReadyCode Code::find_recent(size_t pass, std::span<const Binding> bindings) const noexcept {
  const std::lock_guard guard(recent_lock_);
  for (const ReadyCode& its : recent_[pass].list) {
    if (its == nullptr) break;
    if (its->prepared.fits(bindings)) return its;
  }
  return nullptr;
}

// False where a better one may be made, or what that takes is to be asked for.
bool Code::is_up_to_date(const Ready& ready) const noexcept {
  if (ready.wanted.empty()) return true;
  return ready.compiled == kernels_.compiled() &&
         ready.runs.fetch_add(1, std::memory_order_relaxed) != kRunsBeforeCompiling;
}

std::shared_ptr<const Ready> Code::ready_if_known(
    size_t pass, std::span<const Binding> bindings) const noexcept {
  ReadyCode known = find_recent(pass, bindings);
  return known == nullptr || is_up_to_date(*known) ? known : nullptr;
}

std::shared_ptr<const Ready> Code::ready_for_good(
    size_t pass, std::span<const Binding> bindings) const noexcept {
  ReadyCode known = find_recent(pass, bindings);
  return known != nullptr && known->wanted.empty() ? known : nullptr;
}

std::shared_ptr<const Ready> Code::ready(size_t pass, std::span<const Binding> bindings) const {
  const ReadyCode known = find_recent(pass, bindings);
  if (known != nullptr) {
    if (known->runs.load(std::memory_order_relaxed) > kRunsBeforeCompiling) {
      kernels_.want(known->wanted);
    }
    if (known->wanted.empty() || known->compiled == kernels_.compiled()) return known;
  }
  ReadyCode made = make_ready(pass, bindings);
  if (made == nullptr) return made;
  if (known != nullptr) made->runs = known->runs.load(std::memory_order_relaxed);
  ReadyCode forgotten;  // not under the lock
  const std::lock_guard guard(recent_lock_);
  Recent& recent = recent_[pass];
  const auto before = std::ranges::find(recent.list, known);
  if (known != nullptr && before != recent.list.end()) {
    forgotten = std::exchange(*before, made);
  } else {
    forgotten = std::exchange(recent.list[recent.oldest], made);
    recent.oldest = (recent.oldest + 1) % recent.list.size();
  }
  return made;
}

std::shared_ptr<const Ready> Code::ready_without_pieces(size_t pass,
                                                        std::span<const Binding> bindings) const {
  return make_ready(pass, bindings, Form::cold);
}

Code::ReadyCode Code::make_ready(size_t pass, std::span<const Binding> bindings) const {
  const uint64_t compiled = kernels_.compiled();
  std::vector<const Kernel*> missing;
  if (ReadyCode its = make_ready(pass, bindings, Form::emitted, &missing)) return its;
  int64_t elements = 0;
  for (const Binding& binding : bindings) elements += binding.count;
  const bool many = elements >= kLeastForPieces;
  std::shared_ptr<Ready> its;
  // One launch for each tensor, where that for all is not there.
  if (const auto& emitted = forms_[pass].emitted; emitted != nullptr && bindings.size() > 1) {
    its = make_ready(
        pass, bindings, Form::emitted,
        [&](std::span<const Binding> all) {
          return one_by_one(all, [&](const Binding& one) { return emitted->launches(one); });
        },
        &missing);
  }
  if (its == nullptr) its = make_ready(pass, bindings, many ? Form::pieces : Form::cold);
  if (its == nullptr) its = make_ready(pass, bindings, many ? Form::cold : Form::pieces);
  if (its == nullptr) {
    // The CPU runs it: a kernel is worth compiling for whatever comes again.
    kernels_.want(missing);
    return its;
  }
  its->compiled = compiled;
  if (kernels_.can_compile()) {
    kernels_.look_for(missing);
    its->wanted = std::move(missing);
  }
  return its;
}

std::shared_ptr<Ready> Code::make_ready(size_t pass, std::span<const Binding> bindings, Form form,
                                        std::vector<const Kernel*>* missing) const {
  if (form == Form::pieces) {
    const PieceCode* const its = pieces(pass);
    if (its == nullptr) return nullptr;
    const auto available = [this](const Kernel& kernel) {
      return loaded(kernel).function != nullptr;
    };
    return make_ready(
        pass, bindings, form,
        [&](std::span<const Binding> all) {
          return one_by_one(all, [&](const Binding& one) { return its->launches(one, available); });
        },
        missing);
  }
  const Forms& forms = forms_[pass];
  const GroupCode* const its = form == Form::emitted ? forms.emitted.get() : forms.cold.get();
  if (its == nullptr) return nullptr;
  return make_ready(
      pass, bindings, form, [&](std::span<const Binding> all) { return its->launches(all); },
      missing);
}

std::shared_ptr<Ready> Code::make_ready(size_t pass, std::span<const Binding> bindings, Form form,
                                        const Prepared::Planner& planner,
                                        std::vector<const Kernel*>* missing) const {
  std::shared_ptr<Ready> ready;
  try {
    ready = std::make_shared<Ready>(form, Prepared(plan_.batches[pass].group, bindings, planner));
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error&) {  // its numbers do not fit
    return nullptr;
  }
  bool is_complete = true;
  for (const Prepared::Launch& launch : ready->prepared.launches()) {
    const Loaded its = loaded(*launch.kernel);
    if (its.function != nullptr && launch.threads > kernels_.most_threads(its.function)) {
      return nullptr;
    }
    if (its.function == nullptr) {
      is_complete = false;
      if (missing == nullptr) break;
      if (std::ranges::find(*missing, launch.kernel) == missing->end()) {
        missing->push_back(launch.kernel);
      }
    }
    ready->loaded.push_back(its);
  }
  return is_complete ? ready : nullptr;
}

// Null where it cannot be taken apart.
const PieceCode* Code::pieces(size_t pass) const {
  const std::lock_guard guard(mutex_);
  auto& code = pieces_[pass];
  if (!code) {
    code.emplace();
    const Group& group = plan_.batches[pass].group;
    try {
      if (auto pieces = take_apart(group)) {
        *code = std::make_unique<const PieceCode>(group, *std::move(pieces), emitted_, cold_);
      }
    } catch (const Error&) {  // an operation that csrc/gpu refuses
    }
  }
  return code->get();
}

Loaded Code::loaded(const Kernel& kernel) const {
  const std::lock_guard guard(mutex_);
  const auto found = loaded_.find(&kernel);
  if (found != loaded_.end()) return found->second;
  Loaded its{kernels_.find_if(kernel.name), 0};
  if (its.function == nullptr) return its;  // it may be compiled later
  if (!kernel.program.empty()) its.program = kernels_.add_program(kernel.program);
  loaded_.emplace(&kernel, its);
  return its;
}

}  // namespace hologram::gpu

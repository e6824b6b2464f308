#include "cpu/backend.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "atlas/config.h"
#include "atlas/error.h"
#include "cpu/allocator.h"
#include "cpu/system.h"

namespace hologram {
namespace cpu {
namespace {

struct Code final : GroupCode {
  explicit Code(const Group& group) : compiled(cpu::compile(group)) {}
  std::unique_ptr<CompiledGroup> compiled;
};

constinit std::atomic<Parallel*> threads{nullptr};

}  // namespace

void set_parallel(Parallel& parallel) noexcept {
  threads.store(&parallel, std::memory_order_release);
}

std::unique_ptr<GroupCode> CpuBackend::Executor::compile(const Group& group) {
  return std::make_unique<Code>(group);
}

void CpuBackend::Executor::run(const GroupCode& code, std::span<const Binding> bindings) {
  Parallel* const parallel = threads.load(std::memory_order_acquire);
  cpu::run(*static_cast<const Code&>(code).compiled, bindings,
           parallel != nullptr ? *parallel : serial());
}

CpuBackend::CpuBackend(int ordinal, int count) {
  properties_.name = processor_name();
  if (count > 1) {
    properties_.name +=
        " (" + std::to_string(ordinal + 1) + " of " + std::to_string(count) + " parts)";
  }
  properties_.backend = "cpu";
  properties_.computes_on_host = true;
  properties_.total_memory = total_memory() / static_cast<size_t>(count);
  properties_.multi_processor_count = std::max(usable_cores() / count, 1);
  properties_.isa = isa_name(best_isa());
  properties_.l2_cache_size = l2_cache_size();
}

void* CpuBackend::allocate_segment(size_t bytes) noexcept {
  return map_memory(bytes);
}

void CpuBackend::free_segment(void* data, size_t bytes) noexcept {
  unmap_memory(data, bytes);
}

size_t CpuBackend::available_memory() const noexcept {
  return std::min(cpu::available_memory(), properties_.total_memory);
}

}  // namespace cpu

std::string cpu_backend_error() {
  try {
    cpu::best_isa();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::unique_ptr<Backend> make_cpu_backend(int ordinal, int count) {
  return std::make_unique<cpu::CpuBackend>(ordinal, count);
}

}  // namespace hologram

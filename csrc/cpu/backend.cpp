#include "cpu/backend.h"

#include <algorithm>
#include <memory>
#include <string>

#include "atlas/backends.h"
#include "atlas/error.h"
#include "cpu/code.h"
#include "cpu/memory.h"
#include "cpu/queue.h"
#include "cpu/system.h"

namespace hologram {
namespace cpu {

std::unique_ptr<PlanCode> CpuBackend::compile(const Plan& plan) {
  return std::make_unique<Code>(plan);
}

std::unique_ptr<hologram::Queue> CpuBackend::make_queue(int /*priority*/) {
  return std::make_unique<Queue>();
}

std::shared_ptr<hologram::Moment> CpuBackend::make_moment() {
  return std::make_shared<Moment>();
}

CpuBackend::CpuBackend(int ordinal, int count) {
  properties_.name = processor_name();
  if (count > 1) {
    properties_.name +=
        " (" + std::to_string(ordinal + 1) + " of " + std::to_string(count) + " parts)";
  }
  properties_.backend = "cpu";
  properties_.computes_on_host = true;
  properties_.host_addressable = true;
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

void CpuBackend::populate(void* data, size_t bytes) noexcept {
  populate_memory(data, bytes);
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

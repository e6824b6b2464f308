// The CPU as a backend of the core.
#pragma once

#include "atlas/backend.h"

namespace hologram::cpu {

class CpuBackend final : public Backend {
 public:
  CpuBackend(int ordinal, int count);

  const DeviceProperties& properties() const noexcept override { return properties_; }
  void* allocate_segment(size_t bytes) noexcept override;
  void free_segment(void* data, size_t bytes) noexcept override;
  void populate(void* data, size_t bytes) noexcept override;
  size_t available_memory() const noexcept override;
  std::unique_ptr<PlanCode> compile(const Plan& plan) override;
  std::unique_ptr<hologram::Queue> make_queue(int priority) override;
  std::shared_ptr<hologram::Moment> make_moment() override;

 private:
  DeviceProperties properties_;
};

}  // namespace hologram::cpu

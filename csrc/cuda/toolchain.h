// NVRTC, and the files in which what it has compiled is kept (kernel_cache.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cuda/context.h"
#include "cuda/kernel_cache.h"
#include "gpu/compiler.h"

namespace hologram::cuda {

class Toolchain final : public gpu::Toolchain {
 public:
  // `dialect`: the text of hologram_gpu.h.
  Toolchain(const Gpu& gpu, std::string dialect);

  bool keeps() const noexcept override { return cache_.has_folder(); }
  gpu::Functions find(const std::vector<const gpu::Kernel*>& kernels) noexcept override;
  gpu::Functions compile(const std::vector<const gpu::Kernel*>& kernels) override;

 private:
  const Gpu& gpu_;
  const std::string dialect_;
  KernelCache cache_;
  std::map<std::string, Module> modules_;  // of files
};

}  // namespace hologram::cuda

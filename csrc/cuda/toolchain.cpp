#include "cuda/toolchain.h"

#include <cstdio>

#include "atlas/error.h"
#include "atlas/fnv.h"
#include "cuda/memory.h"
#include "cuda/nvrtc.h"

namespace hologram::cuda {
namespace {

// Of what is kept on disk. The texts of kernels are part of what is looked for.
std::string version(const Gpu& gpu, const std::string& dialect) {
  int its = 0;
  check(driver().driver_version(&its), "cuDriverGetVersion");
  char text[80];
  std::snprintf(text, sizeof text, "cuda-%d-sm_%d%d-%016llx", its, gpu.major, gpu.minor,
                static_cast<unsigned long long>(fnv1a(dialect)));
  return text;
}

Module load_module(const std::string& code) {
  Module module = nullptr;  // for as long as the process lives
  check_memory(driver().load_module(&module, code.c_str()), code.size(), "cuModuleLoadData");
  return module;
}

Function function_of(Module module, const std::string& name) {
  Function function = nullptr;
  check(driver().module_function(&function, module, name.c_str()), "cuModuleGetFunction");
  return function;
}

}  // namespace

Toolchain::Toolchain(const Gpu& gpu, std::string dialect)
    : gpu_(gpu), dialect_(std::move(dialect)), cache_(cache_folder(), version(gpu, dialect_)) {}

gpu::Functions Toolchain::find(const std::vector<const gpu::Kernel*>& kernels) noexcept {
  gpu::Functions functions;
  for (const gpu::Kernel* const kernel : kernels) {
    std::string path;
    try {
      if (const auto found = cache_.find(*kernel)) path = *found;
      if (path.empty()) continue;
      const ContextGuard guard(gpu_);
      Module& module = modules_[path];
      if (module == nullptr) module = load_module(cache_.read(path));
      functions.emplace_back(kernel->name, function_of(module, kernel->name));
    } catch (const OutOfMemory&) {
      modules_.erase(path);  // nothing is wrong with the file
    } catch (const std::exception& error) {
      modules_.erase(path);
      cache_.discard(path, error.what());
    }
  }
  return functions;
}

gpu::Functions Toolchain::compile(const std::vector<const gpu::Kernel*>& kernels) {
  const std::string code =
      nvrtc::compile(gpu::library_text(kernels), dialect_, gpu_.major, gpu_.minor);
  gpu::Functions functions;
  {
    const ContextGuard guard(gpu_);
    const Module module = load_module(code);
    for (const gpu::Kernel* const kernel : kernels) {
      functions.emplace_back(kernel->name, function_of(module, kernel->name));
    }
  }
  cache_.keep(kernels, code);
  return functions;
}

}  // namespace hologram::cuda

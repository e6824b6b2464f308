// The kernels of a GPU. Compiled with the package are those of csrc/gpu that run any group, those
// that move elements, and those emitted for groups that programs often have; others are compiled
// when they have been asked for (gpu/compiler.h).
//
// They lie in the folder `kernels` beside the extension (tools/build_kernels.py), a file for each
// library and architecture: cold.sm_90.cubin is machine code for compute
// capability 9.x from 9.0 on, cold.compute_120.ptx is compiled by the driver for GPUs that are
// newer than all of these.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/context.h"
#include "cuda/image.h"
#include "cuda/memory.h"
#include "gpu/compiler.h"
#include "gpu/kernel_store.h"

namespace hologram::cuda {

class Kernels final : public gpu::KernelStore {
 public:
  // Maps the GPU's files. Throws Error where one of gpu/libraries.h is missing, or one cannot be
  // read.
  explicit Kernels(const Gpu& gpu);

  // The driver is given a file when the first of its kernels is asked for, with the GPU's context
  // current.
  void* find_if(const std::string& name) override;
  // The same; throws Error if there is none, too.
  Function find(const std::string& name);

  uint64_t add_program(std::span<const uint32_t> words) override { return constants_.add(words); }
  void remove_program(uint64_t program, size_t words) noexcept override {
    constants_.remove(program, words);
  }

  void want(const std::vector<const gpu::Kernel*>& kernels) override { compiler_.want(kernels); }
  void look_for(const std::vector<const gpu::Kernel*>& kernels) override {
    compiler_.look_for(kernels);
  }
  bool can_compile() const noexcept override { return compiler_.is_on(); }
  uint64_t compiled() const noexcept override { return compiled_.load(std::memory_order_acquire); }

 private:
  struct Library {
    std::unique_ptr<const Image> image;
    Module module = nullptr;  // once it is loaded
  };
  Function find_in(Library& library, const std::string& name);

  std::mutex mutex_;  // of all below
  std::vector<Library> libraries_;
  std::map<std::string, Function> found_;
  std::atomic<uint64_t> compiled_{0};
  Constants constants_;
  gpu::Compiler compiler_;  // which uses all above
};

// A folder's libraries, of whatever architectures, sorted.
std::vector<std::string> kernel_libraries(const std::string& folder);

// A folder's file of a library for a GPU of a compute capability; empty if there is none that it
// could run.
std::string kernel_file(const std::string& folder, const std::string& library, int major,
                        int minor);

// Whether there is one for a GPU; throws Error that says what is missing.
void check_kernels(int major, int minor);

// Where the package has its kernels, or what HOLOGRAM_CUDA_KERNELS says.
std::string kernel_folder();

}  // namespace hologram::cuda

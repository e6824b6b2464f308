// Kernels that are compiled while the program goes on: nobody waits for the compiler.
//
// What is wanted is compiled once in a process, several kernels at a time, by a thread of the GPU's
// own, and kept on disk, where that thread looks first. A text that does not compile is never asked
// for again.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/context.h"
#include "cuda/kernel_cache.h"
#include "gpu/emit.h"

namespace hologram::cuda {

// How many kernels have been compiled, could not be, and were found on disk, and how many files
// with kernels were removed because they were of no use, in this process.
struct CompilerCounts {
  uint64_t compiled, failed, found, discarded;
};
CompilerCounts compiler_counts() noexcept;

class Compiler {
 public:
  // Has functions of kernels from now on, by name.
  using Functions = std::vector<std::pair<std::string, Function>>;
  using Publish = std::function<void(const Functions& functions)>;

  // `dialect`: the text of hologram_gpu.h; empty: nothing is ever compiled. HOLOGRAM_COMPILE says
  // "0" for the same, and "wait" for a thread that wants something to wait until it is there.
  Compiler(const Gpu& gpu, std::string dialect, Publish publish);
  ~Compiler();
  Compiler(const Compiler&) = delete;
  Compiler& operator=(const Compiler&) = delete;

  bool is_on() const noexcept { return mode_ != Mode::off; }
  // Emitted kernels. Those that were wanted before are left out. Thread-safe.
  void want(const std::vector<const gpu::Kernel*>& kernels) { ask(kernels, true); }
  // The same, of those that are on disk.
  void look_for(const std::vector<const gpu::Kernel*>& kernels) { ask(kernels, false); }
  // Ends the thread, when it has done what it is about.
  void stop() noexcept;

 private:
  enum class Mode : uint8_t { off, background, waited_for };

  struct Asked {
    gpu::Kernel kernel;
    bool may_compile;
  };

  void ask(const std::vector<const gpu::Kernel*>& kernels, bool may_compile);
  void work() noexcept;
  // Those that have been compiled before are published; returns which are to be compiled.
  std::vector<const gpu::Kernel*> load(const std::vector<Asked>& asked) noexcept;
  // Returns what is wrong, or nothing.
  std::string compile(const std::vector<const gpu::Kernel*>& kernels) noexcept;

  const Gpu& gpu_;
  const std::string dialect_;
  const Publish publish_;
  const Mode mode_;
  KernelCache cache_;                      // of the thread alone, like what follows
  std::map<std::string, Module> modules_;  // of files
  std::set<std::string> loaded_;
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::set<std::string> wanted_, looked_for_;
  std::vector<Asked> waiting_;  // in order
  bool is_compiling_ = false, is_stopping_ = false;
  std::thread thread_;  // once something is wanted
};

}  // namespace hologram::cuda

// Kernels that are compiled while the program goes on: nobody waits for the compiler.
//
// What is wanted is compiled once in a process, several kernels at a time, by a thread of the
// device's own, which looks first where earlier processes have kept theirs. A text that does not
// compile is never asked for again.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/emit.h"

namespace hologram::gpu {

// What a device's runtime launches, by the names of the kernels.
using Functions = std::vector<std::pair<std::string, void*>>;

// Makes code of texts. Used by one thread, but for keeps().
class Toolchain {
 public:
  virtual ~Toolchain() = default;
  // Whether what earlier processes have made may be found.
  virtual bool keeps() const noexcept { return false; }
  // Of those which are kept from earlier; does not throw.
  virtual Functions find(const std::vector<const Kernel*>& /*kernels*/) noexcept { return {}; }
  // All as one text. Throws what the compiler says.
  virtual Functions compile(const std::vector<const Kernel*>& kernels) = 0;
};

// How many kernels have been compiled, could not be, and were found, in this process.
struct CompilerCounts {
  uint64_t compiled, failed, found;
};
CompilerCounts compiler_counts() noexcept;

class Compiler {
 public:
  // What a process is given at most, each of some tens of kilobytes on the device: what is wanted
  // after that runs by slower kernels. Programs that differ in more than sizes again and again
  // would fill memory else.
  static constexpr size_t kMostKernels = 8192;
  // Has functions of kernels from now on.
  using Publish = std::function<void(const Functions& functions)>;

  // No toolchain: nothing is ever compiled. HOLOGRAM_COMPILE says "0" for the same, and "wait" for
  // a thread that wants something to wait until it is there.
  Compiler(std::unique_ptr<Toolchain> toolchain, Publish publish, size_t most = kMostKernels);
  ~Compiler();
  Compiler(const Compiler&) = delete;
  Compiler& operator=(const Compiler&) = delete;

  // Whether HOLOGRAM_COMPILE lets anything be compiled.
  static bool is_wanted() noexcept;

  bool is_on() const noexcept { return mode_ != Mode::off; }
  // Emitted kernels. Those that were wanted before are left out. Thread-safe.
  void want(const std::vector<const Kernel*>& kernels) { ask(kernels, true); }
  // The same, of those that are kept.
  void look_for(const std::vector<const Kernel*>& kernels) { ask(kernels, false); }
  // Ends the thread, when it has done what it is about. Nothing more is compiled.
  void stop() noexcept;

 private:
  enum class Mode : uint8_t { off, background, waited_for };
  static Mode wanted_mode() noexcept;

  struct Asked {
    Kernel kernel;
    bool may_compile;
  };

  void ask(const std::vector<const Kernel*>& kernels, bool may_compile);
  void work() noexcept;
  // Those that are kept are published; returns which are to be compiled.
  std::vector<const Kernel*> load(const std::vector<Asked>& asked) noexcept;
  // Returns what is wrong, or nothing.
  std::string compile(const std::vector<const Kernel*>& kernels) noexcept;

  const std::unique_ptr<Toolchain> toolchain_;  // the thread's
  const Publish publish_;
  const Mode mode_;
  const size_t most_;
  std::set<std::string> loaded_;  // the thread's
  std::mutex mutex_;              // of all below
  std::condition_variable changed_;
  std::set<std::string> wanted_, looked_for_;
  std::vector<Asked> waiting_;  // in order
  bool is_compiling_ = false, is_stopping_ = false;
  std::thread thread_;  // once something is wanted
};

}  // namespace hologram::gpu

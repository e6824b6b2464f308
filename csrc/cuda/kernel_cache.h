// Compiled kernels on disk, for the processes that come later.
//
// A folder for each version of what reads and of what made them, the driver, the architecture and
// the dialect; in it a file for each module, which says which kernels it has, of which text. What a
// file says and has is checked by a hash. What is wrong is said once, with the path, and nothing is
// kept any more, or the file is removed: nothing else depends on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gpu/emit.h"

namespace hologram::cuda {

// HOLOGRAM_CACHE_DIR: "0" is none, not set the user's folder for such files. Empty: there is none.
std::string cache_folder();

// Not thread-safe; several processes may use one folder.
class KernelCache {
 public:
  // What all files of a folder have at most; those that were not used for the longest time go.
  static constexpr uint64_t kMostBytes = uint64_t{256} << 20;
  // Files of the process that were discarded.
  static inline std::atomic<uint64_t> discarded{0};

  // `folder`: empty: nothing is found and nothing kept. `version`: a name of a folder.
  KernelCache(std::string folder, std::string version);

  // Whether it has a folder; thread-safe.
  bool has_folder() const noexcept { return !root_.empty(); }

  // The file with the module that has a kernel.
  std::optional<std::string> find(const gpu::Kernel& kernel);
  // Its code; throws Error where it is not what was written.
  std::string read(const std::string& path) const;
  // Removes a file of which nothing can be used.
  void discard(const std::string& path, const std::string& why);
  void keep(const std::vector<const gpu::Kernel*>& kernels, const std::string& code);

 private:
  // Whether it is there, made where it is not, and nobody else can write it.
  bool open();
  void list();
  void shrink() const;

  const std::string root_, folder_;
  enum class State : uint8_t { closed, open, refused } state_ = State::closed;
  std::map<std::string, std::string> files_;  // by kernel
};

}  // namespace hologram::cuda

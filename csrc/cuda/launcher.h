// Launches of kernels. A driver that launches graphs without branches in constant time takes less
// of the host's time for a graph of one kernel than for cuLaunchKernel, as long as it is the same
// kernel that the graph had before, and still less where nothing of it is to be set.
//
// So kernels that a queue launches again have graphs of their own, two each where that is possible:
// a loop often has two results in turn. What has been launched keeps its parameters.
//
// A profiler knows the kernels of a program by the calls that launch them, and is told of no graph:
// while one looks there are none.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/driver.h"
#include "gpu/steps.h"

namespace hologram::cuda {

struct KernelLaunch {
  Function function;
  unsigned blocks, threads;
  std::span<const Address> addresses;  // arguments
  std::span<const std::byte> bytes;    // the argument after them
};

// A launch as the driver takes it. Valid as long as what the launch names is.
class LaunchNode {
 public:
  explicit LaunchNode(const KernelLaunch& launch);
  LaunchNode(const LaunchNode&) = delete;
  LaunchNode& operator=(const LaunchNode&) = delete;
  const KernelNode& get() const noexcept { return its_; }

 private:
  std::array<void*, gpu::kMostBuffers + 1> parameters_;
  KernelNode its_;
};

// Of one queue. Not synchronised: the queue calls it under its lock, with the context current.
class Launcher {
 public:
  Launcher() = default;
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // What the driver says of it; nothing is launched where that is no success.
  Status launch(const KernelLaunch& launch, Stream stream);

  // Whether a profiler looks at what is launched from now on.
  void watch(bool on) noexcept { watched_ = on; }

  // In the end.
  void free() noexcept;

 private:
  // An executable graph of one kernel, and which launch that is; of none while `function` is null.
  struct OneKernel {
    Graph graph = nullptr;
    GraphNode node = nullptr;
    GraphExecutable executable = nullptr;
    Function function = nullptr;
    unsigned blocks = 0, threads = 0;
    std::vector<std::byte> parameters;

    bool empty() const noexcept { return executable == nullptr; }
    bool is(const KernelLaunch& launch) const noexcept;
    void note(const KernelLaunch& launch);
  };
  // Of the functions of one hash.
  struct Set {
    std::array<OneKernel, 2> graphs;
    size_t newest = 0;          // that was launched last
    Function missed = nullptr;  // the last one that had none
  };
  // Each takes about 100 KB of the device.
  static constexpr size_t kSets = 64, kMostOfAll = 512;
  inline static std::atomic<size_t> made{0};  // of all queues

  static OneKernel* choose(Set& set, Function function) noexcept;
  bool start();
  bool make(OneKernel& its, const KernelNode& kernel);

  const Driver& driver_ = driver();
  bool as_graphs_ = true;  // until it is known that they cannot be, or take longer
  std::atomic<bool> watched_ = false;
  std::vector<Set> sets_;  // none before the first launch
};

}  // namespace hologram::cuda

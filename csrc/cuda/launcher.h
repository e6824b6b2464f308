// Launches of kernels, as graphs of one node, which is another kernel each time: a driver that
// launches graphs without branches in constant time takes less of the host's time for it than for
// cuLaunchKernel.
//
// What has been launched keeps its parameters, and an executable graph that is launched again runs
// after its last launch. A few of them take turns.
#pragma once

#include <array>
#include <cstddef>

#include "cuda/driver.h"

namespace hologram::cuda {

// Of one queue. Not synchronised: the queue calls it under its lock, with the context current.
class Launcher {
 public:
  Launcher() = default;
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // What the driver says of it; nothing is launched where that is no success.
  Status launch(Function function, unsigned blocks, unsigned threads, Stream stream,
                void** parameters);

  // In the end.
  void free() noexcept;

 private:
  struct OneKernel {
    Graph graph = nullptr;
    GraphNode node = nullptr;
    GraphExecutable executable = nullptr;
  };
  bool make(OneKernel& its, const KernelNode& kernel);

  const Driver& driver_ = driver();
  bool as_graphs_ = true;  // until it is known that they cannot be, or take longer
  std::array<OneKernel, 8> graphs_;
  size_t next_ = 0;
};

}  // namespace hologram::cuda

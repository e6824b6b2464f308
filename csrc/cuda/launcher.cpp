#include "cuda/launcher.h"

#include "cuda/context.h"

namespace hologram::cuda {
namespace {

// Launches graphs in constant time.
constexpr int kLeastVersion = 13000;

}  // namespace

Status Launcher::launch(Function function, unsigned blocks, unsigned threads, Stream stream,
                        void** parameters) {
  const KernelNode kernel{function, blocks, 1, 1, threads, 1, 1, 0, parameters, nullptr};
  OneKernel& its = graphs_[next_];
  if (its.executable == nullptr && as_graphs_) [[unlikely]]
    as_graphs_ = make(its, kernel);
  if (as_graphs_ && driver_.set_kernel_node(its.executable, its.node, &kernel) == kSuccess)
      [[likely]] {
    next_ = (next_ + 1) % graphs_.size();
    return driver_.launch_graph(its.executable, stream);
  }
  return driver_.launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr);
}

// With a kernel that is not launched yet.
[[gnu::noinline]] bool Launcher::make(OneKernel& its, const KernelNode& kernel) {
  const CaptureGuard capture;
  int version = 0;
  return driver_.driver_version(&version) == kSuccess && version >= kLeastVersion &&
         driver_.create_graph(&its.graph, 0) == kSuccess &&
         driver_.add_kernel_node(&its.node, its.graph, nullptr, 0, &kernel) == kSuccess &&
         driver_.instantiate_graph(&its.executable, its.graph, nullptr, nullptr, 0) == kSuccess;
}

void Launcher::free() noexcept {
  for (OneKernel& its : graphs_) {
    if (its.executable != nullptr) driver_.destroy_executable(its.executable);
    if (its.graph != nullptr) driver_.destroy_graph(its.graph);
    its = {};
  }
}

}  // namespace hologram::cuda

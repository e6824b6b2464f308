#include "cuda/launcher.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "atlas/error.h"
#include "cuda/context.h"
#include "gpu/emit.h"

namespace hologram::cuda {
namespace {

// Launches graphs in constant time.
constexpr int kLeastVersion = 13000;

size_t hash_of(Function function) noexcept {
  return static_cast<size_t>((std::bit_cast<uintptr_t>(function) * 0x9e3779b97f4a7c15u) >> 32);
}

}  // namespace

LaunchNode::LaunchNode(const KernelLaunch& launch)
    : its_{launch.function,    launch.blocks, 1, 1, launch.threads, 1, 1, 0,
           parameters_.data(), nullptr} {
  const size_t count = launch.addresses.size();
  if (count >= parameters_.size()) throw Error("a launch of too many arguments");
  for (size_t i = 0; i < count; ++i) {
    parameters_[i] = const_cast<Address*>(&launch.addresses[i]);
  }
  parameters_[count] = const_cast<std::byte*>(launch.bytes.data());
}

bool Launcher::OneKernel::is(const KernelLaunch& launch) const noexcept {
  const size_t addresses = launch.addresses.size_bytes();
  const auto same = [](const std::byte* kept, std::span<const std::byte> bytes) {
    return bytes.empty() || std::memcmp(kept, bytes.data(), bytes.size()) == 0;
  };
  return function == launch.function && blocks == launch.blocks && threads == launch.threads &&
         parameters.size() == addresses + launch.bytes.size() &&
         same(parameters.data(), std::as_bytes(launch.addresses)) &&
         same(parameters.data() + addresses, launch.bytes);
}

void Launcher::OneKernel::note(const KernelLaunch& launch) {
  const size_t addresses = launch.addresses.size_bytes();
  parameters.resize(addresses + launch.bytes.size());
  std::ranges::copy(std::as_bytes(launch.addresses), parameters.begin());
  std::ranges::copy(launch.bytes, parameters.begin() + static_cast<ptrdiff_t>(addresses));
  blocks = launch.blocks;
  threads = launch.threads;
  function = launch.function;  // at last
}

Status Launcher::launch(const KernelLaunch& launch, Stream stream) {
  Set* set = nullptr;
  if (as_graphs_ && !watched_.load(std::memory_order_relaxed)) [[likely]] {
    if (sets_.empty()) [[unlikely]]
      as_graphs_ = start();
    if (as_graphs_) set = &sets_[hash_of(launch.function) % kSets];
  }
  if (set != nullptr) [[likely]] {
    for (size_t i = 0; i < set->graphs.size(); ++i) {
      if (!set->graphs[i].is(launch)) continue;
      set->newest = i;
      return driver_.launch_graph(set->graphs[i].executable, stream);
    }
  }
  const LaunchNode node(launch);
  const KernelNode& kernel = node.get();
  OneKernel* const its = set != nullptr ? choose(*set, launch.function) : nullptr;
  if (its != nullptr) its->function = nullptr;
  if (its != nullptr &&
      (its->empty() ? make(*its, kernel)
                    : driver_.set_kernel_node(its->executable, its->node, &kernel) == kSuccess)) {
    its->note(launch);
    set->newest = static_cast<size_t>(its - set->graphs.data());
    return driver_.launch_graph(its->executable, stream);
  }
  return driver_.launch(launch.function, launch.blocks, 1, 1, launch.threads, 1, 1, 0, stream,
                        kernel.parameters, nullptr);
}

// The graph that is to be a function's; null where it has none, and is not known to come again.
Launcher::OneKernel* Launcher::choose(Set& set, Function function) noexcept {
  OneKernel& newer = set.graphs[set.newest];
  OneKernel& older = set.graphs[1 - set.newest];
  const bool has_one = newer.function == function || older.function == function;
  if (!has_one && set.missed != function) {
    set.missed = function;
    return nullptr;
  }
  const bool has_room = older.empty() && made.load(std::memory_order_relaxed) < kMostOfAll;
  if (older.function == function || has_room) return &older;
  if (newer.function == function) return &newer;
  return older.empty() ? nullptr : &older;
}

bool Launcher::start() {
  int version = 0;
  if (driver_.driver_version(&version) != kSuccess || version < kLeastVersion) return false;
  sets_.resize(kSets);
  return true;
}

// With a kernel that is not launched yet. Where that fails it is not tried again.
[[gnu::noinline]] bool Launcher::make(OneKernel& its, const KernelNode& kernel) {
  const CaptureGuard capture;
  OneKernel made_now;
  as_graphs_ =
      driver_.create_graph(&made_now.graph, 0) == kSuccess &&
      driver_.add_kernel_node(&made_now.node, made_now.graph, nullptr, 0, &kernel) == kSuccess &&
      driver_.instantiate_graph(&made_now.executable, made_now.graph, nullptr, nullptr, 0) ==
          kSuccess;
  if (as_graphs_) {
    its = made_now;
    made.fetch_add(1, std::memory_order_relaxed);
  } else if (made_now.graph != nullptr) {
    driver_.destroy_graph(made_now.graph);
  }
  return as_graphs_;
}

void Launcher::free() noexcept {
  for (Set& set : sets_) {
    for (OneKernel& its : set.graphs) {
      if (its.empty()) continue;
      driver_.destroy_executable(its.executable);
      driver_.destroy_graph(its.graph);
      made.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  sets_.clear();
}

}  // namespace hologram::cuda

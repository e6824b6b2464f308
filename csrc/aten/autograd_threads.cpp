#include "aten/autograd_threads.h"

#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "atlas/device.h"

namespace hologram::aten {
namespace {

// The engine counts a thread as finished before it has deleted its Python state, so its count
// cannot be waited for; the system's list of threads can. torch names them "pt_autograd_<n>".
bool any_autograd_thread() {
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::string name;
    std::ifstream comm(task.path() / "comm");
    if (std::getline(comm, name) && name.starts_with("pt_autograd_")) {
      return true;
    }
  }
  return false;
}

}  // namespace

void run_backward_on_this_thread() {
  // Not inside a backward pass, which goes on in the way that it has begun.
  if (torch::autograd::get_current_node() == nullptr &&
      hologram::device(0).properties().computes_on_host) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
}

void stop_autograd_threads() {
  using namespace std::chrono_literals;
  // Even where no thread is to be seen: one may just be starting, and in a forked child, which has
  // none, asking for the engine is what makes torch forget the parent's.
  torch::autograd::Engine::get_default_engine().stop();
  const auto deadline = std::chrono::steady_clock::now() + 2s;
  while (any_autograd_thread() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(1ms);
  }
}

}  // namespace hologram::aten

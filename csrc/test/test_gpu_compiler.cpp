// Kernels that are compiled in the background (gpu/compiler.h), by a toolchain that only counts.
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "atlas/exit.h"
#include "check.h"
#include "gpu/compiler.h"

using namespace hologram::gpu;

namespace {

struct Counting : Toolchain {
  Functions compile(const std::vector<const Kernel*>& kernels) override {
    Functions functions;
    for (const Kernel* kernel : kernels) {
      if (kernel->text == "wrong") throw std::runtime_error("it is wrong");
      functions.emplace_back(kernel->name, this);
    }
    return functions;
  }
};

// A compiler that is waited for, and what it has published.
struct Fixture {
  explicit Fixture(size_t most) {
    setenv("HOLOGRAM_COMPILE", "wait", 1);
    compiler = std::make_unique<Compiler>(
        std::make_unique<Counting>(),
        [this](const Functions& functions) {
          const std::lock_guard guard(mutex);
          for (const auto& [name, function] : functions) published.insert(name);
        },
        most);
    unsetenv("HOLOGRAM_COMPILE");
  }
  void want(const std::string& name, const std::string& text = "text") {
    Kernel kernel;
    kernel.name = name;
    kernel.text = text;
    compiler->want({&kernel});
  }
  std::mutex mutex;
  std::set<std::string> published;
  std::unique_ptr<Compiler> compiler;
};

}  // namespace

TEST(compiler_publishes_each_kernel_once_and_what_is_wrong_never) {
  Fixture its(Compiler::kMostKernels);
  const auto before = compiler_counts();
  for (const char* name : {"a", "b", "a"}) its.want(name);
  its.want("c", "wrong");
  its.want("d");
  CHECK(its.published == std::set<std::string>({"a", "b", "d"}));
  const auto after = compiler_counts();
  CHECK_EQ(after.compiled - before.compiled, 3u);
  CHECK_EQ(after.failed - before.failed, 1u);
}

TEST(compiler_gives_a_process_so_many_kernels) {
  Fixture its(3);
  for (int i = 0; i < 10; ++i) its.want("kernel_" + std::to_string(i));
  CHECK(its.published == std::set<std::string>({"kernel_0", "kernel_1", "kernel_2"}));
  its.want("kernel_1");  // is there
  CHECK_EQ(its.published.size(), 3u);
}

TEST(compiler_ends_before_the_process_does) {
  Fixture its(Compiler::kMostKernels);
  its.want("a");
  for (int i = 0; i < 2; ++i) hologram::run_before_exit();
  its.want("b");
  CHECK(its.published == std::set<std::string>({"a"}));
}

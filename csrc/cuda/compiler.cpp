#include "cuda/compiler.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "atlas/error.h"
#include "atlas/fnv.h"
#include "atlas/fork.h"
#include "cuda/memory.h"
#include "cuda/nvrtc.h"

namespace hologram::cuda {
namespace {

// Of one text: the dialect before them takes as long as a few of them.
constexpr size_t kMostAtOnce = 8;

std::atomic<uint64_t> compiled_count{0}, failed_count{0}, found_count{0};

// Of the process, which end before the libraries that they call do.
class Compilers {
 public:
  static Compilers& instance() {
    static Compilers& its = *new Compilers;
    return its;
  }
  void add(Compiler* compiler) {
    const std::lock_guard guard(mutex_);
    // Behind the libraries that have been opened by now, so that it runs before they are ended.
    static const int registered = std::atexit([] { instance().stop(); });
    static_cast<void>(registered);
    all_.insert(compiler);
  }
  void remove(Compiler* compiler) {
    const std::lock_guard guard(mutex_);
    all_.erase(compiler);
  }

 private:
  void stop() {
    if (in_forked_child()) return;
    std::set<Compiler*> all;
    {
      const std::lock_guard guard(mutex_);
      all = all_;
    }
    for (Compiler* const its : all) its->stop();
  }

  std::mutex mutex_;
  std::set<Compiler*> all_;
};

// Of what is kept on disk. The texts of kernels are part of what is looked for.
std::string version(const Gpu& gpu, const std::string& dialect) {
  int its = 0;
  check(driver().driver_version(&its), "cuDriverGetVersion");
  char text[80];
  std::snprintf(text, sizeof text, "cuda-%d-sm_%d%d-%016llx", its, gpu.major, gpu.minor,
                static_cast<unsigned long long>(fnv1a(dialect)));
  return text;
}

Module load_module(const std::string& code) {
  Module module = nullptr;  // for as long as the process lives
  check_memory(driver().load_module(&module, code.c_str()), code.size(), "cuModuleLoadData");
  return module;
}

Function function_of(Module module, const std::string& name) {
  Function function = nullptr;
  check(driver().module_function(&function, module, name.c_str()), "cuModuleGetFunction");
  return function;
}

// Once in a process: what does not compile runs as it did before.
void warn(const std::string& kernel, const std::string& error) {
  static std::atomic<bool> has_warned{false};
  if (has_warned.exchange(true)) return;
  std::fprintf(stderr,
               "torch_hologram: the kernel %s cannot be compiled, and others neither, maybe; what "
               "would run by it runs by slower ones, with the same results: %s\n",
               kernel.c_str(), error.c_str());
}

}  // namespace

CompilerCounts compiler_counts() noexcept {
  return {compiled_count.load(), failed_count.load(), found_count.load(),
          KernelCache::discarded.load()};
}

Compiler::Compiler(const Gpu& gpu, std::string dialect, Publish publish)
    : gpu_(gpu),
      dialect_(std::move(dialect)),
      publish_(std::move(publish)),
      mode_([&] {
        const char* const given = std::getenv("HOLOGRAM_COMPILE");
        const std::string_view its = given != nullptr ? given : "";
        if (dialect_.empty() || its == "0") return Mode::off;
        return its == "wait" ? Mode::waited_for : Mode::background;
      }()),
      cache_(is_on() ? cache_folder() : "", version(gpu, dialect_)) {}

Compiler::~Compiler() {
  Compilers::instance().remove(this);
  stop();
}

void Compiler::stop() noexcept {
  if (in_forked_child()) return;  // it has no such thread, and somebody else's lock, maybe
  std::thread thread;
  {
    const std::lock_guard guard(mutex_);
    is_stopping_ = true;
    thread = std::move(thread_);
  }
  changed_.notify_all();
  if (thread.joinable()) thread.join();
}

void Compiler::ask(const std::vector<const gpu::Kernel*>& kernels, bool may_compile) {
  if (!is_on() || (!may_compile && !cache_.has_folder())) return;
  std::unique_lock lock(mutex_);
  if (is_stopping_) return;
  for (const gpu::Kernel* const kernel : kernels) {
    if (kernel->text.empty()) continue;
    const bool is_new =
        may_compile ? wanted_.insert(kernel->name).second
                    : !wanted_.contains(kernel->name) && looked_for_.insert(kernel->name).second;
    if (is_new) waiting_.push_back({*kernel, may_compile});
  }
  if (waiting_.empty()) return;
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { work(); });
    Compilers::instance().add(this);
  }
  changed_.notify_all();
  if (mode_ == Mode::waited_for) {
    changed_.wait(lock, [&] { return is_stopping_ || (waiting_.empty() && !is_compiling_); });
  }
}

void Compiler::work() noexcept {
  std::unique_lock lock(mutex_);
  while (true) {
    is_compiling_ = false;
    changed_.notify_all();
    changed_.wait(lock, [&] { return is_stopping_ || !waiting_.empty(); });
    if (is_stopping_) return;
    is_compiling_ = true;
    const auto end =
        waiting_.begin() + static_cast<ptrdiff_t>(std::min(waiting_.size(), kMostAtOnce));
    const std::vector<Asked> some(std::move_iterator(waiting_.begin()), std::move_iterator(end));
    waiting_.erase(waiting_.begin(), end);
    lock.unlock();
    const std::vector<const gpu::Kernel*> all = load(some);
    const std::string error = all.empty() ? "" : compile(all);
    for (size_t i = 0; i < all.size() && !error.empty(); ++i) {
      // One by one: which of them it is.
      const std::string its = all.size() == 1 ? error : compile({all[i]});
      if (its.empty()) continue;
      ++failed_count;
      warn(all[i]->name, its);
    }
    lock.lock();
  }
}

std::vector<const gpu::Kernel*> Compiler::load(const std::vector<Asked>& asked) noexcept {
  std::vector<const gpu::Kernel*> others;
  Functions functions;
  for (const Asked& one : asked) {
    const gpu::Kernel* const kernel = &one.kernel;
    if (loaded_.contains(kernel->name)) continue;
    std::string path;
    try {
      if (const auto found = cache_.find(*kernel)) path = *found;
      if (!path.empty()) {
        const ContextGuard guard(gpu_);
        Module& module = modules_[path];
        if (module == nullptr) module = load_module(cache_.read(path));
        functions.emplace_back(kernel->name, function_of(module, kernel->name));
        loaded_.insert(kernel->name);
        continue;
      }
    } catch (const OutOfMemory&) {
      modules_.erase(path);  // nothing is wrong with the file
    } catch (const std::exception& error) {
      modules_.erase(path);
      cache_.discard(path, error.what());
    }
    if (one.may_compile) others.push_back(kernel);
  }
  if (!functions.empty()) publish_(functions);
  found_count += functions.size();
  return others;
}

std::string Compiler::compile(const std::vector<const gpu::Kernel*>& kernels) noexcept {
  try {
    const std::string code =
        nvrtc::compile(gpu::library_text(kernels), dialect_, gpu_.major, gpu_.minor);
    Functions functions;
    {
      const ContextGuard guard(gpu_);
      const Module module = load_module(code);
      for (const gpu::Kernel* const kernel : kernels) {
        functions.emplace_back(kernel->name, function_of(module, kernel->name));
      }
    }
    publish_(functions);
    compiled_count += functions.size();
    cache_.keep(kernels, code);
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace hologram::cuda

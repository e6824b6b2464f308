#include "gpu/compiler.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "atlas/exit.h"
#include "atlas/fork.h"

namespace hologram::gpu {
namespace {

// Of one text: the dialect before them takes as long as a few of them.
constexpr size_t kMostAtOnce = 8;

std::atomic<uint64_t> compiled_count{0}, failed_count{0}, found_count{0};

// Of the process, which end before the libraries that they call do.
class Compilers {
 public:
  Compilers() {
    before_exit([] { instance().stop(); });
  }
  static Compilers& instance() {
    static Compilers& its = *new Compilers;
    return its;
  }
  void add(Compiler* compiler) {
    const std::lock_guard guard(mutex_);
    all_.insert(compiler);
  }
  void remove(Compiler* compiler) {
    const std::lock_guard guard(mutex_);
    all_.erase(compiler);
  }

 private:
  void stop() {
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

// Once in a process: what does not compile runs as it did before.
void warn(const std::string& kernel, const std::string& error) {
  static std::atomic<bool> has_warned{false};
  if (has_warned.exchange(true)) return;
  std::fprintf(stderr,
               "torch_hologram: the kernel %s cannot be compiled, and others neither, maybe; what "
               "would run by it runs by slower ones, with the same results: %s\n",
               kernel.c_str(), error.c_str());
}

// Once in a process, too.
void warn_of_limit(size_t most) {
  static std::atomic<bool> has_warned{false};
  if (has_warned.exchange(true)) return;
  std::fprintf(stderr,
               "torch_hologram: %zu kernels have been compiled for this process, as many as it may "
               "have; what else it computes runs by slower ones, with the same results\n",
               most);
}

}  // namespace

CompilerCounts compiler_counts() noexcept {
  return {compiled_count.load(), failed_count.load(), found_count.load()};
}

Compiler::Mode Compiler::wanted_mode() noexcept {
  const char* const given = std::getenv("HOLOGRAM_COMPILE");
  const std::string_view its = given != nullptr ? given : "";
  return its == "0" ? Mode::off : its == "wait" ? Mode::waited_for : Mode::background;
}

bool Compiler::is_wanted() noexcept {
  return wanted_mode() != Mode::off;
}

Compiler::Compiler(std::unique_ptr<Toolchain> toolchain, Publish publish, size_t most)
    : toolchain_(std::move(toolchain)),
      publish_(std::move(publish)),
      mode_(toolchain_ != nullptr ? wanted_mode() : Mode::off),
      most_(most) {}

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

void Compiler::ask(const std::vector<const Kernel*>& kernels, bool may_compile) {
  if (!is_on() || (!may_compile && !toolchain_->keeps())) return;
  std::unique_lock lock(mutex_);
  if (is_stopping_) return;
  for (const gpu::Kernel* const kernel : kernels) {
    if (kernel->text.empty()) continue;
    const std::string& name = kernel->name;
    if (wanted_.contains(name) || (!may_compile && looked_for_.contains(name))) continue;
    looked_for_.erase(name);
    if (wanted_.size() + looked_for_.size() >= most_) {
      warn_of_limit(most_);
      break;
    }
    (may_compile ? wanted_ : looked_for_).insert(name);
    waiting_.push_back({*kernel, may_compile});
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
    const std::vector<const Kernel*> all = load(some);
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

std::vector<const Kernel*> Compiler::load(const std::vector<Asked>& asked) noexcept {
  std::vector<const Kernel*> all, others;
  for (const Asked& one : asked) {
    if (!loaded_.contains(one.kernel.name)) all.push_back(&one.kernel);
  }
  const Functions functions = toolchain_->keeps() ? toolchain_->find(all) : Functions();
  for (const auto& [name, function] : functions) loaded_.insert(name);
  if (!functions.empty()) publish_(functions);
  found_count += functions.size();
  for (const Asked& one : asked) {
    if (one.may_compile && !loaded_.contains(one.kernel.name)) others.push_back(&one.kernel);
  }
  return others;
}

std::string Compiler::compile(const std::vector<const Kernel*>& kernels) noexcept {
  try {
    const Functions functions = toolchain_->compile(kernels);
    publish_(functions);
    compiled_count += functions.size();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace hologram::gpu

// What the window's tests run on: plans go through the reference interpreter, at once or, like a
// device's, some time later on a thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "atlas/float_mode.h"
#include "atlas/own_bindings.h"
#include "atlas/window.h"
#include "interpret.h"

namespace interpreter {

using namespace hologram;

class Interpreter : public PlanCompiler, public Queue, public Scratch {
 public:
  Interpreter() = default;
  ~Interpreter() override {
    if (!thread_.joinable()) return;
    push([this] { ending_ = true; });
    thread_.join();
  }

  // From here on submissions run on a thread, each when it has waited as `delay` does.
  void be_late(std::function<void()> delay) {
    delay_ = std::move(delay);
    thread_ = std::thread([this] { work(); });
  }
  bool late() const { return thread_.joinable(); }

  // After all that was submitted before.
  Ticket push(std::function<void()> task) {
    const std::lock_guard guard(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
    return ++last_;
  }
  void wait_for_all() {
    if (late()) wait(last_);
  }

  std::unique_ptr<PlanCode> compile(const Plan& plan) override {
    return std::make_unique<Code>(plan);
  }

  Ticket submit(const std::shared_ptr<const Compiled>& compiled, Frame& frame) override {
    const FloatMode mode = frame.program().float_mode;
    const Plan& plan = static_cast<const Code&>(*compiled->code).plan;
    std::vector<OwnBindings> passes;
    for (size_t i = 0; i < plan.batches.size(); ++i) {
      Frame::Pass pass(frame, i);
      if (late()) {
        passes.emplace_back(plan.batches[i].group, pass.bindings());
        continue;
      }
      const FloatModeGuard guard(mode);
      try {
        if (pass.is_call()) {
          pass.call();
        } else {
          run(plan.batches[i].group, pass.bindings());
        }
      } catch (const Error& error) {
        pass.fail(error);
      }
    }
    if (!late()) return ++last_;
    // std::function copies what it holds.
    const auto kept = std::make_shared<std::vector<OwnBindings>>(std::move(passes));
    return push([this, mode, compiled, kept] {
      delay_();
      const FloatModeGuard guard(mode);
      const Plan& its = static_cast<const Code&>(*compiled->code).plan;
      for (size_t i = 0; i < kept->size(); ++i) {
        for (const Binding& binding : (*kept)[i].bindings()) {
          run(its.batches[i].group, {&binding, 1});
        }
      }
    });
  }
  Ticket copy(void*, const void*, size_t, Direction) override { std::abort(); }
  Ticket fill(void*, const void*, size_t, size_t) override { std::abort(); }
  Ticket record(std::shared_ptr<Moment>) override {
    return late() ? push([] {}) : ++last_;
  }
  void wait_for(const Fence& fence) override {
    if (late()) {
      push([fence] { fence.wait(); });
    } else {
      fence.wait();
    }
  }
  Ticket last() noexcept override { return last_.load(std::memory_order_acquire); }
  bool done(Ticket ticket) noexcept override {
    return !late() || finished_.load(std::memory_order_acquire) >= ticket;
  }
  void wait(Ticket ticket) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done(ticket); });
  }

  void* allocate_scratch(size_t bytes, Queue&) override {
    scratch_ += bytes;
    most_scratch_ = std::max(most_scratch_, scratch_);
    return ::operator new(bytes);
  }
  // Bytes of one program at most.
  size_t most_scratch() const { return most_scratch_; }
  void free_scratch(void* memory, Fence fence) noexcept override {
    scratch_ = 0;  // a program gives all back at once
    if (fence.outstanding()) {
      push([memory] { ::operator delete(memory); });
    } else {
      ::operator delete(memory);
    }
  }

 protected:
  virtual void run(const Group& group, std::span<const Binding> bindings) {
    for (const Binding& binding : bindings) cpu::interpret(group, binding);
  }

 private:
  struct Code final : PlanCode {
    explicit Code(const Plan& its) : plan(its) {}
    size_t bytes() const noexcept override { return sizeof *this; }
    const Plan& plan;
  };

  void work() {
    while (!ending_) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !tasks_.empty(); });
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
      task = nullptr;
      const std::lock_guard guard(mutex_);
      finished_.fetch_add(1, std::memory_order_release);
      changed_.notify_all();
    }
  }

  size_t scratch_ = 0, most_scratch_ = 0;
  std::function<void()> delay_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::atomic<Ticket> last_{0}, finished_{0};
  bool ending_ = false;  // the thread's
  std::thread thread_;
};

}  // namespace interpreter

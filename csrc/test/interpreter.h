// What the window's tests run on: plans go through the reference interpreter, at once.
#pragma once

#include <memory>

#include "atlas/float_mode.h"
#include "atlas/window.h"
#include "interpret.h"

namespace interpreter {

using namespace hologram;

class Interpreter : public PlanCompiler, public Queue, public Scratch {
 public:
  std::unique_ptr<PlanCode> compile(const Plan& plan) override {
    return std::make_unique<Code>(plan);
  }
  Ticket submit(const PlanCode& code, Frame& frame) override {
    const FloatModeGuard mode(frame.program().float_mode);
    const Plan& plan = static_cast<const Code&>(code).plan;
    for (size_t i = 0; i < plan.batches.size(); ++i) {
      Frame::Pass pass(frame, i);
      try {
        run(plan.batches[i].group, pass.bindings());
      } catch (const Error& error) {
        pass.fail(error);
      }
    }
    return ++last_;
  }
  bool done(Ticket) noexcept override { return true; }
  void wait(Ticket) override {}
  void* allocate_scratch(size_t bytes) override { return ::operator new(bytes); }
  void free_scratch(void* memory) noexcept override { ::operator delete(memory); }

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
  std::atomic<Ticket> last_{0};
};

}  // namespace interpreter

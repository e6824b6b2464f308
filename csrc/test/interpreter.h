// The executor of the window's tests: runs groups with the reference interpreter, at once.
#pragma once

#include <memory>

#include "atlas/window.h"
#include "interpret.h"

namespace interpreter {

using namespace hologram;

class Interpreter final : public Executor {
 public:
  struct Compiled final : GroupCode {
    explicit Compiled(const Group& source) : group(source) {}
    Group group;
  };
  std::unique_ptr<GroupCode> compile(const Group& group) override {
    return std::make_unique<Compiled>(group);
  }
  void run(const GroupCode& code, std::span<const Binding> bindings) override {
    const Group& group = static_cast<const Compiled&>(code).group;
    for (const Binding& binding : bindings) cpu::interpret(group, binding);
  }
  void* allocate_scratch(size_t bytes) override { return ::operator new(bytes); }
  void free_scratch(void* memory) noexcept override { ::operator delete(memory); }
};

}  // namespace interpreter

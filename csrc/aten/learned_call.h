// Calls of torch's kernels whose results are known from an earlier call.
//
// What a kernel's results look like, nobody says but the kernel. So the first call of an operator
// with arguments of certain shapes runs at once, and what came out is kept beside the shapes: their
// sizes, strides and dtypes. From then on such calls are recorded (record_call.h), with results
// made before there are any.
//
// That holds for operators whose results look the same whatever the values are, that draw no random
// numbers and make no views: those of a table. What such a kernel finds wrong with shapes and
// dtypes it says at the first call, since nothing is learned of a call that failed. What it finds
// wrong with values is raised where the results are needed, as of every recorded operation.
//
// On the CPU the kernel runs when its program does. That of a vendor's device is launched then, or
// captured into the program's graph (vendor_launch.h): the host's time for it is saved when it
// comes again.
//
// A kernel makes its results itself. Which of its requests for memory they are is learned, too, and
// in a program these are given the results' places (PlacedResults in block.h, empty_requests.h); a
// vendor's kernel that can be given the tensor for its result is given it. Else it is copied.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "aten/call_schema.h"

namespace hologram::aten {

// One operator's, for as long as the process lives. Any number of threads may call it.
class LearnedCalls {
 public:
  // Null for operators that are not in the table.
  static std::unique_ptr<LearnedCalls> of(const c10::OperatorHandle& op);

  // Whether the CPU's kernel is recorded, and a vendor's.
  LearnedCalls(const c10::OperatorHandle& op, bool on_host, bool launched);
  ~LearnedCalls();

  // Replaces the arguments on the stack by results. `kernel` does that at once; it is called where
  // such a call is not known yet, or cannot be recorded.
  void call(const CallSchema& schema, torch::jit::Stack& stack, c10::function_ref<void()> kernel);

 private:
  struct Table;
  bool draws(const CallSchema& schema, const torch::jit::Stack& stack) const;

  const c10::OperatorHandle op_;
  const char* const name_;
  const bool on_host_, launched_;
  std::optional<size_t> dropout_;  // place of its probability among the arguments
  // Of what is launched, the overload that is given the tensor for its result.
  std::optional<c10::OperatorHandle> out_;
  const std::unique_ptr<Table> table_;
};

}  // namespace hologram::aten

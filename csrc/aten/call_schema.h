// What the boxed delegate knows of an operator, read off its schema once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "aten/report.h"

namespace hologram::aten {

// What may be on the CPU for one argument of an operator without device check.
enum class FromCpu : uint8_t { nothing, scalar, anything };

enum class ArgKind : uint8_t { tensor, tensor_list, optional_list, generator, device, pin_memory };

// An argument that is not passed on as it is.
struct Arg {
  uint16_t position;
  ArgKind kind;
  bool written;
  FromCpu from_cpu;
};

struct CallSchema {
  explicit CallSchema(const c10::OperatorHandle& op) : CallSchema(op, nullptr) {}
  // Counted as another operator, unless that is null.
  CallSchema(const c10::OperatorHandle& op, const char* counted_as);

  std::string name;
  OpCounter& counter;
  size_t argument_count = 0;
  c10::SmallVector<Arg, 8> args;
  bool checks_devices = true;
  bool bumps_versions = false;  // torch does so above the kernels of aten only
  bool many_cpu_scalars = false;
  bool takes_cpu_indices = false;
  bool asks_requires_grad = false;  // the CPU kernel keeps more for a backward pass
  bool per_element = false;         // list operators treat each position on its own device
  std::string method;
};

}  // namespace hologram::aten

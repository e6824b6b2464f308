// Libraries, functions and pipelines: kernel text, which the emulator of test/gpu compiles for the
// CPU.
#pragma once

#include <string>
#include <vector>

#include "../gpu/emulator.h"
#include "objc.h"

namespace hologram::test {
class KernelLibrary;
}

namespace simulated_metal {

class Library final : public Object {
 public:
  explicit Library(const hologram::test::KernelLibrary& kernels);
  const hologram::test::KernelLibrary& kernels;
};

// An argument of a kernel that a dispatch has to give.
struct KernelArgument {
  unsigned index;
  bool is_buffer;  // or a structure
  size_t bytes;    // of a structure
};

struct Kernel {
  std::string name;
  const hologram::test::KernelLibrary* library;
  const hg_kernel* code;
  std::vector<KernelArgument> arguments;  // as they stand in the text
};

class Function final : public Object {
 public:
  explicit Function(Kernel kernel);
  const Kernel kernel;
};

class Pipeline final : public Object {
 public:
  explicit Pipeline(Kernel kernel);
  const Kernel kernel;
};

}  // namespace simulated_metal

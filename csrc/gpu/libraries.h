// The kernels that a package brings compiled.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "atlas/group.h"
#include "gpu/emit.h"

namespace hologram::gpu {

// All that are not emitted for a group. Of one text, which is compiled alone: two of them may
// define the same operation.
struct Library {
  const char* name;
  std::string (*text)();
};
std::span<const Library> libraries();

// Emitted kernels of groups, of whatever sizes and addresses, each once.
class KernelSet {
 public:
  // Nothing of a group that csrc/gpu refuses. `rank`: of the space, where an operand is strided;
  // `of_many`: also those of one launch for many tensors.
  void add(const Group& group, uint8_t rank, bool of_many);
  // As so many texts.
  std::vector<std::string> texts(size_t count) const;
  size_t size() const noexcept { return kernels_.size(); }

 private:
  std::map<std::string, Kernel> kernels_;  // by name
};

}  // namespace hologram::gpu

// The kernels that a package brings compiled: all that is not emitted for a group.
#pragma once

#include <span>
#include <string>

namespace hologram::gpu {

// Of one text, which is compiled alone: two of them may define the same operation.
struct Library {
  const char* name;
  std::string (*text)();
};
std::span<const Library> libraries();

}  // namespace hologram::gpu

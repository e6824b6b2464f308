// What a queue keeps of a pass that it runs after submit() has returned.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "atlas/export.h"
#include "atlas/group.h"

namespace hologram {

// Bindings with arrays of their own.
class HOLOGRAM_EXPORT OwnBindings {
 public:
  OwnBindings(const Group& group, std::span<const Binding> source);
  OwnBindings(OwnBindings&&) noexcept = default;
  OwnBindings& operator=(OwnBindings&&) noexcept = default;
  OwnBindings(const OwnBindings&) = delete;
  OwnBindings& operator=(const OwnBindings&) = delete;

  std::span<const Binding> bindings() const noexcept { return bindings_; }

  // Puts translate(address) in the place of each address, where a queue has others than the core.
  template <class F>
  void translate(F&& translate) {
    for (void*& address : operands_) address = translate(address);
  }

 private:
  std::vector<Binding> bindings_;
  std::vector<void*> operands_;
  std::vector<uint64_t> immediates_;
  std::vector<int64_t> numbers_;  // of each binding its sizes, then its strides
};

}  // namespace hologram

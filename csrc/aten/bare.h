// Tensors whose calls come here as they were made.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

namespace hologram::aten {

// A dense tensor of the device that nothing stands in front of: no transform, mode or lazy bit.
inline bool is_bare(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet above({c10::DispatchKey::AutogradPrivateUse1,
                                       c10::DispatchKey::ADInplaceOrView,
                                       c10::DispatchKey::AutocastPrivateUse1});
  return tensor.defined() &&
         (tensor.key_set() | above) == (c10::DispatchKeySet(c10::DispatchKey::PrivateUse1) | above);
}

}  // namespace hologram::aten

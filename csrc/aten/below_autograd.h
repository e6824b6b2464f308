// Keeps autograd, autocast and views' bookkeeping out of the CPU kernels of a delegated call.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace hologram::aten {

class BelowAutograd {
 public:
  BelowAutograd()
      : guard_(c10::autograd_dispatch_keyset_with_ADInplaceOrView |
               c10::DispatchKeySet(c10::DispatchKey::AutocastCPU)) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace hologram::aten

// Keeps autograd, autocast and views' bookkeeping out of torch's kernels in a delegated call.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace hologram::aten {

// Of the devices that tensors of a delegated call are on.
inline constexpr c10::DispatchKeySet kTheirAutocast{c10::DispatchKey::AutocastCPU,
                                                    c10::DispatchKey::AutocastCUDA};

class BelowAutograd {
 public:
  BelowAutograd() : guard_(c10::autograd_dispatch_keyset_with_ADInplaceOrView | kTheirAutocast) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace hologram::aten

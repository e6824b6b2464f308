// What kernels of a vendor's device ask torch for: their results, as empty tensors.
//
// An allocator of a vendor's has no place for results (block.h has one for the CPU's); but kernels
// ask for them by at::empty, which passes the dispatcher. So while one of these lives, its thread's
// requests for empty tensors of such a device are told to ResultRequests, and those that
// PlacedResults knows are given their places.
//
// What a kernel asks for in another way, it gets as ever.
#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace hologram::aten {

class EmptyRequests {
 public:
  // One that torch leaves to libraries, and has no kernels for; it is part of no tensor.
  static constexpr auto kKey = c10::DispatchKey::DeferredInit;

  EmptyRequests() : guard_(kKey) {}
  EmptyRequests(const EmptyRequests&) = delete;
  EmptyRequests& operator=(const EmptyRequests&) = delete;

 private:
  const c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace hologram::aten

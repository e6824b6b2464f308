// Kernels of torch's for a vendor's device that a queue enqueues for a program, later than they
// were called and maybe into a graph.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "aten/delegate_target.h"
#include "aten/vendor_memory.h"

namespace hologram::aten {

// While one of these lives, what its thread has torch launch on the target's device goes to the
// stream with this handle.
class VendorLaunch {
 public:
  VendorLaunch(const DelegateTarget& target, void* stream);
  ~VendorLaunch();
  VendorLaunch(const VendorLaunch&) = delete;
  VendorLaunch& operator=(const VendorLaunch&) = delete;

 private:
  const KeepIdleMemory idle_;
  const TargetGuard device_;
  const c10::impl::VirtualGuardImpl guard_;
  const c10::Stream before_;
  bool is_other_;
};

// What torch's allocator hands out in a thread while one of these lives, for kernels that are
// captured: they work on the memory whenever their graph is launched, so that it must be nobody
// else's. Of the stream that is captured, which nobody else allocates for.
class CapturedMemory {
 public:
  explicit CapturedMemory(c10::Allocator* allocator);
  CapturedMemory(const CapturedMemory&) = delete;
  CapturedMemory& operator=(const CapturedMemory&) = delete;

  // Keeps results, and takes what has been given back once more. Throws c10::Error where somebody
  // else has it by now.
  std::shared_ptr<void> keep(at::ArrayRef<c10::IValue> results);

 private:
  class Reports;
  c10::Allocator* const allocator_;
  const std::shared_ptr<Reports> reports_;
  const c10::DebugInfoGuard guard_;
};

}  // namespace hologram::aten

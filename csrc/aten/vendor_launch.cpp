#include "aten/precompiled.h"

#include "aten/vendor_launch.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <utility>

namespace hologram::aten {

VendorLaunch::VendorLaunch(const DelegateTarget& target, void* stream)
    : device_(target), guard_(target.device.type()), before_(guard_.getStream(target.device)) {
  is_other_ = guard_.getStreamNativeHandle(before_) != stream;
  if (!is_other_) return;
  // A stream that torch has not made has its handle as its id, and so may any other.
  guard_.exchangeStream(
      c10::Stream(c10::Stream::UNSAFE, target.device, reinterpret_cast<c10::StreamId>(stream)));
}

VendorLaunch::~VendorLaunch() {
  if (is_other_) guard_.exchangeStream(before_);
}

// As a profiler of memory is told.
class CapturedMemory::Reports final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* memory, int64_t bytes, size_t, size_t, c10::Device) override {
    if (bytes > 0) {
      size_t& known = given[static_cast<char*>(memory)];
      known = std::max(known, static_cast<size_t>(bytes));
      lent.insert_or_assign(static_cast<char*>(memory), true);
    } else {
      lent.insert_or_assign(static_cast<char*>(memory), false);
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::map<char*, size_t> given;  // bytes
  std::map<char*, bool> lent;     // whether it has not been given back
};

CapturedMemory::CapturedMemory(c10::Allocator* allocator)
    : allocator_(allocator),
      reports_(std::make_shared<Reports>()),
      guard_(c10::DebugInfoKind::PROFILER_STATE, reports_) {}

std::shared_ptr<void> CapturedMemory::keep(at::ArrayRef<c10::IValue> results) {
  struct Kept {
    std::vector<c10::IValue> results;
    std::vector<c10::DataPtr> memory;
  };
  auto kept = std::make_shared<Kept>();
  kept->results.assign(results.begin(), results.end());
  std::vector<std::pair<char*, size_t>> returned;
  for (const auto& [memory, bytes] : reports_->given) {
    if (!reports_->lent[memory]) returned.emplace_back(memory, bytes);
  }
  std::map<char*, size_t> taken;
  for (const auto& [memory, bytes] : returned) {
    c10::DataPtr again = allocator_->allocate(bytes);
    taken.emplace(static_cast<char*>(again.get()), bytes);
    kept->memory.push_back(std::move(again));
  }
  // What lies side by side may have come back as one.
  for (const auto& [memory, bytes] : returned) {
    char* at = memory;
    while (at < memory + bytes) {
      auto its = taken.upper_bound(at);
      TORCH_CHECK(its != taken.begin() && (--its, its->first + its->second > at),
                  "memory of a captured kernel is somebody else's");
      at = its->first + its->second;
    }
  }
  return kept;
}

}  // namespace hologram::aten

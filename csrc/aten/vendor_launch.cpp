#include "aten/precompiled.h"

#include "aten/vendor_launch.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

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

namespace {

struct Range {
  char* memory;
  size_t bytes;
};

// The allocator gives what fits best, which is not always what was given back to it last: what else
// it has is asked for, too, until that is among it. Somebody else may have that, and then the
// allocator would ask the driver for ever more.
constexpr size_t kMostRequests = 256, kMostElsewhere = size_t{64} << 20;

// Of a range what lies in nothing that has been taken: its first part.
std::optional<Range> first_missing(const Range& range, const std::map<char*, size_t>& taken) {
  char *at = range.memory, *const end = range.memory + range.bytes;
  while (at < end) {
    const auto next = taken.upper_bound(at),
               before = next == taken.begin() ? next : std::prev(next);
    if (before == next || before->first + before->second <= at) {
      char* const until = next == taken.end() ? end : std::min(end, next->first);
      return Range{at, static_cast<size_t>(until - at)};
    }
    at = before->first + before->second;
  }
  return std::nullopt;
}

}  // namespace

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
  std::vector<Range> returned;
  for (const auto& [memory, bytes] : reports_->given) {
    if (!reports_->lent[memory]) returned.push_back({memory, bytes});
  }
  // What is small may be given out of where something large was.
  std::ranges::stable_sort(returned, std::greater{}, &Range::bytes);
  std::map<char*, size_t> taken;
  size_t requests = 0, bytes_left = kMostElsewhere;
  for (const Range& range : returned) bytes_left += range.bytes;
  for (const Range& range : returned) {
    while (const auto missing = first_missing(range, taken)) {
      TORCH_CHECK(requests++ < kMostRequests && missing->bytes <= bytes_left,
                  "memory of a captured kernel is somebody else's");
      bytes_left -= missing->bytes;
      c10::DataPtr memory = allocator_->allocate(missing->bytes);
      taken.emplace(static_cast<char*>(memory.get()), missing->bytes);
      kept->memory.push_back(std::move(memory));
    }
  }
  std::erase_if(kept->memory, [&](const c10::DataPtr& memory) {
    const char* const at = static_cast<char*>(memory.get());
    const size_t bytes = taken.at(static_cast<char*>(memory.get()));
    return std::ranges::none_of(returned, [&](const Range& range) {
      return at < range.memory + range.bytes && range.memory < at + bytes;
    });
  });
  return kept;
}

}  // namespace hologram::aten

#include "atlas/error.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace hologram {
namespace {

void raise_error(DeviceFault&& fault) {
  throw DeviceError(fault.what);
}
void (*raise_hook)(DeviceFault&&) = &raise_error;

}  // namespace

void raise(DeviceFault fault) {
  raise_hook(std::move(fault));
  std::abort();
}

void set_raise(void (*raise)(DeviceFault&&)) noexcept {
  raise_hook = raise;
}

std::string readable_bytes(size_t bytes) {
  static constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  int unit = 0;
  double value = static_cast<double>(bytes);
  for (; value >= 1024.0; value /= 1024.0) ++unit;
  char text[64];
  if (unit == 0) {
    std::snprintf(text, sizeof text, "%zu bytes", bytes);
  } else {
    std::snprintf(text, sizeof text, "%.2f %s (%zu bytes)", value, kUnits[unit], bytes);
  }
  return text;
}

OutOfMemory::OutOfMemory(size_t requested, size_t allocated, size_t reserved, size_t limit)
    : Error("hologram out of memory. Tried to allocate " + readable_bytes(requested) + ". " +
            readable_bytes(allocated) + " allocated, " + readable_bytes(reserved) +
            " reserved, limit " + readable_bytes(limit) + ". " +
            (allocated <= limit && requested <= limit - allocated
                 ? "The limit leaves room, but not in one piece (a segment stays while a block of "
                   "it is in use, and small blocks need one of 1 MiB), or the system has no more. "
                 : "") +
            "Free some tensors, or raise the limit with HOLOGRAM_MEMORY_LIMIT or "
            "torch.hologram.set_per_process_memory_fraction()."),
      requested(requested),
      allocated(allocated),
      reserved(reserved),
      limit(limit) {}

}  // namespace hologram

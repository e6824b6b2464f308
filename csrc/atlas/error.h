// Exceptions thrown by the torch-free core. csrc/aten translates them at the torch boundary.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

#include "atlas/export.h"

namespace hologram {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A device index that does not name an available device.
struct InvalidDevice : Error {
  using Error::Error;
};

// A request that does not fit, even after the cache has been given back. All sizes in bytes.
struct OutOfMemory : Error {
  HOLOGRAM_EXPORT OutOfMemory(size_t requested, size_t allocated, size_t reserved, size_t limit);

  size_t requested;  // size of the request that failed
  size_t allocated;  // held by the user (foreign memory included) when it failed
  size_t reserved;   // held from the system (foreign memory included) when it failed
  size_t limit;      // most the device may reserve
};

// What the runtime of a device says of a call, or of what ran before it.
struct DeviceFault {
  std::string what;
  int status = 0;     // the runtime's
  bool lost = false;  // the device cannot be used any more by this process
};

// What all exceptions about a DeviceFault are, beside a std::exception: which one is thrown is not
// the core's affair.
struct AboutDevice {
  virtual ~AboutDevice() = default;
};
struct DeviceError : Error, AboutDevice {
  using Error::Error;
};
// Throws what such a fault is reported as, a DeviceError where nobody has said otherwise.
[[noreturn]] void raise(DeviceFault fault);
// Once, before a device is asked for. `raise` throws an AboutDevice.
void set_raise(void (*raise)(DeviceFault&& fault)) noexcept;

// "20.00 MiB (20971520 bytes)"
std::string readable_bytes(size_t bytes);

}  // namespace hologram

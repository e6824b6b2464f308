// The settings of the core, read from the environment once.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atlas/backends.h"

namespace hologram {

// One device: number `ordinal` of the `count` devices its backend provides.
struct DeviceSlot {
  std::string backend;
  int ordinal;
  int count;
};

struct Config {
  std::vector<DeviceSlot> devices;  // in index order
  size_t memory_limit = 0;          // bytes per device, 0: the device's total memory
  bool eager = false;               // execute every operation at its call
  bool poison_freed = false;        // overwrite memory that is given back
  std::string error;                // what is wrong with the environment, empty when nothing is
  std::string warning;              // what is not as asked for, though there are devices
  std::string absent;               // of the default backends, those without devices, and why
};

// `cpu_devices`, `memory_limit`, `eager`: the variables' values, empty for the default. `backends`:
// likewise, but only nullopt is the default, which is every backend of this build that has devices
// here (`absent` says why others have none); a variable that is set and empty asks for no device at
// all. A wrong value is described in `error` and replaced by its default. A backend without devices
// is skipped, and why is described in `warning` if another backend is left, in `error` otherwise.
// `count_devices` is asked for the devices of backends other than "cpu", see
// library_device_count().
using CountDevices = int (*)(std::string_view backend);
Config parse_config(std::optional<std::string_view> backends, std::string_view cpu_devices,
                    std::string_view memory_limit, std::string_view eager = {},
                    CountDevices count_devices = &library_device_count);

// From the variables HOLOGRAM_BACKENDS, _CPU_DEVICES, _MEMORY_LIMIT, _EAGER and _POISON_FREED at
// the first call; with what the backends say of their own.
const Config& config();

// What is wrong with the variables that only the CPU backend reads, which answers this; empty when
// nothing is.
std::string cpu_backend_error();

}  // namespace hologram

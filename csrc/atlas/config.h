// The settings of the core, read from the environment once.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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
  std::string error;                // what is wrong with the environment, empty when nothing is
};

// `cpu_devices`, `memory_limit`: the variables' values, empty for the default. `backends`:
// likewise, but only nullopt is the default; a variable that is set and empty asks for no device at
// all. A wrong value is described in `error` and replaced by its default, names of unknown backends
// are skipped.
Config parse_config(std::optional<std::string_view> backends, std::string_view cpu_devices,
                    std::string_view memory_limit);

// From HOLOGRAM_BACKENDS, HOLOGRAM_CPU_DEVICES and HOLOGRAM_MEMORY_LIMIT at the first call.
const Config& config();

}  // namespace hologram

// What torch.hologram.explain() shows: the programs that are flushed while it listens.
#pragma once

#include <c10/core/Device.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

namespace hologram::aten {

// Flushes a device and keeps what is flushed from now on. Each instruction is kept with the line of
// Python it comes from: the innermost one of no file below `skipped`.
void start_capture(c10::DeviceIndex device, std::vector<std::string> skipped);

// Flushes the device once more, for the reason "end". What was flushed since the start, as a list
// of dictionaries: reason, origin, recorded and origins (lists of str), and passes, dictionaries of
// space, tensors, loaded, stored and code.
pybind11::list end_capture(c10::DeviceIndex device);

}  // namespace hologram::aten

// The current stream of a device whose queues are streams of a vendor that torch has, too: the
// current stream of torch's device is the current stream of ours, both ways, and there is no other.
// The current device goes one way: with ours torch's changes, too.
//
// What is recorded while a stream of torch's is current goes to it, and so do kernels of other
// libraries, which ask torch for the current stream: they run in the order of the program without
// being told of each other. Setting the current stream of our device sets that of torch's.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <optional>

#include "atlas/stream.h"

namespace hologram::aten {

// From now on, for each device when it is first used. Called once, before any is.
void follow_vendor_streams();

// The vendor's handle of a stream, a cudaStream_t, 0 for the default one. Throws c10::Error where
// the device's streams are nobody else's.
void* vendor_handle(int device, StreamId stream);

// What is current in a thread: a device of ours, and one of the vendor's if it was to change, too.
struct CurrentDevices {
  c10::DeviceIndex ours = 0;
  std::optional<c10::Device> vendors;
};

// Makes a device current, and the vendor's that it is, on which other libraries launch: they ask
// torch for its current device as they do for its current stream. Returns what was current.
CurrentDevices exchange_current_devices(c10::DeviceIndex device);
void set_current_devices(const CurrentDevices& devices);

// The device whose queues are the streams of a device: itself, or ours where it is the vendor's.
// None where there is no such device of ours.
std::optional<c10::DeviceIndex> device_of_streams(c10::Device device);

// Makes a stream of such a device current there, and its device as above. Throws c10::Error, and
// changes nothing, for a stream of any other device and for one that the device does not have.
CurrentDevices exchange_stream(const c10::Stream& stream);

}  // namespace hologram::aten

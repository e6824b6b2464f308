// What the files of csrc/aten share about the device: validation, errors, the allocator.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "atlas/memory.h"

namespace hologram::aten {

constexpr auto kHologram = c10::DeviceType::PrivateUse1;

// The memory pool of a device; no check of the index (storages hold valid ones), never throws for
// an index that exists.
MemoryPool& device_memory(c10::DeviceIndex device);

// Gives back to the system what the devices hold without use.
void empty_caches();

// The allocator registered for the device type.
c10::Allocator* device_allocator();

// Marks the device as in use: throws in a forked child, c10::Error (RuntimeError) naming the count
// for an index that does not exist, or the reason where there is no device at all. Index -1 or none
// means the current device.
c10::DeviceIndex check_device(c10::DeviceIndex index);
c10::DeviceIndex check_device(std::optional<c10::Device> device);

// Throws c10::Error for a stream that is of no device, or that its device has not made.
void check_stream(const c10::Stream& stream);

c10::DeviceIndex current_device();

}  // namespace hologram::aten

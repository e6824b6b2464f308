// The current stream of a device whose queues are streams of a vendor that torch has, too: the
// current stream of torch's device is the current stream of ours, both ways, and there is no other.
//
// What is recorded while a stream of torch's is current goes to it, and so do kernels of other
// libraries, which ask torch for the current stream: they run in the order of the program without
// being told of each other. Setting the current stream of our device sets that of torch's.
#pragma once

#include "atlas/stream.h"

namespace hologram::aten {

// From now on, for each device when it is first used. Called once, before any is.
void follow_vendor_streams();

// The vendor's handle of a stream, a cudaStream_t, 0 for the default one. Throws c10::Error where
// the device's streams are nobody else's.
void* vendor_handle(int device, StreamId stream);

}  // namespace hologram::aten

// What the driver of this folder does for other libraries without a GPU, as for cublas_lt/.
#pragma once

#include "cuda/driver.h"

extern "C" {

// Does task(data) in the order of a stream, in any case, and forget(data) when it is not done any
// more: where the stream is captured it may be done never or often.
hologram::cuda::Status simulated_cuda_push(hologram::cuda::Stream stream, void (*task)(const void*),
                                           const void* data, void (*forget)(const void*));
// Whether the current context's device has such memory.
bool simulated_cuda_holds(const void* start, size_t bytes);
// Where the host finds it.
void* simulated_cuda_bytes(const void* address);
}

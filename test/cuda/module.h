// Modules of the driver: what others have compiled to machine code is text here, which the emulator
// of test/gpu compiles for the CPU when a kernel of it is first asked for.
#pragma once

#include <memory>
#include <string>

#include "cuda/driver.h"
#include "device.h"

namespace simulated_cuda {

struct LaunchShape {
  unsigned blocks[3];
  unsigned threads[3];
};

hologram::cuda::Status load_module(Device& device, const char* image,
                                   hologram::cuda::Module* module);
hologram::cuda::Status module_function(Device& device, hologram::cuda::Module module,
                                       const char* name, hologram::cuda::Function* function);

// A launch with its parameters.
struct Launch;
using LaunchPointer = std::shared_ptr<const Launch>;
// Parameters are read at once.
hologram::cuda::Status make_launch(Device& device, hologram::cuda::Function function,
                                   const LaunchShape& shape, void** parameters,
                                   LaunchPointer& launch);
// Memory is read and written in the stream's order.
hologram::cuda::Status push_launch(Device& device, const LaunchPointer& launch, Stream& stream);

}  // namespace simulated_cuda

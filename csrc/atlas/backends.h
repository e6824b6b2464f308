// Backends by name: those of this build, and libraries in the folders of HOLOGRAM_BACKEND_PATH
// (separated by colons), where the backend "name" is libhologram_name.so (macOS: .dylib).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "atlas/backend.h"

namespace hologram {

struct BackendLibrary;  // atlas/backend_library.h

// Names of the backends of this build. Tests of the core may have the CPU alone.
#if defined(HOLOGRAM_WITHOUT_GPUS)
inline constexpr std::string_view kBackendsOfBuild = "cpu";
#elif defined(__APPLE__)
inline constexpr std::string_view kBackendsOfBuild = "metal, cpu";
#else
inline constexpr std::string_view kBackendsOfBuild = "cuda, cpu";
#endif

// How many devices a backend other than the CPU has: at least 1. Throws Error with the reason why
// there is none: no such library, one of another interface, one that does not load, no device.
// Loads the library at the first call.
int library_device_count(std::string_view name);

// Device `ordinal` of the `count` devices that a backend provides. Throws Error.
std::unique_ptr<Backend> make_backend(const std::string& name, int ordinal, int count);

// Backends of this build: NVIDIA's GPUs, but on macOS, where there are Apple's instead.
const BackendLibrary& cuda_library();
const BackendLibrary& metal_library();

// The CPU as `count` equal devices: device `ordinal` of them gets 1/count of the cores and memory.
std::unique_ptr<Backend> make_cpu_backend(int ordinal, int count);

}  // namespace hologram

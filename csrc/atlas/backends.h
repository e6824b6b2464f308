// Backends by name: those of this build, and libraries in the folders of HOLOGRAM_BACKEND_PATH
// (separated by colons), where the backend "name" is libhologram_name.so (macOS: .dylib).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "atlas/backend.h"

namespace hologram {

// There is no driver of NVIDIA's for macOS, so csrc/cuda is no part of a build there. Tests leave
// it out elsewhere, too.
#if defined(__APPLE__) && !defined(HOLOGRAM_WITHOUT_CUDA)
#define HOLOGRAM_WITHOUT_CUDA
#endif

struct BackendLibrary;  // atlas/backend_library.h

// Names of the backends of this build.
#if defined(HOLOGRAM_WITHOUT_CUDA)
inline constexpr std::string_view kBackendsOfBuild = "cpu";
#else
inline constexpr std::string_view kBackendsOfBuild = "cuda, cpu";
#endif

// How many devices a backend other than the CPU has: at least 1. Throws Error with the reason why
// there is none: no such library, one of another interface, one that does not load, no device.
// Loads the library at the first call.
int library_device_count(std::string_view name);

// Device `ordinal` of the `count` devices that a backend provides. Throws Error.
std::unique_ptr<Backend> make_backend(const std::string& name, int ordinal, int count);

// NVIDIA's GPUs, a backend of this build; throws Error where it is none.
const BackendLibrary& cuda_library();

// The CPU as `count` equal devices: device `ordinal` of them gets 1/count of the cores and memory.
std::unique_ptr<Backend> make_cpu_backend(int ordinal, int count);

}  // namespace hologram

// A backend outside the package: a shared library that implements atlas/backend.h.
//
// The library is found by name (atlas/backends.h) and has one symbol, the function below. It is
// compiled against these headers, by a compiler whose C++ objects are laid out alike, and linked
// against the package's extension module for the functions marked HOLOGRAM_EXPORT.
#pragma once

#include <version>

#include "atlas/backend.h"

#define HOLOGRAM_TEXT_OF(x) #x
#define HOLOGRAM_TEXT(x) HOLOGRAM_TEXT_OF(x)

namespace hologram {

// Raised with every change of a class that a library sees.
#define HOLOGRAM_BACKEND_INTERFACE 17

// What a library and the package have to agree on.
inline constexpr char kBackendInterface[] =
    "hologram backend interface " HOLOGRAM_TEXT(HOLOGRAM_BACKEND_INTERFACE)
#if defined(__GXX_ABI_VERSION)
        ", C++ ABI " HOLOGRAM_TEXT(__GXX_ABI_VERSION)
#endif
#if defined(_GLIBCXX_RELEASE)
            ", libstdc++ with strings " HOLOGRAM_TEXT(_GLIBCXX_USE_CXX11_ABI)
#elif defined(_LIBCPP_VERSION)
        ", libc++"
#endif
    ;

struct BackendLibrary {
  const char* interface = kBackendInterface;  // first, so that it can always be read
  // How many devices there are; at most kMaxDevices of all backends are used. Throws Error where
  // the hardware or its driver is missing.
  int (*device_count)();
  // Device `ordinal` of them. Throws Error.
  Backend* (*make)(int ordinal);
};

}  // namespace hologram

// Defined by the library. What it points to lives as long as the process.
extern "C" HOLOGRAM_EXPORT const hologram::BackendLibrary* hologram_backend();

// Statuses of the driver that cuda/driver.h does not name, and the texts of all.
#pragma once

#include "cuda/driver.h"

namespace hologram::cuda {

inline constexpr Status kInvalidValue = 1;
inline constexpr Status kNotInitialized = 3;
inline constexpr Status kInvalidImage = 200;
inline constexpr Status kInvalidContext = 201;
inline constexpr Status kInvalidHandle = 400;
inline constexpr Status kIllegalAddress = 700;
inline constexpr Status kOutOfResources = 701;
inline constexpr Status kLaunchFailed = 719;
inline constexpr Status kDriverMismatch = 803;
inline constexpr Status kCaptureInvalidated = 901;
inline constexpr Status kUpdateRefused = 910;

struct StatusText {
  Status status;
  const char* name;
  const char* text;
};
// NVIDIA's words. Null for a status that is none of these.
const StatusText* text_of(Status status);

}  // namespace hologram::cuda

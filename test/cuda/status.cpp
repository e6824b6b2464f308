#include "status.h"

#include <algorithm>
#include <array>

namespace hologram::cuda {

const StatusText* text_of(Status status) {
  static constexpr std::array<StatusText, 17> kTexts{{
      {kSuccess, "CUDA_SUCCESS", "no error"},
      {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
      {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
      {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
      {kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
      {kInvalidImage, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
      {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
      {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
      {kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
      {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
      {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
      {kOutOfResources, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
       "too many resources requested for launch"},
      {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
      {kCannotBeCaptured, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
       "operation not permitted when stream is capturing"},
      {kCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
       "operation failed due to a previous error during capture"},
      {kUpdateRefused, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
       "the graph update was not performed because it included changes which violated constraints "
       "specific to instantiated graph update"},
      {kDriverMismatch, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
       "system has unsupported display driver / cuda driver combination"},
  }};
  const auto found = std::ranges::find(kTexts, status, &StatusText::status);
  return found != kTexts.end() ? &*found : nullptr;
}

}  // namespace hologram::cuda

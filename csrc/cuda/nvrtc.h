// NVRTC, NVIDIA's compiler for programs that run: opened when something is first to be compiled.
//
// Types and values of functions are those of nvrtc.h, whose interface is the same in every version
// of CUDA 12 and 13.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/vendor_library.h"

namespace hologram::cuda::nvrtc {

using Result = int;                     // nvrtcResult
using Program = struct _nvrtcProgram*;  // nvrtcProgram
inline constexpr Result kOk = 0;

// name in the library, result, name here, arguments
#define HOLOGRAM_NVRTC_FUNCTIONS(_)                                              \
  _(nvrtcVersion, Result, version, (int* major, int* minor))                     \
  _(nvrtcGetErrorString, const char*, error_string, (Result result))             \
  _(nvrtcCreateProgram, Result, create,                                          \
    (Program * program, const char* text, const char* name, int headers,         \
     const char* const* header_texts, const char* const* header_names))          \
  _(nvrtcDestroyProgram, Result, destroy, (Program * program))                   \
  _(nvrtcCompileProgram, Result, compile,                                        \
    (Program program, int options, const char* const* texts))                    \
  _(nvrtcGetCUBINSize, Result, code_size, (Program program, size_t * bytes))     \
  _(nvrtcGetCUBIN, Result, code, (Program program, char* code))                  \
  _(nvrtcGetProgramLogSize, Result, log_size, (Program program, size_t * bytes)) \
  _(nvrtcGetProgramLog, Result, log, (Program program, char* log))

struct Library {
  HOLOGRAM_NVRTC_FUNCTIONS(HOLOGRAM_VENDOR_MEMBER)
};

// Throws Error with the reason why there is none, each time.
const Library& library();

// "13.0"; throws Error likewise.
std::string version_text();

// Machine code of kernels for a compute capability; `dialect` is the text of hologram_gpu.h. As
// tools/compile_kernels.py compiles: no two operations become one. Throws Error with what the
// compiler says. Thread-safe.
std::string compile(const std::string& text, const std::string& dialect, int major, int minor);

}  // namespace hologram::cuda::nvrtc

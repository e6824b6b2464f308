// NVRTC without a GPU: what it makes of a text is the text, which the driver of test/cuda compiles
// for the CPU. HOLOGRAM_TEST_NVRTC_REFUSES: what a text must not have. HOLOGRAM_TEST_NVRTC_MS: how
// long a text takes.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "cuda/nvrtc.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace hologram::cuda::nvrtc {

struct _nvrtcProgram {
  std::string text, log;
};

#define HOLOGRAM_DECLARE(symbol, result, name, arguments) EXPORTED result symbol arguments;
HOLOGRAM_NVRTC_FUNCTIONS(HOLOGRAM_DECLARE)

constexpr Result kInvalid = 3, kDoesNotCompile = 6;

// Objects of the library's, which nothing may use once the process has ended them.
std::atomic<bool> is_over{false};
struct Objects {
  ~Objects() { is_over = true; }
} objects;

void take_time() {
  if (const char* const given = std::getenv("HOLOGRAM_TEST_NVRTC_MS"); given != nullptr) {
    std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(given)));
  }
  if (!is_over) return;
  std::fputs("NVRTC compiles after its end\n", stderr);
  std::abort();
}

Result nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return kOk;
}

const char* nvrtcGetErrorString(Result result) {
  return result == kOk               ? "NVRTC_SUCCESS"
         : result == kDoesNotCompile ? "NVRTC_ERROR_COMPILATION"
                                     : "NVRTC_ERROR_INVALID_INPUT";
}

Result nvrtcCreateProgram(Program* program, const char* text, const char*, int headers,
                          const char* const* header_texts, const char* const* header_names) {
  // The driver has the dialect of its own, which is to be this one.
  if (headers != 1 || std::strcmp(header_names[0], "hologram_gpu.h") != 0 ||
      std::strstr(header_texts[0], "#define HG_KERNEL") == nullptr) {
    return kInvalid;
  }
  *program = new _nvrtcProgram{text, {}};
  return kOk;
}

Result nvrtcDestroyProgram(Program* program) {
  delete *program;
  return kOk;
}

Result nvrtcCompileProgram(Program program, int options, const char* const* texts) {
  bool is_strict = false, is_for_one = false;
  for (int i = 0; i < options; ++i) {
    is_strict = is_strict || std::strcmp(texts[i], "--fmad=false") == 0;
    is_for_one = is_for_one || std::strcmp(texts[i], "--gpu-architecture=sm_90") == 0;
  }
  if (!is_strict || !is_for_one) return kInvalid;
  take_time();
  const char* const refused = std::getenv("HOLOGRAM_TEST_NVRTC_REFUSES");
  if (refused == nullptr || program->text.find(refused) == std::string::npos) return kOk;
  program->log = "hologram.cu(1): error: " + std::string(refused) + " is refused\n";
  return kDoesNotCompile;
}

Result nvrtcGetCUBINSize(Program program, size_t* bytes) {
  *bytes = program->text.size();
  return kOk;
}

Result nvrtcGetCUBIN(Program program, char* code) {
  std::memcpy(code, program->text.data(), program->text.size());
  return kOk;
}

Result nvrtcGetProgramLogSize(Program program, size_t* bytes) {
  *bytes = program->log.size() + 1;
  return kOk;
}

Result nvrtcGetProgramLog(Program program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return kOk;
}

}  // namespace hologram::cuda::nvrtc

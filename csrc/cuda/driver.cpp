#include "cuda/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>

#include "atlas/error.h"

namespace hologram::cuda {
namespace {

// The oldest driver that has every function above is that of CUDA 11.3.
constexpr int kOldestVersion = 11030;

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

struct Opened {
  Driver functions{};
  std::string error;  // why there are none
  pid_t process = ::getpid();
};

template <class F>
bool find(void* library, const char* symbol, F& function, std::string& error) {
  function = reinterpret_cast<F>(::dlsym(library, symbol));
  if (function == nullptr && error.empty()) {
    error = "whose driver has no function " + std::string(symbol) + ": a newer one is needed";
  }
  return function != nullptr;
}

Opened open() {
  Opened result;
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    result.error = "whose driver is not installed: " + std::string(::dlerror());
    return result;
  }
  Driver& functions = result.functions;
  const bool complete = true
#define HOLOGRAM_CUDA_FIND(symbol, name, arguments) \
  &find(library, #symbol, functions.name, result.error)
      HOLOGRAM_CUDA_FUNCTIONS(HOLOGRAM_CUDA_FIND);
#undef HOLOGRAM_CUDA_FIND
  if (!complete) return result;
  const Status status = functions.init(0);
  if (status == kNoDevice) {
    result.error = "which has no device on this machine";
  } else if (status != kSuccess) {
    const char* text = nullptr;
    functions.error_string(status, &text);
    result.error =
        "whose driver cannot be used: " + std::string(text != nullptr ? text : "unknown error") +
        " (status " + std::to_string(status) + ")";
  }
  int version = 0;
  if (result.error.empty() && functions.driver_version(&version) == kSuccess &&
      version < kOldestVersion) {
    result.error = "whose driver is for CUDA " + version_text(version) + "; " +
                   version_text(kOldestVersion) + " or newer is needed";
  }
  return result;
}

const Opened& opened() {
  static const Opened& its = *new Opened(open());
  return its;
}

}  // namespace

const Driver& driver() {
  const Opened& its = opened();
  if (!its.error.empty()) [[unlikely]]
    throw Error(its.error);
  return its.functions;
}

void check_process() {
  if (opened().process == ::getpid()) return;
  throw Error(
      "Cannot use CUDA in a child of a process that has asked for its devices. Ask there later, or "
      "start children with the 'spawn' method");
}

std::string describe(Status status) {
  const char *name = nullptr, *text = nullptr;
  driver().error_name(status, &name);
  driver().error_string(status, &text);
  if (name == nullptr || text == nullptr) return "unknown status " + std::to_string(status);
  return std::string(text) + " (" + name + ")";
}

bool loses_context(Status status) noexcept {
  constexpr Status kContextIsDestroyed = 709, kAssert = 710, kLaunchTimeout = 702;
  constexpr Status kIllegalAddress = 700, kHardwareStackError = 714, kLaunchFailed = 719;
  return status == kIllegalAddress || status == kLaunchTimeout || status == kContextIsDestroyed ||
         status == kAssert || (status >= kHardwareStackError && status <= kLaunchFailed);
}

void fail(Status status, const char* what) {
  raise({std::string(what) + " failed: " + describe(status), status, loses_context(status)});
}

}  // namespace hologram::cuda

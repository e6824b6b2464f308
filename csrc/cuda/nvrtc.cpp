#include "cuda/nvrtc.h"

#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <string_view>

#include "atlas/error.h"

namespace hologram::cuda::nvrtc {
namespace {

constexpr const char* kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
constexpr const char* kFolders[] = {"/nvidia/cu13/lib/", "/nvidia/cuda_nvrtc/lib/"};
constexpr VendorLibrary kFile{"HOLOGRAM_NVRTC", kNames, kFolders};

// It looks for its second library where the system has libraries, and takes one that is loaded.
void open_builtins(const void* function) {
  Dl_info info{};
  if (::dladdr(function, &info) == 0) return;
  std::error_code ignored;
  const auto folder = std::filesystem::path(info.dli_fname).parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("libnvrtc-builtins.so.")) ::dlopen(entry.path().c_str(), RTLD_NOW);
  }
}

VendorFunctions<Library> open() {
  auto result =
      open_functions<Library>(kFile, [](void* library, Library& functions, std::string& error) {
        HOLOGRAM_NVRTC_FUNCTIONS(HOLOGRAM_VENDOR_FIND)
      });
  if (result.error.empty()) {
    open_builtins(reinterpret_cast<const void*>(result.functions.version));
  }
  return result;
}

const VendorFunctions<Library>& opened() {
  static const auto& its = *new VendorFunctions<Library>(open());
  return its;
}

void check(Result result, const char* what) {
  if (result != kOk) throw Error(std::string(what) + ": " + library().error_string(result));
}

// A program, for as long as it is compiled.
class Compilation {
 public:
  Compilation(const std::string& text, const std::string& dialect) {
    const char* const header = dialect.c_str();
    const char* const name = "hologram_gpu.h";
    check(library().create(&program_, text.c_str(), "hologram.cu", 1, &header, &name),
          "nvrtcCreateProgram");
  }
  ~Compilation() { library().destroy(&program_); }
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;

  Program program() const { return program_; }
  std::string log() const {
    size_t bytes = 0;
    if (library().log_size(program_, &bytes) != kOk || bytes == 0) return {};
    std::string log(bytes, '\0');
    if (library().log(program_, log.data()) != kOk) return {};
    log.resize(log.find_last_not_of(std::string_view("\0\n ", 3)) + 1);
    return log;
  }

 private:
  Program program_ = nullptr;
};

}  // namespace

const Library& library() {
  if (!opened().error.empty()) throw Error(opened().error);
  return opened().functions;
}

std::string version_text() {
  int major = 0, minor = 0;
  check(library().version(&major, &minor), "nvrtcVersion");
  return std::to_string(major) + "." + std::to_string(minor);
}

std::string compile(const std::string& text, const std::string& dialect, int major, int minor) {
  const Compilation its(text, dialect);
  const std::string architecture =
      "--gpu-architecture=sm_" + std::to_string(major) + std::to_string(minor);
  const std::array options = {"--fmad=false", "-std=c++17", architecture.c_str()};
  const Result result =
      library().compile(its.program(), static_cast<int>(options.size()), options.data());
  if (result != kOk) {
    throw Error(std::string(library().error_string(result)) + "\n" + its.log());
  }
  size_t bytes = 0;
  check(library().code_size(its.program(), &bytes), "nvrtcGetCUBINSize");
  std::string code(bytes, '\0');
  check(library().code(its.program(), code.data()), "nvrtcGetCUBIN");
  return code;
}

}  // namespace hologram::cuda::nvrtc

#include "cuda/cublas_lt.h"

#include "atlas/error.h"

namespace hologram::cuda::lt {
namespace {

constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
constexpr const char* kFolders[] = {"/nvidia/cu13/lib/", "/nvidia/cublas/lib/"};
constexpr VendorLibrary kFile{"HOLOGRAM_CUBLAS_LT", kNames, kFolders};
constexpr size_t kOldestVersion = 120000;

std::string text_of(size_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

VendorFunctions<Library> open() {
  auto result =
      open_functions<Library>(kFile, [](void* library, Library& functions, std::string& error) {
        HOLOGRAM_CUBLAS_LT_FUNCTIONS(HOLOGRAM_VENDOR_FIND)
      });
  if (!result.error.empty()) return result;
  const size_t version = result.functions.version();
  if (version < kOldestVersion) {
    result.error = "it is of version " + text_of(version) + "; " + text_of(kOldestVersion) +
                   " or newer is needed";
  }
  return result;
}

const VendorFunctions<Library>& opened() {
  static const auto& its = *new VendorFunctions<Library>(open());
  return its;
}

}  // namespace

const Library& library() {
  if (!opened().error.empty()) throw Error(opened().error);
  return opened().functions;
}

std::string version_text() {
  return text_of(library().version());
}

void check(Result result, const char* what) {
  if (result == kOk) return;
  const char* const text = library().status_string(result);
  throw Error(std::string(what) +
              " failed: " + (text != nullptr ? text : "status " + std::to_string(result)));
}

}  // namespace hologram::cuda::lt

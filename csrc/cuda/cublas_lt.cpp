#include "cuda/cublas_lt.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <set>
#include <string_view>

#include "atlas/error.h"

namespace hologram::cuda::lt {
namespace {

// Newest first.
constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
// Where pip puts them, in the folder that torch's is in.
constexpr const char* kFolders[] = {"/nvidia/cu13/lib/", "/nvidia/cublas/lib/"};
constexpr size_t kOldestVersion = 120000;

// Folders with a torch whose libraries this process has loaded.
std::set<std::string> folders_with_torch() {
  std::set<std::string> found;
  const auto look = [](dl_phdr_info* info, size_t, void* into) {
    const std::string_view path = info->dlpi_name;
    const size_t at = path.rfind("/torch/lib/");
    if (at != std::string_view::npos) {
      static_cast<std::set<std::string>*>(into)->emplace(path.substr(0, at));
    }
    return 0;
  };
  ::dl_iterate_phdr(look, &found);
  return found;
}

void* open_file(const std::string& path, int more = 0) {
  return ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | more);
}

// Null with `error` where there is none. What torch uses is loaded already.
void* find_library(std::string& error) {
  const char* const given = std::getenv("HOLOGRAM_CUBLAS_LT");
  if (given != nullptr && *given != '\0') {
    void* const library = open_file(given);
    if (library == nullptr) error = "HOLOGRAM_CUBLAS_LT: " + std::string(::dlerror());
    return library;
  }
  for (const char* name : kNames) {
    if (void* const library = open_file(name, RTLD_NOLOAD)) return library;
  }
  for (const char* name : kNames) {
    if (void* const library = open_file(name)) return library;
  }
  for (const std::string& folder : folders_with_torch()) {
    for (const char* inside : kFolders) {
      for (const char* name : kNames) {
        if (void* const library = open_file(folder + inside + name)) return library;
      }
    }
  }
  error = std::string(kNames[0]) + " or " + kNames[1] +
          " is neither on the loader's path nor beside torch (HOLOGRAM_CUBLAS_LT names a file)";
  return nullptr;
}

struct Opened {
  Library functions{};
  std::string error;  // why there are none
};

template <class F>
bool find(void* library, const char* symbol, F& function, std::string& error) {
  function = reinterpret_cast<F>(::dlsym(library, symbol));
  if (function == nullptr && error.empty()) error = "it has no function " + std::string(symbol);
  return function != nullptr;
}

std::string text_of(size_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Opened open() {
  Opened result;
  void* const library = find_library(result.error);
  if (library == nullptr) return result;
  Library& functions = result.functions;
  const bool complete = true
#define HOLOGRAM_CUBLAS_LT_FIND(symbol, result_type, name, arguments) \
  &find(library, #symbol, functions.name, result.error)
      HOLOGRAM_CUBLAS_LT_FUNCTIONS(HOLOGRAM_CUBLAS_LT_FIND);
#undef HOLOGRAM_CUBLAS_LT_FIND
  if (!complete) return result;
  const size_t version = functions.version();
  if (version < kOldestVersion) {
    result.error = "it is of version " + text_of(version) + "; " + text_of(kOldestVersion) +
                   " or newer is needed";
  }
  return result;
}

const Opened& opened() {
  static const Opened& its = *new Opened(open());
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

#include "cuda/vendor_library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <set>
#include <string_view>

namespace hologram::cuda {
namespace {

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

}  // namespace

// What torch uses is loaded already.
void* open_library(const VendorLibrary& library, std::string& error) {
  const char* const given = std::getenv(library.variable);
  if (given != nullptr && *given != '\0') {
    void* const its = open_file(given);
    if (its == nullptr) error = std::string(library.variable) + ": " + ::dlerror();
    return its;
  }
  for (const char* name : library.names) {
    if (void* const its = open_file(name, RTLD_NOLOAD)) return its;
  }
  for (const char* name : library.names) {
    if (void* const its = open_file(name)) return its;
  }
  for (const std::string& folder : folders_with_torch()) {
    for (const char* inside : library.folders) {
      for (const char* name : library.names) {
        if (void* const its = open_file(folder + inside + name)) return its;
      }
    }
  }
  for (const char* name : library.names) {
    error += (error.empty() ? "" : " or ") + std::string(name);
  }
  error += " is neither on the loader's path nor beside torch (" + std::string(library.variable) +
           " names a file)";
  return nullptr;
}

void* find_function(void* library, const char* name, std::string& error) {
  void* const function = ::dlsym(library, name);
  if (function == nullptr && error.empty()) error = "it has no function " + std::string(name);
  return function;
}

}  // namespace hologram::cuda

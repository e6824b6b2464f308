#include "atlas/backends.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>

#include "atlas/backend_library.h"
#include "atlas/error.h"

namespace hologram {
namespace {

#if defined(__APPLE__)
constexpr std::string_view kSuffix = ".dylib";
#else
constexpr std::string_view kSuffix = ".so";
#endif

// A backend of this build; null where it has none of this name.
const BackendLibrary* own_library([[maybe_unused]] std::string_view name) {
#if defined(HOLOGRAM_WITHOUT_GPUS)
  return nullptr;
#elif defined(__APPLE__)
  return name == "metal" ? &metal_library() : nullptr;
#else
  return name == "cuda" ? &cuda_library() : nullptr;
#endif
}

// Why a backend of another system's builds is not in this one.
std::string_view why_elsewhere(std::string_view name) {
  if (name == "metal") return "it needs macOS 14 and a processor of Apple's; ";
#if defined(__APPLE__)
  if (name == "cuda") return "NVIDIA GPUs are not supported on macOS; ";
#endif
  return "";
}

// Where the package is; empty where that is not known.
std::filesystem::path package_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&package_folder), &info) == 0) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

// Metal's backend with a runtime that needs no Mac, for tests; empty where it is not asked for.
std::filesystem::path emulated_metal(std::string_view name) {
  const char* const wanted = std::getenv("HOLOGRAM_METAL_EMULATION");
  if (name != "metal" || wanted == nullptr || std::string_view(wanted) != "1") return {};
  return package_folder().parent_path() / "build" / "metal";
}

// The file of a backend; throws Error that names where it was looked for.
std::filesystem::path find_library(const std::string& name) {
  const std::string file = "libhologram_" + name + std::string(kSuffix);
  const char* const variable = std::getenv("HOLOGRAM_BACKEND_PATH");
  const std::string_view path = variable != nullptr ? variable : "";
  for (size_t at = 0; at < path.size();) {
    const size_t colon = std::min(path.find(':', at), path.size());
    const std::filesystem::path folder(path.substr(at, colon - at));
    at = colon + 1;
    std::error_code ignored;
    if (!folder.empty() && std::filesystem::exists(folder / file, ignored)) return folder / file;
  }
  if (const std::filesystem::path folder = emulated_metal(name); !folder.empty()) {
    std::error_code ignored;
    if (std::filesystem::exists(folder / file, ignored)) return folder / file;
    throw Error("whose emulation is not in " + folder.string() +
                " (make build/metal/libhologram_metal.so)");
  }
  throw Error("which this build does not have (available: " + std::string(kBackendsOfBuild) +
              "); " + std::string(why_elsewhere(name)) + file +
              " is in no folder of HOLOGRAM_BACKEND_PATH (" +
              (path.empty() ? "which is not set" : "'" + std::string(path) + "'") + ")");
}

const BackendLibrary& open_library(const std::string& name) {
  const std::string path = find_library(name).string();
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw Error("whose library does not load: " + std::string(::dlerror()));
  void* const symbol = ::dlsym(handle, "hologram_backend");
  if (symbol == nullptr) {
    throw Error("whose library " + path + " does not have the function hologram_backend()");
  }
  const BackendLibrary* const library = reinterpret_cast<decltype(&hologram_backend)>(symbol)();
  if (std::strcmp(library->interface, kBackendInterface) != 0) {
    throw Error("whose library " + path + " was built for '" + library->interface + "', not for '" +
                kBackendInterface + "'");
  }
  return *library;
}

// Of a name that was asked for; the library, or why there is none. Never unloaded.
const BackendLibrary& library_of(const std::string& name) {
  if (const BackendLibrary* const own = own_library(name)) return *own;
  struct Found {
    const BackendLibrary* library = nullptr;
    std::string error;
  };
  static auto& mutex = *new std::mutex;
  static auto& all = *new std::map<std::string, Found>;
  const std::lock_guard guard(mutex);
  const auto [it, first] = all.try_emplace(name);
  if (first) {
    try {
      it->second.library = &open_library(name);
    } catch (const std::exception& error) {
      it->second.error = error.what();
    }
  }
  if (it->second.library == nullptr) throw Error(it->second.error);
  return *it->second.library;
}

}  // namespace

int library_device_count(std::string_view name) {
  const int count = library_of(std::string(name)).device_count();
  if (count < 1) throw Error("which has no device on this machine");
  return count;
}

std::unique_ptr<Backend> make_backend(const std::string& name, int ordinal, int count) {
  if (name == "cpu") return make_cpu_backend(ordinal, count);
  return std::unique_ptr<Backend>(library_of(name).make(ordinal));
}

}  // namespace hologram

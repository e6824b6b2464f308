#include "cuda/kernels.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "atlas/error.h"
#include "cuda/toolchain.h"
#include "gpu/libraries.h"

namespace hologram::cuda {
namespace {

// 90 of "sm_90.cubin" for ("sm_", ".cubin").
std::optional<int> number_between(std::string_view name, std::string_view before,
                                  std::string_view after) {
  if (!name.starts_with(before) || !name.ends_with(after)) return std::nullopt;
  name.remove_prefix(before.size());
  name.remove_suffix(after.size());
  int number = 0;
  const auto [end, status] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (status != std::errc{} || end != name.data() + name.size()) return std::nullopt;
  return number;
}

}  // namespace

std::string kernel_folder() {
  const char* const given = std::getenv("HOLOGRAM_CUDA_KERNELS");
  if (given != nullptr && *given != '\0') return given;
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&kernel_folder), &info) == 0) return {};
  return std::filesystem::path(info.dli_fname).parent_path() / "kernels";
}

std::string kernel_file(const std::string& folder, const std::string& library, int major,
                        int minor) {
  const int capability = 10 * major + minor;
  std::pair<int, std::string> code{-1, ""}, portable{-1, ""};
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    // Machine code runs on GPUs of the same major number.
    if (const auto of = number_between(name, library + ".sm_", ".cubin");
        of && *of / 10 == major && *of <= capability) {
      code = std::max(code, {*of, entry.path()});
    }
    if (const auto of = number_between(name, library + ".compute_", ".ptx");
        of && *of <= capability) {
      portable = std::max(portable, {*of, entry.path()});
    }
  }
  return !code.second.empty() ? code.second : portable.second;
}

void check_kernels(int major, int minor) {
  const std::string folder = kernel_folder();
  for (const gpu::Library& library : gpu::libraries()) {
    if (!kernel_file(folder, library.name, major, minor).empty()) continue;
    throw Error("for which the package has no kernels: '" + std::string(library.name) +
                "' for compute capability " + std::to_string(major) + "." + std::to_string(minor) +
                " is not in " + folder + " (a build with HOLOGRAM_BUILD_CUDA=1 makes them)");
  }
}

std::vector<std::string> kernel_libraries(const std::string& folder) {
  std::set<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string extension = entry.path().extension();
    if (extension != ".cubin" && extension != ".ptx") continue;
    names.insert(entry.path().stem().stem());  // NAME of NAME.sm_90.cubin
  }
  return {names.begin(), names.end()};
}

namespace {

// The dialect as one text, which the folder has beside the kernels; empty where it has none.
std::string dialect() {
  std::ifstream file(std::filesystem::path(kernel_folder()) / "hologram_gpu.h");
  return {std::istreambuf_iterator<char>(file), {}};
}

// None where nothing is to be compiled.
std::unique_ptr<gpu::Toolchain> make_toolchain(const Gpu& gpu) {
  if (!gpu::Compiler::is_wanted()) return nullptr;
  std::string text = dialect();
  return text.empty() ? nullptr : std::make_unique<Toolchain>(gpu, std::move(text));
}

}  // namespace

Kernels::Kernels(const Gpu& gpu)
    : constants_(gpu), compiler_(make_toolchain(gpu), [this](const gpu::Functions& functions) {
        const std::lock_guard guard(mutex_);
        for (const auto& [name, function] : functions)
          found_[name] = static_cast<Function>(function);
        compiled_.fetch_add(1, std::memory_order_release);
      }) {
  check_kernels(gpu.major, gpu.minor);
  const std::string folder = kernel_folder();
  for (const std::string& library : kernel_libraries(folder)) {
    const std::string path = kernel_file(folder, library, gpu.major, gpu.minor);
    if (!path.empty()) libraries_.push_back({std::make_unique<const Image>(path)});
  }
}

void* Kernels::find_if(const std::string& name) {
  const std::lock_guard guard(mutex_);
  const auto found = found_.find(name);
  if (found != found_.end()) return found->second;
  Function function = nullptr;
  for (Library& library : libraries_) {
    if (function == nullptr) function = find_in(library, name);
  }
  found_.emplace(name, function);
  return function;
}

Function Kernels::find_in(Library& library, const std::string& name) {
  if (!library.image->may_have(name)) return nullptr;
  if (library.module == nullptr) {
    const Status status = driver().load_module(&library.module, library.image->data());
    if (status != kSuccess) {
      library.module = nullptr;
      raise({"the kernels in " + library.image->path() + " cannot be loaded: " + describe(status),
             status, loses_context(status)});
    }
  }
  Function function = nullptr;
  const Status status = driver().module_function(&function, library.module, name.c_str());
  if (status == kNotFound) return nullptr;
  check(status, "cuModuleGetFunction");
  return function;
}

Function Kernels::find(const std::string& name) {
  auto* const function = static_cast<Function>(find_if(name));
  if (function == nullptr) throw Error("the package has no kernel " + name);
  return function;
}

}  // namespace hologram::cuda

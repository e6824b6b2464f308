// Launches of groups on the emulator of test/gpu: kernels are compiled for the CPU by clang, many
// at once, and run on the memory of a test.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../test/gpu/emulator.h"
#include "gpu/cold.h"
#include "gpu/launch.h"

namespace hologram::test {

class Emulated {
 public:
  // Of all kernels of some launches. prelude: "cuda" or "metal".
  Emulated(const std::vector<const gpu::Launches*>& all, const std::string& prelude) {
    std::map<std::string, const gpu::Kernel*> by_name;
    for (const gpu::Launches* launches : all) {
      for (const gpu::Launch& launch : launches->list) {
        by_name[launch.kernel->name] = launch.kernel;
      }
    }
    // Cold kernels are among these all or none.
    std::vector<const gpu::Kernel*> kernels;
    std::vector<std::string> names;
    for (const auto& [name, kernel] : by_name) {
      kernels.push_back(kernel);
      names.push_back(name);
    }
    const bool is_cold = !kernels.empty() && kernels.front()->text.empty();
    compile(is_cold ? gpu::cold_library_text() : gpu::library_text(kernels), prelude);
    find(names);
  }
  // Of kernels that are in a text.
  Emulated(const std::string& text, const std::vector<std::string>& names,
           const std::string& prelude) {
    compile(text, prelude);
    find(names);
  }

  void run(const gpu::Launches& launches, int order = HG_ORDER_FORWARD) const {
    const size_t bytes = launches.scratch_bytes;
    const std::unique_ptr<char, decltype(&std::free)> scratch(
        static_cast<char*>(std::aligned_alloc(gpu::kScratchAlignment, bytes + 256)), &std::free);
    std::fill_n(scratch.get(), bytes, '\x7f');
    for (const gpu::Launch& launch : launches.list) {
      std::vector<hg_argument> arguments;
      for (const gpu::Argument& its : launch.arguments) {
        const void* const address = its.is_program
                                        ? static_cast<const void*>(launch.kernel->program.data())
                                    : its.is_table           ? launch.table.data()
                                    : its.address != nullptr ? its.address
                                                             : scratch.get() + its.scratch;
        arguments.push_back({address, 0});
      }
      arguments.push_back({launch.parameters.data(), launch.parameters.size()});
      const uint32_t grid[3] = {launch.blocks, 1, 1}, block[3] = {launch.threads, 1, 1};
      if (launch_(kernels_.at(launch.kernel->name), grid, block, arguments.data(),
                  static_cast<int>(arguments.size()), order, 1) != 0) {
        throw std::runtime_error(launch.kernel->name + ": " + error_());
      }
    }
  }

 private:
  void compile(const std::string& text, const std::string& prelude) {
    const std::filesystem::path tests =
        (std::filesystem::absolute(__FILE__).parent_path() / "../../test").lexically_normal();
    // HOLOGRAM_KEEP_KERNELS: the folder in which texts stay, for other compilers.
    const char* const kept = std::getenv("HOLOGRAM_KEEP_KERNELS");
    static int number = 0;
    const std::string file =
        (kept != nullptr ? std::filesystem::path(kept) : std::filesystem::temp_directory_path()) /
        ("hologram-kernels-" + std::to_string(getpid()) + "-" + std::to_string(number++) + ".hgk");
    std::ofstream(file) << text;
    const std::string command = "python3 " + (tests / "gpu" / "emulator.py").string() +
                                " --runtime --prelude " + prelude + " " + file;
    FILE* const pipe = popen(command.c_str(), "r");
    std::array<std::string, 2> paths;
    char buffer[4096];
    for (std::string& path : paths) {
      if (std::fgets(buffer, sizeof buffer, pipe) == nullptr) break;
      path = buffer;
      path.pop_back();  // the end of the line
    }
    if (pclose(pipe) != 0) throw std::runtime_error("the kernels of " + file + " do not compile");
    if (kept == nullptr) std::filesystem::remove(file);
    // Local: a test may meet another one, where the emulator's sources change meanwhile.
    void* const runtime = dlopen(paths[0].c_str(), RTLD_NOW | RTLD_LOCAL);
    if (runtime == nullptr) throw std::runtime_error(dlerror());
    const auto get = [&](const char* name, auto& function) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(runtime, name));
    };
    get("hg_library_kernel", find_);
    get("hg_launch", launch_);
    get("hg_emulator_error", error_);
    decltype(&hg_library_open) open = nullptr;
    get("hg_library_open", open);
    library_ = open(paths[1].c_str());
    if (library_ == nullptr) throw std::runtime_error(error_());
    keep(library_);
  }
  void find(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      hg_kernel* const found = find_(library_, name.c_str());
      if (found == nullptr) throw std::runtime_error(error_());
      kernels_[name] = found;
      keep(found);
    }
  }
  // What the emulator never gives back is no leak: there is a pointer to it until the very end.
  static void keep(void* what) {
    static std::vector<void*>& all = *new std::vector<void*>;
    all.push_back(what);
  }

  decltype(&hg_library_kernel) find_ = nullptr;
  decltype(&hg_launch) launch_ = nullptr;
  decltype(&hg_emulator_error) error_ = nullptr;
  hg_library* library_ = nullptr;
  std::map<std::string, hg_kernel*> kernels_;
};

}  // namespace hologram::test

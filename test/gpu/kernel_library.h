// Kernels of csrc/gpu on the emulator: a text is compiled for the CPU by emulator.py, and launches
// run on the host's memory.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "emulator.h"
#include "gpu/launch.h"

namespace hologram::test {

// What the compiler says of a text that is wrong, with lines as `kernel:12:5: error: ...`.
struct KernelTextError : std::runtime_error {
  KernelTextError(const std::string& file, const std::string& said)
      : std::runtime_error("the kernels of " + file + " do not compile:\n" + said), said(said) {}
  const std::string said;
};

class KernelLibrary {
 public:
  // prelude: "cuda" or "metal". Without optimization it takes a sixth of the time, and the kernels
  // several times as long. Throws KernelTextError.
  KernelLibrary(const std::string& text, const std::string& prelude, int optimization = 2) {
    const std::array<std::string, 2> paths = compile(text, prelude, optimization);
    // Local: a test may meet another one, where the emulator's sources change meanwhile.
    void* const runtime = dlopen(paths[0].c_str(), RTLD_NOW | RTLD_LOCAL);
    if (runtime == nullptr) throw std::runtime_error(dlerror());
    const auto get = [&](const char* name, auto& function) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(runtime, name));
    };
    get("hg_library_kernel", find_);
    get("hg_launch", launch_);
    get("hg_kernel_arguments", arguments_);
    get("hg_kernel_role", role_);
    get("hg_kernel_bytes", bytes_);
    get("hg_kernel_index", index_);
    get("hg_emulator_error", error_);
    decltype(&hg_library_open) open = nullptr;
    get("hg_library_open", open);
    library_ = open(paths[1].c_str());
    if (library_ == nullptr) throw std::runtime_error(error_());
    keep(library_);
  }

  // Throws where there is none of this name.
  const hg_kernel* find(const std::string& name) const {
    hg_kernel* const found = find_(library_, name.c_str());
    if (found == nullptr) throw std::runtime_error(error_());
    keep(found);
    return found;
  }

  // What a launch gives: buffers, and parameters of so many bytes.
  int arguments(const hg_kernel* kernel) const { return arguments_(kernel); }
  bool is_buffer(const hg_kernel* kernel, int argument) const {
    return role_(kernel, argument) == 'b';
  }
  size_t bytes(const hg_kernel* kernel, int argument) const { return bytes_(kernel, argument); }
  int index(const hg_kernel* kernel, int argument) const { return index_(kernel, argument); }

  // Throws where the launch goes wrong.
  void run(const hg_kernel* kernel, uint32_t blocks, uint32_t threads,
           std::span<const hg_argument> arguments, int order = HG_ORDER_FORWARD) const {
    const uint32_t grid[3] = {blocks, 1, 1}, block[3] = {threads, 1, 1};
    const auto count = static_cast<int>(arguments.size());
    if (launch_(kernel, grid, block, arguments.data(), count, order, 1) != 0) {
      throw std::runtime_error(error_());
    }
  }

  // The addresses of the launch are the host's.
  void run(const hg_kernel* kernel, const gpu::Launch& launch, const char* scratch,
           int order = HG_ORDER_FORWARD) const {
    std::array<hg_argument, gpu::kMostBuffers> arguments;
    std::array<uint32_t, gpu::kCounters> counters{};
    const size_t count = launch.arguments.size() + 1;
    if (count > arguments.size()) throw std::runtime_error("a launch of too many arguments");
    for (size_t i = 0; i + 1 < count; ++i) {
      const gpu::Argument& its = launch.arguments[i];
      const void* const address = its.is_program
                                      ? static_cast<const void*>(launch.kernel->program.data())
                                  : its.is_table           ? launch.table.data()
                                  : its.is_counters        ? counters.data()
                                  : its.address != nullptr ? its.address
                                                           : scratch + its.scratch;
      arguments[i] = {address, 0};
    }
    arguments[count - 1] = {launch.parameters.data(), launch.parameters.size()};
    run(kernel, launch.blocks, launch.threads, {arguments.data(), count}, order);
    if (counters != std::array<uint32_t, gpu::kCounters>{}) {
      throw std::runtime_error("a launch that leaves counters behind");
    }
  }

 private:
  // Paths of the emulator's library and of the kernels'.
  static std::array<std::string, 2> compile(const std::string& text, const std::string& prelude,
                                            int optimization) {
    // HOLOGRAM_KEEP_KERNELS: the folder in which texts stay, for other compilers.
    const char* const kept = std::getenv("HOLOGRAM_KEEP_KERNELS");
    static std::atomic<int> number = 0;
    const std::string file =
        (kept != nullptr ? std::filesystem::path(kept) : std::filesystem::temp_directory_path()) /
        ("hologram-kernels-" + std::to_string(getpid()) + "-" + std::to_string(number++) + ".hgk");
    std::ofstream(file) << text;
    const std::string said = file + ".errors";
    const std::string command = "python3 " + folder() + "/emulator.py --runtime --prelude " +
                                prelude + " --optimize " + std::to_string(optimization) + " " +
                                file + " 2> " + said;
    FILE* const pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) throw std::runtime_error("the emulator's compiler cannot be started");
    std::array<std::string, 2> paths;
    char buffer[4096];
    for (std::string& path : paths) {
      if (std::fgets(buffer, sizeof buffer, pipe) == nullptr) break;
      path = buffer;
      path.pop_back();  // the end of the line
    }
    const bool is_right = pclose(pipe) == 0;
    std::ostringstream errors;
    errors << std::ifstream(said).rdbuf();
    std::filesystem::remove(said);
    if (!is_right) throw KernelTextError(file, errors.str());
    if (kept == nullptr) std::filesystem::remove(file);
    return paths;
  }
  // This one: defined for a library that is loaded in any folder.
  static std::string folder() {
#ifdef HOLOGRAM_EMULATOR_FOLDER
    return HOLOGRAM_EMULATOR_FOLDER;
#else
    return std::filesystem::absolute(__FILE__).parent_path().lexically_normal().string();
#endif
  }
  // What the emulator never gives back is no leak: there is a pointer to it until the very end.
  static void keep(void* what) {
    static std::mutex& mutex = *new std::mutex;
    static std::vector<void*>& all = *new std::vector<void*>;
    const std::lock_guard guard(mutex);
    all.push_back(what);
  }

  decltype(&hg_library_kernel) find_ = nullptr;
  decltype(&hg_launch) launch_ = nullptr;
  decltype(&hg_kernel_arguments) arguments_ = nullptr;
  decltype(&hg_kernel_role) role_ = nullptr;
  decltype(&hg_kernel_bytes) bytes_ = nullptr;
  decltype(&hg_kernel_index) index_ = nullptr;
  decltype(&hg_emulator_error) error_ = nullptr;
  hg_library* library_ = nullptr;
};

// Scratch memory of a run, of bytes that are hardly ever right.
class KernelScratch {
 public:
  explicit KernelScratch(size_t bytes)
      : memory_(static_cast<char*>(std::aligned_alloc(gpu::kScratchAlignment, rounded(bytes))),
                &std::free) {
    if (memory_ == nullptr) throw std::bad_alloc();
    std::fill_n(memory_.get(), bytes, '\x7f');
  }
  const char* data() const { return memory_.get(); }

 private:
  static size_t rounded(size_t bytes) {
    return (bytes / gpu::kScratchAlignment + 1) * gpu::kScratchAlignment;
  }
  std::unique_ptr<char, decltype(&std::free)> memory_;
};

}  // namespace hologram::test

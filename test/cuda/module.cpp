#include "module.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "../gpu/kernel_library.h"
#include "../sim/environment.h"
#include "../sim/memory.h"

struct hologram::cuda::CUmod_st {
  simulated_cuda::Device* device;
  std::string text;
};

struct hologram::cuda::CUfunc_st {
  simulated_cuda::Device* device;
  const hologram::test::KernelLibrary* library;
  const hg_kernel* kernel;
  bool has_table;  // of addresses, in its first buffer (csrc/gpu/emit.cpp)
};

namespace simulated_cuda {

using namespace hologram::cuda;

namespace {

constexpr std::string_view kBeginning = "#include \"hologram_gpu.h\"";
constexpr unsigned kMostThreads = 1024;

// Of all devices: a text is compiled once. Throws what the compiler says.
const hologram::test::KernelLibrary& library_of(const std::string& text) {
  static auto& mutex = *new std::mutex;
  static auto& all = *new std::map<std::string, hologram::test::KernelLibrary>;
  const std::lock_guard guard(mutex);
  const auto found = all.find(text);
  return found != all.end() ? found->second : all.try_emplace(text, text, "cuda").first->second;
}

// What a launch is to do wrong, by its number.
struct Faults {
  std::set<int> refused = sim::numbers("HOLOGRAM_TEST_CUDA_NO_LAUNCH");
  std::set<int> illegal = sim::numbers("HOLOGRAM_TEST_CUDA_ILLEGAL_LAUNCH");
};

bool fits(const LaunchShape& shape) {
  const auto is_one = [](const unsigned* size) { return size[1] == 1 && size[2] == 1; };
  return is_one(shape.blocks) && is_one(shape.threads) && shape.blocks[0] - 1 < INT32_MAX &&
         shape.threads[0] - 1 < kMostThreads;
}

// An argument of a launch: an address, or bytes.
struct Given {
  bool is_buffer;
  Address address;
  std::vector<char> bytes;
};

std::vector<Given> read(const CUfunc_st& function, void** parameters) {
  std::vector<Given> list;
  for (int i = 0; i < function.library->arguments(function.kernel); ++i) {
    Given& its = list.emplace_back();
    its.is_buffer = function.library->is_buffer(function.kernel, i);
    if (its.is_buffer) {
      std::memcpy(&its.address, parameters[i], sizeof its.address);
    } else {
      const auto* const bytes = static_cast<const char*>(parameters[i]);
      its.bytes.assign(bytes, bytes + function.library->bytes(function.kernel, i));
    }
  }
  return list;
}

// A table in memory of the device, with the addresses of bytes in place of the device's.
std::vector<uint64_t> table_at(Device& device, Address address) {
  std::vector<uint64_t> words(device.copied(address) / sizeof(uint64_t));
  std::memcpy(words.data(), sim::Memory::bytes_of(reinterpret_cast<const void*>(address)),
              words.size() * sizeof(uint64_t));
  for (uint64_t& word : words) {
    const auto* const pointed = reinterpret_cast<const void*>(word);
    if (!sim::Memory::instance().contains(pointed)) continue;
    word = reinterpret_cast<uint64_t>(sim::Memory::bytes_of(pointed));
  }
  return words;
}

}  // namespace

struct Launch {
  const CUfunc_st& function;
  LaunchShape shape;
  std::vector<Given> given;
};

namespace {

Status run(const Launch& launch) {
  const auto& [function, shape, given] = launch;
  std::vector<hg_argument> arguments;
  std::vector<uint64_t> table;
  for (const Given& its : given) {
    if (!its.is_buffer) {
      arguments.push_back({its.bytes.data(), its.bytes.size()});
      continue;
    }
    if (its.address != 0 && !function.device->holds(its.address, 0)) return kIllegalAddress;
    const auto* const address = reinterpret_cast<const void*>(its.address);
    if (function.has_table) {
      table = table_at(*function.device, its.address);
      arguments.push_back({table.data(), 0});
    } else {
      arguments.push_back({sim::Memory::bytes_of(address), 0});
    }
  }
  try {
    function.library->run(function.kernel, shape.blocks[0], shape.threads[0], arguments);
    return kSuccess;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return kLaunchFailed;
  }
}

}  // namespace

Status load_module(Device& device, const char* image, Module* module) {
  if (!std::string_view(image).starts_with(kBeginning)) return kInvalidImage;
  *module = new CUmod_st{&device, image};
  return kSuccess;
}

Status module_function(Device& device, Module module, const char* name, Function* function) {
  if (module == nullptr || module->device != &device) return kInvalidHandle;
  const hologram::test::KernelLibrary* library = nullptr;
  try {
    library = &library_of(module->text);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return kInvalidImage;
  }
  try {
    const bool has_table =
        module->text.find("struct " + std::string(name) + "_row {") != module->text.npos;
    *function = new CUfunc_st{&device, library, library->find(name), has_table};
    return kSuccess;
  } catch (const std::exception&) {
    return kNotFound;
  }
}

Status make_launch(Device& device, Function function, const LaunchShape& shape, void** parameters,
                   LaunchPointer& launch) {
  if (function == nullptr || function->device != &device) return kInvalidHandle;
  if (!fits(shape)) return kInvalidValue;
  launch = std::make_shared<const Launch>(Launch{*function, shape, read(*function, parameters)});
  return kSuccess;
}

Status push_launch(Device& device, const LaunchPointer& launch, Stream& stream) {
  static const Faults faults;
  static std::atomic<int> launches{0};
  if (launch->function.device != &device) return kInvalidHandle;
  const int number = ++launches;
  if (faults.refused.contains(number)) return kOutOfResources;
  device.push(stream, [&device, launch, number] {
    const Status status = faults.illegal.contains(number) ? kIllegalAddress : run(*launch);
    if (status != kSuccess) device.lose(status);
  });
  return kSuccess;
}

}  // namespace simulated_cuda

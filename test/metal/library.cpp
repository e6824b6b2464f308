#include "library.h"

#include <map>
#include <mutex>
#include <utility>

#include "../gpu/kernel_library.h"
#include "device.h"
#include "foundation.h"
#include "settings.h"

namespace simulated_metal {
namespace {

using hologram::test::KernelLibrary;

class CompileOptions final : public Object {
 public:
  CompileOptions() : Object(Kinds::instance().at("MTLCompileOptions")) {}
  unsigned long language = 0;
  long math_mode = kFast, functions = kFast;  // as on devices
  bool fast_math = true;

  static constexpr long kSafe = 0, kFast = 2;  // MTL::MathMode
  static constexpr long kPrecise = 1;          // MTL::MathFloatingPointFunctions
};

constexpr unsigned long kMsl31 = 3 << 16 | 1;

bool has_math_modes() {
  return settings().version[0] >= 15;
}

// Throws KernelTextError. A text is compiled once.
const KernelLibrary& compiled(const std::string& text) {
  static auto& mutex = *new std::mutex;
  static auto& all = *new std::map<std::string, KernelLibrary>;
  const std::lock_guard guard(mutex);
  const auto found = all.find(text);
  if (found != all.end()) return found->second;
  return all.try_emplace(text, text, "metal", settings().optimize).first->second;
}

// The emulator is exact in any case: with fast math a device would not be.
void check(const CompileOptions& options) {
  if (options.language != kMsl31) misuse("a library of another language than MSL 3.1");
  const bool is_exact = has_math_modes() ? options.math_mode == CompileOptions::kSafe &&
                                               options.functions == CompileOptions::kPrecise
                                         : !options.fast_math;
  if (!is_exact) misuse("a library with fast math");
}

Library* make_library(String* source, CompileOptions* options, Error** error) {
  if (source == nullptr || options == nullptr) misuse("a library without text or options");
  check(*options);
  std::string said = "kernel:1:1: error: as a test wants it";
  if (!settings().compile_error.next()) {
    try {
      return new Library(compiled(source->text));
    } catch (const hologram::test::KernelTextError& wrong) {
      said = wrong.said;
    }
  }
  if (error != nullptr) *error = autoreleased(new Error(said));
  return nullptr;
}

Function* make_function(Library* library, String* name) {
  const KernelLibrary& kernels = library->kernels;
  Kernel kernel{name->text, &kernels, nullptr, {}};
  try {
    kernel.code = kernels.find(name->text);
  } catch (const std::exception&) {
    return nullptr;
  }
  for (int i = 0; i < kernels.arguments(kernel.code); ++i) {
    kernel.arguments.push_back({static_cast<unsigned>(kernels.index(kernel.code, i)),
                                kernels.is_buffer(kernel.code, i), kernels.bytes(kernel.code, i)});
  }
  return new Function(std::move(kernel));
}

Pipeline* make_pipeline(Function* function, Error** error) {
  if (function == nullptr) misuse("a pipeline without a function");
  if (!settings().no_pipeline.next()) return new Pipeline(function->kernel);
  if (error != nullptr) *error = autoreleased(new Error("no pipeline, as a test wants it"));
  return nullptr;
}

}  // namespace

Library::Library(const KernelLibrary& kernels)
    : Object(Kinds::instance().at("MTLLibrary")), kernels(kernels) {}
Function::Function(Kernel kernel)
    : Object(Kinds::instance().at("MTLFunction")), kernel(std::move(kernel)) {}
Pipeline::Pipeline(Kernel kernel)
    : Object(Kinds::instance().at("MTLComputePipelineState")), kernel(std::move(kernel)) {}

void define_library(Kinds& kinds) {
  Kind& options = kinds.define("MTLCompileOptions");
  options.add_to_class("alloc", [](Kind*, SEL) { return new CompileOptions; });
  options.add("init", [](CompileOptions* self, SEL) { return self; });
  options.add("setLanguageVersion:",
              [](CompileOptions* self, SEL, unsigned long version) { self->language = version; });
  if (has_math_modes()) {
    options.add("setMathMode:",
                [](CompileOptions* self, SEL, long mode) { self->math_mode = mode; });
    options.add("setMathFloatingPointFunctions:",
                [](CompileOptions* self, SEL, long which) { self->functions = which; });
  } else {
    options.add("setFastMathEnabled:",
                [](CompileOptions* self, SEL, bool enabled) { self->fast_math = enabled; });
  }

  kinds.at("MTLDevice")
      .add("newLibraryWithSource:options:error:",
           [](Device*, SEL, String* source, CompileOptions* options, Error** error) {
             return make_library(source, options, error);
           });
  kinds.at("MTLDevice")
      .add("newComputePipelineStateWithFunction:error:",
           [](Device*, SEL, Function* function, Error** error) {
             return make_pipeline(function, error);
           });

  Kind& library = kinds.define("MTLLibrary");
  library.add("device", [](Library*, SEL) { return &Device::instance(); });
  library.add("newFunctionWithName:",
              [](Library* self, SEL, String* name) { return make_function(self, name); });
  kinds.define("MTLFunction");

  Kind& pipeline = kinds.define("MTLComputePipelineState");
  pipeline.add("threadExecutionWidth",
               [](Pipeline*, SEL) { return static_cast<unsigned long>(settings().simd_width); });
  pipeline.add("maxTotalThreadsPerThreadgroup",
               [](Pipeline*, SEL) { return static_cast<unsigned long>(settings().most_threads); });
}

}  // namespace simulated_metal

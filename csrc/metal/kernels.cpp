#include "metal/kernels.h"

#include <cstring>
#include <utility>

#include "atlas/error.h"
#include "gpu/cold.h"
#include "metal/texts.h"

namespace hologram::metal {
namespace {

class Toolchain final : public gpu::Toolchain {
 public:
  explicit Toolchain(const Device& device) : device_(device) {}

  gpu::Functions compile(const std::vector<const gpu::Kernel*>& kernels) override {
    const Library library = Kernels::compile(device_, gpu::library_text(kernels));
    gpu::Functions functions;
    for (const gpu::Kernel* const kernel : kernels) {
      auto pipeline = std::make_unique<const Pipeline>(library.pipeline(kernel->name));
      if (!*pipeline) throw Error("a compiled text has no kernel " + kernel->name);
      functions.emplace_back(kernel->name, const_cast<Pipeline*>(pipeline.release()));
    }
    return functions;
  }

 private:
  const Device& device_;
};

bool is_cold(const std::string& name) {
  return name.starts_with("hg_cold_");
}

}  // namespace

Kernels::Kernels(const Device& device, Memory& memory)
    : device_(device),
      memory_(memory),
      compiler_(std::make_unique<Toolchain>(device), [this](const gpu::Functions& functions) {
        const std::lock_guard lock(mutex_);
        for (const auto& [name, function] : functions) {
          std::unique_ptr<const Pipeline> pipeline(static_cast<const Pipeline*>(function));
          if (auto& its = found_[name]; its == nullptr) its = std::move(pipeline);
        }
        compiled_.fetch_add(1, std::memory_order_release);
      }) {}

Library Kernels::compile(const Device& device, const std::string& text) {
  return device.compile(self_contained(text));
}

void* Kernels::find_if(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = found_.find(name);
  if (found != found_.end()) return const_cast<Pipeline*>(found->second.get());
  if (!is_cold(name)) return nullptr;
  if (!cold_) cold_ = compile(device_, gpu::cold_library_text());
  auto pipeline = std::make_unique<const Pipeline>(cold_.pipeline(name));
  if (!*pipeline) return nullptr;
  return const_cast<Pipeline*>((found_[name] = std::move(pipeline)).get());
}

const Pipeline& Kernels::find(const gpu::Kernel& kernel) {
  const std::lock_guard lock(mutex_);
  return in(kernel.name, [&] { return compile(device_, gpu::library_text(kernel)); });
}

const Pipeline& Kernels::find_native(const std::string& name, const std::string& text) {
  const std::lock_guard lock(mutex_);
  return in(name, [&] {
    Library& library = native_[text];
    if (!library) library = compile(device_, text);
    return library;
  });
}

// Of what is not there yet `library()` has it.
template <class F>
const Pipeline& Kernels::in(const std::string& name, F&& library) {
  auto& its = found_[name];
  if (its == nullptr) {
    auto pipeline = std::make_unique<const Pipeline>(library().pipeline(name));
    if (!*pipeline) throw Error("a compiled text has no kernel " + name);
    its = std::move(pipeline);
  }
  return *its;
}

// The host writes them where the GPU reads them.
uint64_t Kernels::add_program(std::span<const uint32_t> words) {
  const std::lock_guard lock(mutex_);
  const uint64_t address = programs_.take(words.size_bytes(), [this](size_t bytes) {
    return reinterpret_cast<uint64_t>(memory_.allocate_or_throw(bytes, Device::page_size()));
  });
  std::memcpy(reinterpret_cast<void*>(address), words.data(), words.size_bytes());
  return address;
}

void Kernels::remove_program(uint64_t program, size_t words) noexcept {
  const std::lock_guard lock(mutex_);
  programs_.give(program, words * sizeof(uint32_t));
}

}  // namespace hologram::metal

// The kernels of a Metal device, all compiled from text by the system's own compiler, which keeps
// what it has made: those that run any group when the first of them is asked for, those that move
// elements one by one, and others when they have been asked for (gpu/compiler.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gpu/compiler.h"
#include "gpu/kernel_store.h"
#include "gpu/word_pool.h"
#include "metal/memory.h"
#include "metal/runtime.h"

namespace hologram::metal {

class Kernels final : public gpu::KernelStore {
 public:
  Kernels(const Device& device, Memory& memory);

  // A Pipeline, for as long as this lives.
  void* find_if(const std::string& name) override;
  unsigned most_threads(void* function) const noexcept override {
    return static_cast<const Pipeline*>(function)->most_threads();
  }
  // Compiled now where it is not there.
  const Pipeline& find(const gpu::Kernel& kernel);
  // The same of a text that includes one of csrc/metal/native.
  const Pipeline& find_native(const std::string& name, const std::string& text);

  uint64_t add_program(std::span<const uint32_t> words) override;
  void remove_program(uint64_t program, size_t words) noexcept override;

  void want(const std::vector<const gpu::Kernel*>& kernels) override { compiler_.want(kernels); }
  void look_for(const std::vector<const gpu::Kernel*>&) override {}  // it is the system that keeps
  bool can_compile() const noexcept override { return compiler_.is_on(); }
  uint64_t compiled() const noexcept override { return compiled_.load(std::memory_order_acquire); }

  // Compiles a text of the dialect, with the headers that it includes in their places.
  static Library compile(const Device& device, const std::string& text);

 private:
  template <class F>
  const Pipeline& in(const std::string& name, F&& library);

  const Device& device_;
  Memory& memory_;
  std::mutex mutex_;  // of all below
  std::map<std::string, std::unique_ptr<const Pipeline>> found_;
  Library cold_;                           // once one of them is asked for
  std::map<std::string, Library> native_;  // by their texts, likewise
  gpu::WordPool programs_;
  std::atomic<uint64_t> compiled_{0};
  gpu::Compiler compiler_;  // which uses all above
};

}  // namespace hologram::metal

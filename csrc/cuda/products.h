// Matrix products of a GPU, by cublasLt.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "atlas/product.h"
#include "cuda/context.h"
#include "cuda/cublas_lt.h"

namespace hologram::cuda {

// The library as a GPU has it. Thread-safe.
class ProductContext {
 public:
  explicit ProductContext(const Gpu& gpu) : gpu_(gpu) {}
  ProductContext(const ProductContext&) = delete;
  ProductContext& operator=(const ProductContext&) = delete;

  // Opens the library, the first time. Null where it cannot be used.
  lt::Handle handle();
  ProductLibrary describe();
  const Gpu& gpu() const noexcept { return gpu_; }

 private:
  const Gpu& gpu_;
  std::once_flag opened_;
  lt::Handle handle_ = nullptr;  // never destroyed: queues use it as long as there are any
  std::string description_;
};

// Those of a queue, which calls one function at a time, with the GPU's context current.
class Products {
 public:
  explicit Products(ProductContext& context) : context_(context) {}
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Whether the library is there and has an algorithm. Throws Error.
  bool computes(const Product& product);
  // False, with nothing enqueued, where it has none. Throws Error.
  bool enqueue(const Product& product, Stream stream);

  // Frees the memory that the kernels work in, which are done.
  void free_workspace() noexcept;

  // Of all queues: products that they have enqueued, and descriptions that were looked up for them.
  inline static std::atomic<uint64_t> enqueued{0}, looked_up{0};

 private:
  // All that an algorithm depends on.
  struct Key {
    static constexpr size_t kWords = 13;
    std::array<int64_t, kWords> words{};
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const noexcept;
  };
  struct Plan {
    Plan() = default;
    ~Plan();
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    lt::Operation operation = nullptr;
    lt::Layout a = nullptr, b = nullptr, c = nullptr, out = nullptr;
    const void* bias = nullptr;  // that the operation has
    bool usable = false;
    lt::Heuristic found{};
  };
  using Entry = std::pair<Key, std::unique_ptr<Plan>>;

  static Key key_of(const Product& product, bool with_workspace);
  Plan& plan_for(const Product& product, bool with_workspace);
  std::unique_ptr<Plan> make_plan(const Product& product, bool with_workspace) const;
  size_t most_workspace() const noexcept;
  bool has_workspace(size_t bytes);

  ProductContext& context_;
  std::list<Entry> entries_;  // what was used last comes first
  std::unordered_map<Key, std::list<Entry>::iterator, Hash> places_;
  Address workspace_ = 0;  // of the kernels of one product, then of those of the next
};

}  // namespace hologram::cuda

#include "cuda/products.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <utility>

#include "atlas/error.h"
#include "atlas/export.h"
#include "cuda/memory.h"
#include "cuda/word_hash.h"

namespace hologram::cuda {
namespace {

constexpr size_t kMostPlans = 1024;
// As much as torch gives the library.
constexpr size_t kWorkspace = size_t{8} << 20, kWorkspaceOfHopper = size_t{32} << 20;
constexpr int kHopper = 9;
// What the library is told of addresses, which are multiples of it at most.
constexpr unsigned kMostAlignment = 256;

lt::Type type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return lt::Type::f64;
    case DType::f16: return lt::Type::f16;
    case DType::bf16: return lt::Type::bf16;
    default: return lt::Type::f32;
  }
}

uint32_t alignment_of(const void* memory) {
  const auto lowest = std::countr_zero(reinterpret_cast<uintptr_t>(memory) | kMostAlignment);
  return uint32_t{1} << lowest;
}

// The library computes by columns: of the transposed matrices, in the other order.
struct Sides {
  explicit Sides(const Product& product)
      : a(product.b), b(product.a), c(product.beta != 0 ? product.c : product.out) {}
  const Product::Matrix &a, &b, &c;
};

class Preference {
 public:
  Preference() { lt::check(lt::library().create_preference(&its_), "a preference of a product"); }
  ~Preference() { lt::library().destroy_preference(its_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;

  template <class T>
  void set(lt::PreferenceAttribute which, T value) {
    lt::check(lt::library().set_preference(its_, which, &value, sizeof value),
              "a preference of a product");
  }
  lt::Preference get() const noexcept { return its_; }

 private:
  lt::Preference its_ = nullptr;
};

template <class T>
void set(lt::Operation operation, lt::OperationAttribute which, T value) {
  lt::check(lt::library().set_operation(operation, which, &value, sizeof value),
            "the description of a product");
}

// Matrices of so many rows, which are columns to the library.
lt::Layout make_layout(const Product& product, const Product::Matrix& matrix, int64_t rows,
                       int64_t columns) {
  constexpr const char* kWhat = "the description of a matrix";
  const lt::Library& library = lt::library();
  if (matrix.by_columns) std::swap(rows, columns);
  lt::Layout layout = nullptr;
  lt::check(library.create_layout(&layout, type_of(product.dtype), static_cast<uint64_t>(columns),
                                  static_cast<uint64_t>(rows), matrix.leading),
            kWhat);
  if (product.count > 1) {
    const auto count = static_cast<int32_t>(product.count);
    const lt::Result set_count =
        library.set_layout(layout, lt::LayoutAttribute::count, &count, sizeof count);
    const lt::Result set_stride = library.set_layout(layout, lt::LayoutAttribute::stride,
                                                     &matrix.stride, sizeof matrix.stride);
    if (set_count != lt::kOk || set_stride != lt::kOk) {
      library.destroy_layout(layout);
      lt::check(std::max(set_count, set_stride), kWhat);
    }
  }
  return layout;
}

bool is_narrow(int64_t number) {
  return number <= std::numeric_limits<int32_t>::max();
}

// Whether all numbers are such that the library's kernels have for them.
bool is_within_bounds(const Product& product) {
  return is_narrow(product.rows) && is_narrow(product.columns) && is_narrow(product.inner) &&
         is_narrow(product.count) && is_narrow(product.a.leading) && is_narrow(product.b.leading) &&
         is_narrow(product.c.leading) && is_narrow(product.out.leading);
}

}  // namespace

lt::Handle ProductContext::handle() {
  std::call_once(opened_, [this] {
    try {
      const lt::Library& library = lt::library();
      const ContextGuard guard(gpu_);
      lt::Handle made = nullptr;
      lt::check(library.create(&made), "cublasLtCreate");
      description_ = "cublasLt " + lt::version_text();
      handle_ = made;
    } catch (const std::exception& error) {
      description_ = "cublasLt cannot be used: " + std::string(error.what());
    }
  });
  return handle_;
}

ProductLibrary ProductContext::describe() {
  const bool usable = handle() != nullptr;
  return {usable, description_};
}

Products::Plan::~Plan() {
  const lt::Library& library = lt::library();
  if (operation != nullptr) library.destroy_operation(operation);
  for (const lt::Layout layout : {a, b, c, out}) {
    if (layout != nullptr) library.destroy_layout(layout);
  }
}

void Products::free_workspace() noexcept {
  if (workspace_ != 0) driver().free(workspace_);
  workspace_ = 0;
}

size_t Products::Hash::operator()(const Key& key) const noexcept {
  WordHash hash;
  for (const int64_t word : key.words) hash.add(static_cast<uint64_t>(word));
  return static_cast<size_t>(hash.get());
}

Products::Key Products::key_of(const Product& product, bool with_workspace) {
  const Sides sides(product);
  uint64_t form = 0;
  const auto add = [&](unsigned bits, auto value) {
    form = form << bits | static_cast<uint64_t>(value);
  };
  add(4, product.dtype);
  add(2, product.sums);
  add(1, product.tf32);
  add(1, with_workspace);
  add(1, sides.a.by_columns);
  add(1, sides.b.by_columns);
  add(1, sides.c.data == product.out.data);
  add(1, product.bias != nullptr);
  add(1, product.function);
  for (const void* memory :
       {static_cast<const void*>(sides.a.data), static_cast<const void*>(sides.b.data),
        static_cast<const void*>(sides.c.data), static_cast<const void*>(product.out.data),
        product.bias}) {
    add(4, std::countr_zero(alignment_of(memory)));
  }
  return {{static_cast<int64_t>(form), product.rows, product.columns, product.inner, product.count,
           sides.a.leading, sides.b.leading, sides.c.leading, product.out.leading, sides.a.stride,
           sides.b.stride, sides.c.stride, product.out.stride}};
}

size_t Products::most_workspace() const noexcept {
  return context_.gpu().major >= kHopper ? kWorkspaceOfHopper : kWorkspace;
}

std::unique_ptr<Products::Plan> Products::make_plan(const Product& product,
                                                    bool with_workspace) const {
  const lt::Library& library = lt::library();
  const Sides sides(product);
  auto plan = std::make_unique<Plan>();
  const lt::Compute compute = product.dtype == DType::f64 ? lt::Compute::f64
                              : product.tf32              ? lt::Compute::f32_tf32
                                                          : lt::Compute::f32;
  lt::check(library.create_operation(&plan->operation, compute,
                                     product.dtype == DType::f64 ? lt::Type::f64 : lt::Type::f32),
            "the description of a product");
  using OperationAttribute = lt::OperationAttribute;
  if (sides.a.by_columns) {
    set(plan->operation, OperationAttribute::transpose_a, lt::kTransposed);
  }
  if (sides.b.by_columns) {
    set(plan->operation, OperationAttribute::transpose_b, lt::kTransposed);
  }
  const uint32_t epilogue =
      (product.bias != nullptr ? lt::kEpilogueOfBias : 0) |
      (product.function == Product::Function::gelu_tanh ? lt::kEpilogueOfGelu : 0);
  if (epilogue != 0) set(plan->operation, OperationAttribute::epilogue, epilogue);
  if (product.bias != nullptr) {
    set(plan->operation, OperationAttribute::bias, product.bias);
    plan->bias = product.bias;
  }
  plan->a = make_layout(product, sides.a, product.inner, product.columns);
  plan->b = make_layout(product, sides.b, product.rows, product.inner);
  plan->c = make_layout(product, sides.c, product.rows, product.columns);
  plan->out = make_layout(product, product.out, product.rows, product.columns);

  using Attribute = lt::PreferenceAttribute;
  Preference preference;
  preference.set(Attribute::workspace_bytes,
                 uint64_t{with_workspace ? most_workspace() : size_t{0}});
  if (product.sums != Product::Sums::narrow) {
    preference.set(Attribute::reduction_schemes, product.sums == Product::Sums::wide
                                                     ? lt::kNoReduction | lt::kWideReduction
                                                     : lt::kNoReduction);
  }
  preference.set(Attribute::alignment_a, alignment_of(sides.a.data));
  preference.set(Attribute::alignment_b, alignment_of(sides.b.data));
  preference.set(Attribute::alignment_c, alignment_of(sides.c.data));
  preference.set(Attribute::alignment_d, alignment_of(product.out.data));
  looked_up.fetch_add(1, std::memory_order_relaxed);
  int count = 0;
  const lt::Result result =
      library.find_algorithms(context_.handle(), plan->operation, plan->a, plan->b, plan->c,
                              plan->out, preference.get(), 1, &plan->found, &count);
  plan->usable = result == lt::kOk && count > 0 && plan->found.state == lt::kOk;
  return plan;
}

// What the library said no to is kept, too.
Products::Plan& Products::plan_for(const Product& product, bool with_workspace) {
  const Key key = key_of(product, with_workspace);
  const auto found = places_.find(key);
  if (found != places_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);
    return *found->second->second;
  }
  entries_.emplace_front(key, make_plan(product, with_workspace));
  try {
    places_.emplace(key, entries_.begin());
  } catch (...) {
    entries_.pop_front();
    throw;
  }
  if (entries_.size() > kMostPlans) {
    places_.erase(entries_.back().first);
    entries_.pop_back();
  }
  return *entries_.front().second;
}

bool Products::has_workspace(size_t bytes) {
  if (bytes == 0 || workspace_ != 0) return true;
  try {
    workspace_ = allocate(most_workspace());
  } catch (const OutOfMemory&) {
    return false;
  }
  return true;
}

bool Products::computes(const Product& product) {
  return context_.handle() != nullptr && is_within_bounds(product) &&
         plan_for(product, true).usable;
}

bool Products::enqueue(const Product& product, Stream stream) {
  const lt::Handle handle = context_.handle();
  if (handle == nullptr || !is_within_bounds(product)) return false;
  Plan* plan = &plan_for(product, true);
  if (plan->usable && !has_workspace(plan->found.workspace_bytes)) {
    plan = &plan_for(product, false);
  }
  if (!plan->usable) return false;
  if (plan->bias != product.bias) {
    set(plan->operation, lt::OperationAttribute::bias, product.bias);
    plan->bias = product.bias;
  }
  const auto alpha = static_cast<float>(product.alpha), beta = static_cast<float>(product.beta);
  const bool is_double = product.dtype == DType::f64;
  const Sides sides(product);
  const size_t bytes = plan->found.workspace_bytes;
  const lt::Result result = lt::library().multiply(
      handle, plan->operation,
      is_double ? static_cast<const void*>(&product.alpha) : static_cast<const void*>(&alpha),
      sides.a.data, plan->a, sides.b.data, plan->b,
      is_double ? static_cast<const void*>(&product.beta) : static_cast<const void*>(&beta),
      sides.c.data, plan->c, product.out.data, plan->out, &plan->found.algorithm,
      bytes != 0 ? reinterpret_cast<void*>(workspace_) : nullptr, bytes, stream);
  // Said before anything is launched.
  if (result == lt::kNotSupported || result == lt::kArchMismatch || result == lt::kInvalidValue) {
    plan->usable = false;
    return false;
  }
  lt::check(result, "cublasLtMatmul");
  return true;
}

}  // namespace hologram::cuda

// {enqueued, looked_up}, for tests.
extern "C" HOLOGRAM_EXPORT void hologram_cuda_products(uint64_t* counts) {
  using hologram::cuda::Products;
  counts[0] = Products::enqueued.load();
  counts[1] = Products::looked_up.load();
}

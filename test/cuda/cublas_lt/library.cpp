// cublasLt without a GPU, for tests of csrc/cuda: the functions that cuda/cublas_lt.h names, and no
// others, over the driver of test/cuda. See docs/testing.md.
//
// Products are loops in the order of the driver's stream. A description that does not fit its
// memory, or an algorithm that was not found for it, ends the process, also where NVIDIA's library
// would let it pass.
//
// HOLOGRAM_TEST_CUBLAS_LT_VERSION: that the library says it has (130000).
// HOLOGRAM_TEST_CUBLAS_LT_WORKSPACE: bytes that an algorithm works in, where it may (65536).
// Faults: HOLOGRAM_TEST_CUBLAS_LT_CREATE, the result of cublasLtCreate; and the numbers, from 1, of
// what fails, HOLOGRAM_TEST_CUBLAS_LT_NO_ALGORITHM of searches that find nothing,
// HOLOGRAM_TEST_CUBLAS_LT_REFUSED of products that are not supported after all,
// HOLOGRAM_TEST_CUBLAS_LT_FAILED of those that cannot be launched.
#include "cuda/cublas_lt.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "../../sim/environment.h"
#include "../hooks.h"

using namespace hologram::cuda;
using namespace hologram::cuda::lt;

extern "C" {
#define HOLOGRAM_DECLARE(symbol, result, name, arguments) \
  [[gnu::visibility("default")]] result symbol arguments;
HOLOGRAM_CUBLAS_LT_FUNCTIONS(HOLOGRAM_DECLARE)
#undef HOLOGRAM_DECLARE
}

namespace hologram::cuda::lt {

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque_t {
  Compute compute;
  Type scale;
  int32_t transpose_a = 0, transpose_b = 0;
  uint32_t epilogue = kPlainEpilogue;
  const void* bias = nullptr;
};
struct cublasLtMatrixLayoutOpaque_t {
  Type type;
  uint64_t rows, columns;
  int64_t leading;
  int32_t count = 1;
  int64_t stride = 0;
  bool operator==(const cublasLtMatrixLayoutOpaque_t&) const = default;
};
struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t workspace_bytes = 0;
  uint32_t reduction_schemes = 7;  // all
  std::array<uint32_t, 4> alignments{256, 256, 256, 256};
};

}  // namespace hologram::cuda::lt

namespace {

using Matrix = cublasLtMatrixLayoutOpaque_t;

[[gnu::used]] const void* const kAll[] = {
#define HOLOGRAM_SYMBOL(symbol, result, name, arguments) reinterpret_cast<const void*>(&symbol),
    HOLOGRAM_CUBLAS_LT_FUNCTIONS(HOLOGRAM_SYMBOL)
#undef HOLOGRAM_SYMBOL
};

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "simulated cublasLt: %s\n", what);
  std::abort();
}

// Objects that the caller has not destroyed.
std::mutex mutex;
std::set<const void*> live;

template <class T>
T* made(T* object) {
  const std::lock_guard guard(mutex);
  live.insert(object);
  return object;
}
template <class T>
T& alive(T* object) {
  const std::lock_guard guard(mutex);
  require(live.contains(object), "a handle that does not live");
  return *object;
}
template <class T>
Result destroy(T* object) {
  delete &alive(object);
  const std::lock_guard guard(mutex);
  live.erase(object);
  return kOk;
}

template <class T>
Result put(T& field, const void* value, size_t bytes) {
  require(bytes == sizeof field, "an attribute of another size");
  std::memcpy(&field, value, sizeof field);
  return kOk;
}

// What an algorithm was found for.
struct Search {
  Compute compute;
  int32_t transpose_a, transpose_b;
  uint32_t epilogue;
  std::array<Matrix, 4> matrices;
  std::array<uint32_t, 4> alignments;
  uint32_t reduction_schemes;
  size_t workspace_bytes;
};
std::map<uint64_t, Search> searches;  // guarded by mutex
std::atomic<uint64_t> search_count{0};
std::atomic<int> product_count{0};
std::atomic<Compute> last_compute{};
std::atomic<uint32_t> last_reduction_schemes{0}, last_epilogue{0};

size_t size_of(Type type) {
  switch (type) {
    case Type::f32: return 4;
    case Type::f64: return 8;
    case Type::f16:
    case Type::bf16: return 2;
  }
  require(false, "an unknown type");
  return 0;
}

bool has_bias(uint32_t epilogue) {
  return (epilogue & kEpilogueOfBias) != 0;
}
bool has_gelu(uint32_t epilogue) {
  return (epilogue & kEpilogueOfGelu) != 0;
}

// Elements from the first one to behind the last one of a matrix.
int64_t extent(const Matrix& its) {
  return (static_cast<int64_t>(its.columns) - 1) * its.leading + static_cast<int64_t>(its.rows) +
         (its.count - 1) * its.stride;
}

void check_description(const cublasLtMatmulDescOpaque_t& operation, const Matrix& a,
                       const Matrix& b, const Matrix& c, const Matrix& d) {
  const bool wide = operation.compute == Compute::f64;
  require(operation.scale == (wide ? Type::f64 : Type::f32), "another type of alpha and beta");
  for (const Matrix* its : {&a, &b, &c, &d}) {
    require(its->type == d.type && (its->type == Type::f64) == wide, "types that differ");
    require(its->rows > 0 && its->columns > 0 && its->count == d.count, "sizes");
    require(its->leading >= static_cast<int64_t>(its->rows), "a leading dimension below the rows");
    require(its->stride >= 0, "a stride");
  }
  require(operation.compute != Compute::f32_tf32 || d.type == Type::f32, "TF32 of another type");
  const auto [m, k] =
      operation.transpose_a != 0 ? std::pair(a.columns, a.rows) : std::pair(a.rows, a.columns);
  const auto [inner, n] =
      operation.transpose_b != 0 ? std::pair(b.columns, b.rows) : std::pair(b.rows, b.columns);
  require(inner == k && d.rows == m && d.columns == n, "sizes that do not fit");
  require(c.rows == m && c.columns == n, "the size of what is added");
  require(d.count == 1 || d.stride >= extent({d.type, m, n, d.leading}), "results that overlap");
  require(operation.epilogue == kPlainEpilogue ||
              (operation.epilogue & ~(kEpilogueOfBias | kEpilogueOfGelu)) == 0,
          "an epilogue that is not known");
  require(!has_bias(operation.epilogue) || operation.bias != nullptr, "a bias without an address");
  require(!has_gelu(operation.epilogue) || !wide, "a gelu of f64");
}

float widened(uint16_t bits, Type type) {
  if (type == Type::bf16) return std::bit_cast<float>(uint32_t{bits} << 16);
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}
uint16_t narrowed(float value, Type type) {
  if (type == Type::f16) return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
// To the ten bits of mantissa that TF32 has.
float rounded_to_tf32(float value) {
  if (!std::isfinite(value)) return value;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(value) + 0x1000) & ~uint32_t{0x1fff});
}

struct Task {
  Search how;
  double alpha, beta;
  const char *a, *b, *c, *bias;
  char *d, *workspace;
};

// Number `at` of a matrix's elements.
template <class T>
T element(const char* data, Type type, int64_t at) {
  if constexpr (std::is_same_v<T, double>) {
    return reinterpret_cast<const double*>(data)[at];
  } else if (type == Type::f32) {
    return reinterpret_cast<const float*>(data)[at];
  } else {
    return widened(reinterpret_cast<const uint16_t*>(data)[at], type);
  }
}

template <class T>
void compute(const Task& task) {
  const auto& [a, b, c, d] = task.how.matrices;
  const Type type = d.type;
  const bool tf32 = task.how.compute == Compute::f32_tf32;
  const auto input = [&](const char* data, const Matrix& its, bool transposed, uint64_t row,
                         uint64_t column, int batch) {
    if (transposed) std::swap(row, column);
    const T value = element<T>(data, type,
                               static_cast<int64_t>(row) +
                                   static_cast<int64_t>(column) * its.leading + batch * its.stride);
    return tf32 ? static_cast<T>(rounded_to_tf32(static_cast<float>(value))) : value;
  };
  const uint64_t inner = task.how.transpose_a != 0 ? a.rows : a.columns;
  for (int batch = 0; batch < d.count; ++batch) {
    for (uint64_t j = 0; j < d.columns; ++j) {
      for (uint64_t i = 0; i < d.rows; ++i) {
        T sum = 0;
        for (uint64_t k = 0; k < inner; ++k) {
          sum += input(task.a, a, task.how.transpose_a != 0, i, k, batch) *
                 input(task.b, b, task.how.transpose_b != 0, k, j, batch);
        }
        T value = static_cast<T>(task.alpha) * sum;
        const auto row = static_cast<int64_t>(i), column = static_cast<int64_t>(j);
        if (task.beta != 0) {
          value += static_cast<T>(task.beta) *
                   element<T>(task.c, type, row + column * c.leading + batch * c.stride);
        }
        if (task.bias != nullptr) value += element<T>(task.bias, type, row);
        if (has_gelu(task.how.epilogue)) {
          value *= (1 + std::tanh(static_cast<T>(M_SQRT2 * M_2_SQRTPI / 2) *
                                  (value + static_cast<T>(0.044715) * value * value * value))) /
                   2;
        }
        const int64_t at = row + column * d.leading + batch * d.stride;
        if constexpr (std::is_same_v<T, double>) {
          reinterpret_cast<double*>(task.d)[at] = value;
        } else if (type == Type::f32) {
          reinterpret_cast<float*>(task.d)[at] = value;
        } else {
          reinterpret_cast<uint16_t*>(task.d)[at] = narrowed(value, type);
        }
      }
    }
  }
}

void forget(const void* data) {
  delete static_cast<const Task*>(data);
}

void run(const void* data) {
  const Task& task = *static_cast<const Task*>(data);
  // A result in between, which another product at the same time would find.
  std::memset(task.workspace, 0xff, task.how.workspace_bytes);
  task.how.matrices[3].type == Type::f64 ? compute<double>(task) : compute<float>(task);
  const auto* const end = task.workspace + task.how.workspace_bytes;
  require(std::all_of(static_cast<const char*>(task.workspace), end,
                      [](char byte) { return byte == '\xff'; }),
          "somebody else wrote to the workspace");
}

bool is_one_of(const char* variable, int number) {
  return sim::numbers(variable).contains(number);
}

}  // namespace

size_t cublasLtGetVersion() {
  return static_cast<size_t>(sim::number("HOLOGRAM_TEST_CUBLAS_LT_VERSION", 130000));
}

const char* cublasLtGetStatusString(Result result) {
  switch (result) {
    case kOk: return "success";
    case 1: return "the library was not initialized";
    case kInvalidValue: return "an invalid value";
    case kExecutionFailed: return "the GPU program failed to execute";
    case kNotSupported: return "the functionality is not supported";
    default: return nullptr;
  }
}

Result cublasLtCreate(Handle* handle) {
  const Result result = sim::number("HOLOGRAM_TEST_CUBLAS_LT_CREATE", kOk);
  if (result == kOk) *handle = made(new cublasLtContext);
  return result;
}

Result cublasLtMatmulDescCreate(Operation* operation, Compute compute, Type scale) {
  *operation = made(new cublasLtMatmulDescOpaque_t{compute, scale});
  return kOk;
}
Result cublasLtMatmulDescDestroy(Operation operation) {
  return destroy(operation);
}
Result cublasLtMatmulDescSetAttribute(Operation operation, OperationAttribute which,
                                      const void* value, size_t bytes) {
  auto& its = alive(operation);
  switch (which) {
    case OperationAttribute::transpose_a: return put(its.transpose_a, value, bytes);
    case OperationAttribute::transpose_b: return put(its.transpose_b, value, bytes);
    case OperationAttribute::epilogue: return put(its.epilogue, value, bytes);
    case OperationAttribute::bias: return put(its.bias, value, bytes);
  }
  return kInvalidValue;
}

Result cublasLtMatrixLayoutCreate(Layout* layout, Type type, uint64_t rows, uint64_t columns,
                                  int64_t leading) {
  *layout = made(new Matrix{type, rows, columns, leading});
  return kOk;
}
Result cublasLtMatrixLayoutDestroy(Layout layout) {
  return destroy(layout);
}
Result cublasLtMatrixLayoutSetAttribute(Layout layout, LayoutAttribute which, const void* value,
                                        size_t bytes) {
  auto& its = alive(layout);
  switch (which) {
    case LayoutAttribute::count: return put(its.count, value, bytes);
    case LayoutAttribute::stride: return put(its.stride, value, bytes);
  }
  return kInvalidValue;
}

Result cublasLtMatmulPreferenceCreate(Preference* preference) {
  *preference = made(new cublasLtMatmulPreferenceOpaque_t);
  return kOk;
}
Result cublasLtMatmulPreferenceDestroy(Preference preference) {
  return destroy(preference);
}
Result cublasLtMatmulPreferenceSetAttribute(Preference preference, PreferenceAttribute which,
                                            const void* value, size_t bytes) {
  auto& its = alive(preference);
  switch (which) {
    case PreferenceAttribute::workspace_bytes: return put(its.workspace_bytes, value, bytes);
    case PreferenceAttribute::reduction_schemes: return put(its.reduction_schemes, value, bytes);
    case PreferenceAttribute::alignment_a: return put(its.alignments[0], value, bytes);
    case PreferenceAttribute::alignment_b: return put(its.alignments[1], value, bytes);
    case PreferenceAttribute::alignment_c: return put(its.alignments[2], value, bytes);
    case PreferenceAttribute::alignment_d: return put(its.alignments[3], value, bytes);
  }
  return kInvalidValue;
}

Result cublasLtMatmulAlgoGetHeuristic(Handle handle, Operation operation, Layout a, Layout b,
                                      Layout c, Layout d, Preference preference, int wanted,
                                      Heuristic* found, int* count) {
  alive(handle);
  const auto& its = alive(operation);
  const auto& wishes = alive(preference);
  check_description(its, alive(a), alive(b), alive(c), alive(d));
  require(wanted >= 1, "no algorithm is asked for");
  const uint64_t number = ++search_count;
  *count = 0;
  if (is_one_of("HOLOGRAM_TEST_CUBLAS_LT_NO_ALGORITHM", static_cast<int>(number))) {
    return kNotSupported;
  }
  const auto workspace =
      static_cast<size_t>(sim::number("HOLOGRAM_TEST_CUBLAS_LT_WORKSPACE", 65536));
  const size_t used = workspace <= wishes.workspace_bytes ? workspace : 0;
  const std::lock_guard guard(mutex);
  searches[number] = {its.compute,      its.transpose_a,   its.transpose_b,          its.epilogue,
                      {*a, *b, *c, *d}, wishes.alignments, wishes.reduction_schemes, used};
  found->algorithm = {{number}};
  found->workspace_bytes = used;
  found->state = kOk;
  *count = 1;
  return kOk;
}

Result cublasLtMatmul(Handle handle, Operation operation, const void* alpha, const void* a,
                      Layout a_layout, const void* b, Layout b_layout, const void* beta,
                      const void* c, Layout c_layout, void* d, Layout d_layout,
                      const Algorithm* algorithm, void* workspace, size_t workspace_bytes,
                      Stream stream) {
  alive(handle);
  const auto& its = alive(operation);
  const std::array<Matrix, 4> matrices{alive(a_layout), alive(b_layout), alive(c_layout),
                                       alive(d_layout)};
  check_description(its, matrices[0], matrices[1], matrices[2], matrices[3]);
  Search how;
  {
    const std::lock_guard guard(mutex);
    const auto found = searches.find(algorithm->data[0]);
    require(found != searches.end(), "an algorithm that was not found");
    how = found->second;
  }
  require(how.compute == its.compute && how.transpose_a == its.transpose_a &&
              how.transpose_b == its.transpose_b && how.epilogue == its.epilogue &&
              how.matrices == matrices,
          "an algorithm of another product");
  const std::array<const void*, 4> addresses{a, b, c, d};
  const size_t size = size_of(matrices[3].type);
  for (size_t i = 0; i < addresses.size(); ++i) {
    require(reinterpret_cast<uintptr_t>(addresses[i]) % how.alignments[i] == 0,
            "an address that is less aligned than it was said");
    const size_t bytes = static_cast<size_t>(extent(matrices[i])) * size;
    require(simulated_cuda_holds(addresses[i], bytes), "memory that is not the device's");
  }
  const auto begin = [](const void* data) { return reinterpret_cast<uintptr_t>(data); };
  const auto end = [&](size_t i) {
    return begin(addresses[i]) + static_cast<size_t>(extent(matrices[i])) * size;
  };
  for (size_t i : {0, 1}) {
    // Rows of a wider matrix lie between others.
    require(begin(d) != begin(addresses[i]) || end(3) != end(i), "an operand that is written");
  }
  require(c != d || matrices[2] == matrices[3], "another layout of what is added in place");
  require(workspace_bytes >= how.workspace_bytes &&
              (how.workspace_bytes == 0 ||
               (begin(workspace) % 16 == 0 && simulated_cuda_holds(workspace, workspace_bytes))),
          "too little workspace");
  if (has_bias(its.epilogue)) {
    require(simulated_cuda_holds(its.bias, matrices[3].rows * size) && begin(its.bias) % size == 0,
            "a bias that is not the device's");
  }
  const int number = ++product_count;
  if (is_one_of("HOLOGRAM_TEST_CUBLAS_LT_REFUSED", number)) return kNotSupported;
  if (is_one_of("HOLOGRAM_TEST_CUBLAS_LT_FAILED", number)) return kExecutionFailed;
  last_compute = its.compute;
  last_reduction_schemes = how.reduction_schemes;
  last_epilogue = its.epilogue;
  const auto number_at = [&](const void* scalar) {
    return its.scale == Type::f64 ? *static_cast<const double*>(scalar)
                                  : double{*static_cast<const float*>(scalar)};
  };
  const auto bytes = [](const void* data) {
    return static_cast<char*>(simulated_cuda_bytes(data));
  };
  auto* const task = new Task{how,
                              number_at(alpha),
                              number_at(beta),
                              bytes(a),
                              bytes(b),
                              bytes(c),
                              has_bias(its.epilogue) ? bytes(its.bias) : nullptr,
                              bytes(d),
                              bytes(workspace)};
  const auto status = simulated_cuda_push(stream, &run, task, &forget);
  return status == hologram::cuda::kSuccess ? kOk : kExecutionFailed;  // the context is lost
}

// {compute type, reduction schemes, epilogue} of the last product, and what is alive, for tests.
extern "C" [[gnu::visibility("default")]] void simulated_cublas_lt(int64_t* numbers) {
  numbers[0] = static_cast<int64_t>(last_compute.load());
  numbers[1] = last_reduction_schemes.load();
  numbers[2] = last_epilogue.load();
  const std::lock_guard guard(mutex);
  numbers[3] = static_cast<int64_t>(live.size());
}

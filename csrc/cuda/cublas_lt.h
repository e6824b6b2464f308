// The functions of cublasLt, NVIDIA's library of matrix products, found when a product is first
// asked for: a machine without it has the device all the same.
//
// Types, values and functions are those of cublasLt.h, of versions 12 and 13.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/driver.h"
#include "cuda/vendor_library.h"

namespace hologram::cuda::lt {

using Result = int;  // cublasStatus_t
inline constexpr Result kOk = 0;
inline constexpr Result kInvalidValue = 7;
inline constexpr Result kArchMismatch = 8;
inline constexpr Result kExecutionFailed = 13;
inline constexpr Result kNotSupported = 15;

using Handle = struct cublasLtContext*;
using Operation = struct cublasLtMatmulDescOpaque_t*;
using Layout = struct cublasLtMatrixLayoutOpaque_t*;
using Preference = struct cublasLtMatmulPreferenceOpaque_t*;

enum class Type : int { f32 = 0, f64 = 1, f16 = 2, bf16 = 14 };  // cudaDataType_t
enum class Compute : int { f32 = 68, f64 = 70, f32_tf32 = 77 };  // cublasComputeType_t
enum class OperationAttribute : int { transpose_a = 3, transpose_b = 4, epilogue = 7, bias = 8 };
enum class LayoutAttribute : int { count = 5, stride = 6 };
enum class PreferenceAttribute : int {
  workspace_bytes = 1,
  reduction_schemes = 3,
  alignment_a = 5,
  alignment_b = 6,
  alignment_c = 7,
  alignment_d = 8,
};
inline constexpr int32_t kTransposed = 1;  // cublasOperation_t
// cublasLtEpilogue_t: none, or bits of the others.
inline constexpr uint32_t kPlainEpilogue = 1, kEpilogueOfBias = 4, kEpilogueOfGelu = 32;
inline constexpr uint32_t kNoReduction = 0;    // cublasLtReductionScheme_t, bits
inline constexpr uint32_t kWideReduction = 2;  // in the type that is computed in

struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace_bytes;
  Result state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Heuristic) == 96);

// name in the library, what it returns, name here, arguments
#define HOLOGRAM_CUBLAS_LT_FUNCTIONS(_)                                                         \
  _(cublasLtGetVersion, size_t, version, ())                                                    \
  _(cublasLtGetStatusString, const char*, status_string, (Result status))                       \
  _(cublasLtCreate, Result, create, (Handle * handle))                                          \
  _(cublasLtMatmulDescCreate, Result, create_operation,                                         \
    (Operation * operation, Compute compute, Type scale))                                       \
  _(cublasLtMatmulDescDestroy, Result, destroy_operation, (Operation operation))                \
  _(cublasLtMatmulDescSetAttribute, Result, set_operation,                                      \
    (Operation operation, OperationAttribute which, const void* value, size_t bytes))           \
  _(cublasLtMatrixLayoutCreate, Result, create_layout,                                          \
    (Layout * layout, Type type, uint64_t rows, uint64_t columns, int64_t leading))             \
  _(cublasLtMatrixLayoutDestroy, Result, destroy_layout, (Layout layout))                       \
  _(cublasLtMatrixLayoutSetAttribute, Result, set_layout,                                       \
    (Layout layout, LayoutAttribute which, const void* value, size_t bytes))                    \
  _(cublasLtMatmulPreferenceCreate, Result, create_preference, (Preference * preference))       \
  _(cublasLtMatmulPreferenceDestroy, Result, destroy_preference, (Preference preference))       \
  _(cublasLtMatmulPreferenceSetAttribute, Result, set_preference,                               \
    (Preference preference, PreferenceAttribute which, const void* value, size_t bytes))        \
  _(cublasLtMatmulAlgoGetHeuristic, Result, find_algorithms,                                    \
    (Handle handle, Operation operation, Layout a, Layout b, Layout c, Layout d,                \
     Preference preference, int wanted, Heuristic* found, int* count))                          \
  _(cublasLtMatmul, Result, multiply,                                                           \
    (Handle handle, Operation operation, const void* alpha, const void* a, Layout a_layout,     \
     const void* b, Layout b_layout, const void* beta, const void* c, Layout c_layout, void* d, \
     Layout d_layout, const Algorithm* algorithm, void* workspace, size_t workspace_bytes,      \
     Stream stream))

struct Library {
  HOLOGRAM_CUBLAS_LT_FUNCTIONS(HOLOGRAM_VENDOR_MEMBER)
};

// Opens the library at the first call. Throws Error with why it cannot be used, each time.
const Library& library();

// "13.0.0"
std::string version_text();

// Throws Error unless it is kOk: "hologram: <what> failed: <status>".
void check(Result result, const char* what);

}  // namespace hologram::cuda::lt

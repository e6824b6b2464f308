// Attention that a queue computes with kernels of its own.
#pragma once

#include <cstdint>

#include "atlas/dtype.h"

namespace hologram {

// out = softmax(scale * query * key^T + mask) * value, for each head of each of a batch.
struct Attention {
  // Matrices, one for each head of each of a batch: the elements of a row follow each other, the
  // next row, head and batch come so many elements later.
  struct Matrices {
    void* data = nullptr;
    int64_t batch = 0, head = 0, row = 0;
  };
  // One number for each query and each key, which may be the same one for several.
  struct Mask {
    const void* data = nullptr;
    int64_t batch = 0, head = 0, row = 0, column = 0;
  };

  DType dtype = DType::f32;  // of all but the sums: f32, f64, bf16 or f16
  int64_t batch = 0, heads = 0, queries = 0, keys = 0, head_size = 0;  // none is 0
  // Of keys and values: a divisor of `heads`, so many heads of queries in a row share one.
  int64_t key_heads = 0;
  Matrices query;       // queries x head_size
  Matrices key, value;  // keys x head_size
  Matrices out;         // like `query`, apart from all that is read
  Mask mask;            // queries x keys, or null
  Matrices sums;        // f32, one for each query: the logarithm of the sum of its exponentials
  bool causal = false;  // the first query has the first key only, the next one two, and so on
  double scale = 1;
};

// What the gradients of an attention's operands need beside it: there `out` and `sums` are read. A
// row of P = softmax(...) is computed again from them.
struct AttentionGradients {
  using Matrices = Attention::Matrices;

  Matrices of_out;                      // like `out`, given
  int64_t of_out_column = 1;            // from element to element of its rows
  Matrices of_query, of_key, of_value;  // like `query`, `key` and `value`; apart from what is read
  void* memory = nullptr;               // f32, batch * heads * queries, for what is between kernels
};

}  // namespace hologram

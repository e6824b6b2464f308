// A matrix product that a queue computes with a library of its hardware's vendor.
#pragma once

#include <cstdint>
#include <string>

#include "atlas/dtype.h"

namespace hologram {

// out = f(alpha * a * b + beta * c + bias), of one matrix, or of each of `count`.
struct Product {
  enum class Function : uint8_t { none, gelu_tanh };  // f
  // By rows, or by columns: the elements of one follow each other, the next one comes `leading`
  // elements later, and the next matrix `stride` elements later.
  struct Matrix {
    void* data = nullptr;
    int64_t leading = 0;
    int64_t stride = 0;
    bool by_columns = false;
  };
  // Of half precision: what sums of parts of a product may be.
  enum class Sums : uint8_t { narrow, wide, whole };  // rounded; not; there are no parts

  DType dtype = DType::f32;                             // of all: f32, f64, bf16 or f16
  int64_t rows = 0, columns = 0, inner = 0, count = 1;  // none is 0
  Matrix a, b;                                          // rows x inner, inner x columns
  Matrix c;                    // rows x columns by rows, or `out`; read where beta is not 0
  Matrix out;                  // by rows; apart from a and b
  const void* bias = nullptr;  // of each column, or null
  double alpha = 1, beta = 0;
  bool tf32 = false;  // f32 may be multiplied with the mantissa of TF32
  Sums sums = Sums::narrow;
  Function function = Function::none;
};

// What computes the products of a device's queues (Queue::product); where there is none, there are
// no kernels for attention either (Queue::attention).
struct ProductLibrary {
  bool usable = false;
  std::string description;  // "cublasLt 13.0.0", or what is missing; empty where there is no such
};

}  // namespace hologram

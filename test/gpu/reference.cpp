// What the CPU backend's headers give, for the tests of the dialect: the bits that it has to give.
#include <cstring>

// What it declares and what it keeps to itself.
#include "test/interpret.cpp"

using namespace hologram;
using namespace hologram::cpu;

extern "C" {

// n elements, by the numbers of DType.
void reference_convert(int from, int to, const char* x, char* y, size_t n) {
  with_element(static_cast<DType>(from), [&]<class S>() {
    with_element(static_cast<DType>(to), [&]<class D>() {
      for (size_t i = 0; i < n; ++i) {
        unsigned char bytes[sizeof(S)];
        std::memcpy(bytes, x + i * sizeof(S), sizeof(S));
        if constexpr (std::is_same_v<S, bool>) bytes[0] = bytes[0] != 0;
        S s;
        std::memcpy(&s, bytes, sizeof s);
        const D d = convert<D>(s);
        std::memcpy(y + i * sizeof d, &d, sizeof d);
      }
    });
  });
}

// By the name of an operation and the number of a compute type: f32, f64, i64.
int reference_op(const char* name, int type, const void* x, const void* y, const void* z,
                 void* result, size_t n) {
  int op = 0;
  while (op < kOpCount && std::strcmp(kOpTable[op].name, name) != 0) ++op;
  if (op == kOpCount) return 1;
  const auto run = [&]<class T>(T*) {
    const auto *a = static_cast<const T*>(x), *b = static_cast<const T*>(y),
               *c = static_cast<const T*>(z);
    for (size_t i = 0; i < n; ++i) {
      static_cast<T*>(result)[i] = interpret_op<T>(static_cast<Op>(op), a[i], b[i], c[i]);
    }
  };
  switch (static_cast<ComputeType>(type)) {
    case ComputeType::f32: run(static_cast<float*>(nullptr)); break;
    case ComputeType::f64: run(static_cast<double*>(nullptr)); break;
    case ComputeType::i64: run(static_cast<int64_t*>(nullptr)); break;
  }
  return 0;
}

// Elements 0 to n - 1 of a draw, in the compute type of its dtype.
void reference_draw(int draw, int dtype, uint64_t seed, uint64_t offset, uint64_t range,
                    void* result, size_t n) {
  const uint64_t immediates[] = {seed, offset, range};
  const auto run = [&]<class T>(T*) {
    for (size_t i = 0; i < n; ++i) {
      static_cast<T*>(result)[i] =
          interpret_draw<T>(static_cast<Draw>(draw), static_cast<DType>(dtype), immediates, i);
    }
  };
  switch (static_cast<DType>(dtype)) {
    case DType::i64: run(static_cast<int64_t*>(nullptr)); break;
    case DType::f64: run(static_cast<double*>(nullptr)); break;
    default: run(static_cast<float*>(nullptr)); break;
  }
}

}  // extern "C"

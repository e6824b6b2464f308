#include "cpu/fill.h"

#include <cstdint>
#include <cstring>

#include "cpu/vectorize.h"

namespace hologram::cpu {
namespace {

template <class T>
void fill_with(void* dst, const void* element, size_t n) {
  T value;
  std::memcpy(&value, element, sizeof value);
  T* out = static_cast<T*>(dst);
  for (size_t i = 0; i < n; ++i) out[i] = value;
}

struct Pair {
  uint64_t low, high;
};

bool all_bytes_equal(const void* element, size_t size) {
  const unsigned char* bytes = static_cast<const unsigned char*>(element);
  return std::memcmp(bytes, bytes + 1, size - 1) == 0;
}

}  // namespace

void fill(void* dst, const void* element, size_t element_size, size_t n) noexcept {
  if (n == 0) return;
  if (all_bytes_equal(element, element_size)) {  // zero above all
    std::memset(dst, *static_cast<const unsigned char*>(element), n * element_size);
    return;
  }
  switch (element_size) {
    case 2: fill_with<uint16_t>(dst, element, n); break;
    case 4: fill_with<uint32_t>(dst, element, n); break;
    case 8: fill_with<uint64_t>(dst, element, n); break;
    case 16: fill_with<Pair>(dst, element, n); break;
  }
}

}  // namespace hologram::cpu

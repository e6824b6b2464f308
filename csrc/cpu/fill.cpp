#include "cpu/fill.h"

#include <algorithm>
#include <cstring>

namespace hologram::cpu {

// The first elements are copied, further on: a copy is as fast as a processor stores, whatever the
// compiler makes of loops.
void fill(void* dst, const void* element, size_t element_size, size_t n) noexcept {
  if (n == 0) return;
  const auto* bytes = static_cast<const unsigned char*>(element);
  if (std::memcmp(bytes, bytes + 1, element_size - 1) == 0) {  // zero above all
    std::memset(dst, *bytes, n * element_size);
    return;
  }
  constexpr size_t kPiece = 4096;  // stays in the cache while it is copied
  auto* out = static_cast<char*>(dst);
  const size_t size = n * element_size;
  std::memcpy(out, element, element_size);
  size_t done = element_size;
  while (done < std::min(size, kPiece)) {
    const size_t more = std::min(done, size - done);
    std::memcpy(out + done, out, more);
    done += more;
  }
  const size_t piece = done;
  while (done < size) {
    const size_t more = std::min(piece, size - done);
    std::memcpy(out + done, out, more);
    done += more;
  }
}

}  // namespace hologram::cpu

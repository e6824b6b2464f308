#include "metal/products.h"

#include <tuple>

namespace hologram::metal {
namespace {

// What the kernel has as macros: elements of a block along either side, and its threads; flags.
constexpr int64_t kTile = 32;
constexpr uint32_t kThreads = 128;
constexpr uint32_t kAByColumns = 1, kBByColumns = 2, kHasBias = 4;

}  // namespace

std::optional<ProductLaunch> launch_of(const Product& product) {
  if (!is_native(product.dtype)) return std::nullopt;
  const auto tiles = [](int64_t n) { return (n + kTile - 1) / kTile; };
  for (const int64_t n : {product.rows, product.columns, product.inner}) {
    if (n > INT32_MAX) return std::nullopt;
  }
  const __int128 blocks =
      static_cast<__int128>(tiles(product.rows)) * tiles(product.columns) * product.count;
  if (blocks > INT32_MAX) return std::nullopt;
  const auto& [a, b, c, out] = std::tie(product.a, product.b, product.c, product.out);
  const bool has_c = product.beta != 0;
  ProductLaunch launch{};
  launch.kernel = std::string("hg_product_") + dtype_name(product.dtype);
  launch.text = "#include \"product.h\"\n";
  launch.addresses = {a.data, b.data, has_c ? c.data : out.data, out.data,
                      product.bias != nullptr ? product.bias : a.data};
  launch.count = launch.addresses.size();
  launch.parameters = {.a_stride = number(a.stride),
                       .b_stride = number(b.stride),
                       .c_stride = number(c.stride),
                       .out_stride = number(out.stride),
                       .a_leading = number(a.leading),
                       .b_leading = number(b.leading),
                       .c_leading = number(c.leading),
                       .out_leading = number(out.leading),
                       .rows = static_cast<uint32_t>(product.rows),
                       .columns = static_cast<uint32_t>(product.columns),
                       .inner = static_cast<uint32_t>(product.inner),
                       .flags = (a.by_columns ? kAByColumns : 0) |
                                (b.by_columns ? kBByColumns : 0) |
                                (product.bias != nullptr ? kHasBias : 0),
                       .alpha = static_cast<float>(product.alpha),
                       .beta = static_cast<float>(product.beta)};
  launch.blocks = static_cast<uint32_t>(blocks);
  launch.threads = kThreads;
  return launch;
}

}  // namespace hologram::metal

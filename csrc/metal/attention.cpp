#include "metal/attention.h"

namespace hologram::metal {
namespace {

// What the kernels have as macros: their threads, flags, and rows of a block times the elements of
// a head.
constexpr uint32_t kThreads = 128;
constexpr uint32_t kCausal = 1, kHasMask = 2;
constexpr int64_t kForwardRows = 32, kBackwardElements = 2048;

// Elements of a head that kernels have room for; 0 where it is larger.
int64_t room_for(int64_t head_size) {
  return head_size <= 64 ? 64 : head_size <= 128 ? 128 : 0;
}

AttentionParameters::Strides strides_of(const Attention::Matrices& matrices) {
  return {number(matrices.batch), number(matrices.head), number(matrices.row)};
}

// Of the kernel `kind`, a block of which has `rows` of the `length` there are in each of `heads`;
// none where that does not fit.
std::optional<AttentionLaunch> launch_of(const Attention& its, const char* kind, int64_t rows,
                                         int64_t length, int64_t heads) {
  const int64_t room = room_for(its.head_size);
  if (!is_native(its.dtype) || room == 0) return std::nullopt;
  for (const int64_t n : {its.queries, its.keys, its.heads, its.batch}) {
    if (n > INT32_MAX) return std::nullopt;
  }
  const __int128 blocks = static_cast<__int128>((length + rows - 1) / rows) * heads * its.batch;
  if (blocks > INT32_MAX) return std::nullopt;
  AttentionLaunch launch{};
  const std::string dtype = dtype_name(its.dtype);
  const std::string of = dtype + "_" + std::to_string(room);
  launch.kernel = kind + of;
  launch.text = "#include \"attention.h\"\nHG_ATTENTION_KERNELS(" + dtype + ", " +
                std::to_string(room) + ")\n";
  const bool has_mask = its.mask.data != nullptr;
  launch.addresses = {its.query.data, its.key.data,
                      its.value.data, has_mask ? its.mask.data : its.query.data,
                      its.out.data,   its.sums.data};
  launch.count = 6;
  launch.parameters = {
      .query = strides_of(its.query),
      .key = strides_of(its.key),
      .value = strides_of(its.value),
      .out = strides_of(its.out),
      .sums = strides_of(its.sums),
      .mask = {number(its.mask.batch), number(its.mask.head), number(its.mask.row)},
      .mask_column = number(its.mask.column),
      .of_out_column = 1,
      .of_out = {},
      .of_query = {},
      .of_key = {},
      .of_value = {},
      .heads = static_cast<uint32_t>(its.heads),
      .group = static_cast<uint32_t>(its.heads / its.key_heads),
      .queries = static_cast<uint32_t>(its.queries),
      .keys = static_cast<uint32_t>(its.keys),
      .head_size = static_cast<uint32_t>(its.head_size),
      .flags = (its.causal ? kCausal : 0) | (has_mask ? kHasMask : 0),
      .scale = static_cast<float>(its.scale)};
  launch.blocks = static_cast<uint32_t>(blocks);
  launch.threads = kThreads;
  return launch;
}

void add(const AttentionGradients& gradients, AttentionLaunch& launch) {
  const auto& [of_out, of_out_column, of_query, of_key, of_value, memory] = gradients;
  launch.addresses[6] = of_out.data;
  launch.addresses[7] = memory;
  launch.addresses[8] = of_query.data;
  launch.addresses[9] = of_key.data;
  launch.addresses[10] = of_value.data;
  launch.count = 11;
  launch.parameters.of_out_column = number(of_out_column);
  launch.parameters.of_out = strides_of(of_out);
  launch.parameters.of_query = strides_of(of_query);
  launch.parameters.of_key = strides_of(of_key);
  launch.parameters.of_value = strides_of(of_value);
}

}  // namespace

std::optional<AttentionLaunch> launch_of(const Attention& attention) {
  return launch_of(attention, "hg_attention_", kForwardRows, attention.queries, attention.heads);
}

std::optional<std::array<AttentionLaunch, 2>> launches_of(const Attention& attention,
                                                          const AttentionGradients& gradients) {
  const int64_t room = room_for(attention.head_size);
  if (room == 0) return std::nullopt;
  const int64_t rows = kBackwardElements / room;
  auto of_queries =
      launch_of(attention, "hg_attention_of_queries_", rows, attention.queries, attention.heads);
  auto of_keys =
      launch_of(attention, "hg_attention_of_keys_", rows, attention.keys, attention.key_heads);
  if (!of_queries || !of_keys) return std::nullopt;
  add(gradients, *of_queries);
  add(gradients, *of_keys);
  return std::array{*std::move(of_queries), *std::move(of_keys)};
}

}  // namespace hologram::metal

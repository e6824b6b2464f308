// The CPU's fused attention: by kernels of the device's own where its queue has such
// (Queue::attention), in the order of the queue; else torch's CPU kernel.
//
// Results look as torch's kernel makes them: the output lies like the queries, its sums by queries,
// and gradients with the heads of a row one after the other.
#include "aten/precompiled.h"

#include "aten/library_attention.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>

#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "aten/library_products.h"
#include "aten/operand.h"
#include "aten/queue_order.h"
#include "aten/quick.h"
#include "aten/record_call.h"
#include "atlas/attention.h"
#include "atlas/device.h"

namespace hologram::aten {
namespace {

using at::Tensor;
using Matrices = Attention::Matrices;

constexpr c10::DispatchKeySet kOurs(c10::DispatchKey::PrivateUse1);

// The arguments that the operator and that of its gradients share.
struct AttentionTerms {
  const Tensor& query;
  const Tensor& key;
  const Tensor& value;
  double dropout;
  bool causal;
  const std::optional<Tensor>& mask;
  std::optional<double> scale;
};

bool has_dense_rows(const Tensor& tensor) {
  return tensor.stride(3) == 1 || tensor.size(3) == 1;
}

// Of (batch, head, row, ...).
Matrices matrices_of(const Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  return {const_cast<void*>(impl->data()), impl->stride(0), impl->stride(1), impl->stride(2)};
}

// A mask of (query, key) or (batch, head, query, key), each as many as there are or one; false
// where it is another.
bool set_mask(const Tensor& mask, at::IntArrayRef sizes, Attention& attention) {
  const int64_t rank = mask.dim();
  if (rank != 2 && rank != 4) return false;
  std::array<int64_t, 4> strides{};
  for (int64_t i = 0; i < rank; ++i) {
    const auto at = static_cast<size_t>(4 - rank + i);
    if (mask.size(i) == 1) continue;
    if (mask.size(i) != sizes[at]) return false;
    strides[at] = mask.stride(i);
  }
  attention.mask = {mask.unsafeGetTensorImpl()->data(), strides[0], strides[1], strides[2],
                    strides[3]};
  return true;
}

// Describes the operands where they are such that a queue may have kernels for them; what does not
// fit is torch's to refuse.
std::optional<Attention> attention_of(const AttentionTerms& terms) {
  const auto& [query, key, value, dropout, causal, mask, scale] = terms;
  if (!query.defined() || query.device().type() != kHologram || dropout != 0) return std::nullopt;
  const auto device = query.device().index();
  if (!target_of(device).is_cpu() || !has_product_library(device)) return std::nullopt;
  for (const Tensor* const tensor : {&query, &key, &value}) {
    if (!tensor->defined() || tensor->dim() != 4 || !is_plain_operand(*tensor, device) ||
        tensor->scalar_type() != query.scalar_type() || !has_dense_rows(*tensor)) {
      return std::nullopt;
    }
  }
  Attention attention;
  switch (query.scalar_type()) {
    case c10::ScalarType::Float: attention.dtype = DType::f32; break;
    case c10::ScalarType::Half: attention.dtype = DType::f16; break;
    case c10::ScalarType::BFloat16: attention.dtype = DType::bf16; break;
    default: return std::nullopt;
  }
  attention.batch = query.size(0);
  attention.heads = query.size(1);
  attention.queries = query.size(2);
  attention.keys = key.size(2);
  attention.head_size = query.size(3);
  attention.key_heads = key.size(1);
  const std::array<int64_t, 4> of_keys{attention.batch, attention.key_heads, attention.keys,
                                       attention.head_size};
  if (key.sizes() != of_keys || value.sizes() != of_keys ||
      attention.heads % attention.key_heads != 0) {
    return std::nullopt;
  }
  if (mask && mask->defined()) {
    const std::array<int64_t, 4> of_mask{attention.batch, attention.heads, attention.queries,
                                         attention.keys};
    if (!is_plain_operand(*mask, device) || mask->scalar_type() != query.scalar_type() ||
        !set_mask(*mask, of_mask, attention)) {
      return std::nullopt;
    }
  }
  attention.query = matrices_of(query);
  attention.key = matrices_of(key);
  attention.value = matrices_of(value);
  attention.causal = causal;
  attention.scale = scale ? *scale : 1 / std::sqrt(static_cast<double>(attention.head_size));
  return attention;
}

// As torch makes what is to be like another tensor.
Tensor make_like(const Tensor& tensor) {
  const auto strides = tensor.is_non_overlapping_and_dense()
                           ? tensor.strides().vec()
                           : at::infer_dense_strides(tensor.sizes(), tensor.strides());
  return make_fresh(tensor.sizes(), strides, tensor.dtype(), tensor.device().index());
}

// Of (batch, head, row) or more, where the heads of a row follow each other.
Tensor make_by_rows(at::IntArrayRef sizes, c10::ScalarType type, c10::DeviceIndex device) {
  const int64_t heads = sizes[1], rows = sizes[2], elements = sizes.size() == 4 ? sizes[3] : 1;
  const std::array<int64_t, 4> strides{rows * heads * elements, elements, heads * elements, 1};
  return make_fresh(sizes, at::IntArrayRef(strides).slice(0, sizes.size()),
                    c10::scalarTypeToTypeMeta(type), device);
}

// In the order of the queue, behind what is recorded on the memory.
template <class Submit>
bool enqueue(at::ArrayRef<const Tensor*> read, at::ArrayRef<const Tensor*> written,
             Submit&& submit) {
  Channel& channel = current_channel(written[0]->device().index());
  c10::SmallVector<BlockState*, 12> used;
  c10::SmallVector<const Block*, 4> results;
  for (const Tensor* const tensor : read) {
    used.push_back(operand_block(tensor->unsafeGetTensorImpl()));
  }
  for (const Tensor* const tensor : written) {
    Block* const block = operand_block(tensor->unsafeGetTensorImpl());
    used.push_back(block);
    results.push_back(block);
  }
  return run_in_queue_order(channel, {used.data(), used.size()}, {results.data(), results.size()},
                            std::forward<Submit>(submit));
}

// ---- forward ----

using Forward = at::_ops::_scaled_dot_product_flash_attention_for_cpu;

std::optional<std::tuple<Tensor, Tensor>> attention_by_queue(const AttentionTerms& terms) {
  auto attention = attention_of(terms);
  if (!attention) return std::nullopt;
  if (C10_UNLIKELY(in_forked_child())) refuse_forked_child();
  const Tensor& query = terms.query;
  const Tensor out = make_like(query);
  if (!has_dense_rows(out)) return std::nullopt;
  const Tensor sums = make_by_rows(query.sizes().slice(0, 3), at::kFloat, query.device().index());
  attention->out = matrices_of(out);
  attention->sums = matrices_of(sums);
  c10::SmallVector<const Tensor*, 4> read{&query, &terms.key, &terms.value};
  if (attention->mask.data != nullptr) read.push_back(&*terms.mask);
  const bool enqueued =
      enqueue(read, {&out, &sums}, [&](Queue& queue) { return queue.attention(*attention); });
  if (!enqueued) return std::nullopt;
  note_native(quick_kernel<Forward>().op().counter());
  return std::tuple(out, sums);
}

std::tuple<Tensor, Tensor> attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                     double dropout, bool causal, const std::optional<Tensor>& mask,
                                     std::optional<double> scale) {
  if (auto results = attention_by_queue({query, key, value, dropout, causal, mask, scale})) {
    return *std::move(results);
  }
  return quick_kernel<Forward>()(kOurs, query, key, value, dropout, causal, mask, scale);
}

// ---- backward ----

using Backward = at::_ops::_scaled_dot_product_flash_attention_for_cpu_backward;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;

std::optional<Gradients> gradients_by_queue(const AttentionTerms& terms, const Tensor& of_out,
                                            const Tensor& out, const Tensor& sums) {
  auto attention = attention_of(terms);
  if (!attention) return std::nullopt;
  if (C10_UNLIKELY(in_forked_child())) refuse_forked_child();
  const Tensor& query = terms.query;
  const auto device = query.device().index();
  const auto type = query.scalar_type();
  for (const Tensor* const tensor : {&of_out, &out}) {
    if (!tensor->defined() || !is_plain_operand(*tensor, device) || tensor->scalar_type() != type ||
        tensor->sizes() != query.sizes()) {
      return std::nullopt;
    }
  }
  if (!has_dense_rows(out)) return std::nullopt;
  if (!sums.defined() || !is_plain_operand(sums, device) || sums.scalar_type() != at::kFloat ||
      sums.sizes() != query.sizes().slice(0, 3)) {
    return std::nullopt;
  }
  const Tensor of_query = make_by_rows(query.sizes(), type, device);
  const Tensor of_key = make_by_rows(terms.key.sizes(), type, device);
  const Tensor of_value = make_by_rows(terms.value.sizes(), type, device);
  const Tensor memory = make_by_rows(sums.sizes(), at::kFloat, device);
  attention->out = matrices_of(out);
  attention->sums = matrices_of(sums);
  // Often one number for all, expanded.
  const AttentionGradients gradients{.of_out = matrices_of(of_out),
                                     .of_out_column = of_out.stride(3),
                                     .of_query = matrices_of(of_query),
                                     .of_key = matrices_of(of_key),
                                     .of_value = matrices_of(of_value),
                                     .memory = matrices_of(memory).data};
  c10::SmallVector<const Tensor*, 8> read{&query, &terms.key, &terms.value, &out, &sums, &of_out};
  if (attention->mask.data != nullptr) read.push_back(&*terms.mask);
  const bool enqueued = enqueue(read, {&of_query, &of_key, &of_value, &memory}, [&](Queue& queue) {
    return queue.attention_backward(*attention, gradients);
  });
  if (!enqueued) return std::nullopt;
  note_native(quick_kernel<Backward>().op().counter());
  return Gradients(of_query, of_key, of_value);
}

Gradients attention_backward(const Tensor& of_out, const Tensor& query, const Tensor& key,
                             const Tensor& value, const Tensor& out, const Tensor& sums,
                             double dropout, bool causal, const std::optional<Tensor>& mask,
                             std::optional<double> scale) {
  const AttentionTerms terms{query, key, value, dropout, causal, mask, scale};
  if (auto results = gradients_by_queue(terms, of_out, out, sums)) return *std::move(results);
  return quick_kernel<Backward>()(kOurs, of_out, query, key, value, out, sums, dropout, causal,
                                  mask, scale);
}

}  // namespace

void register_library_attention() {
  serve_by_calls("_scaled_dot_product_flash_attention_for_cpu", &attention);
  serve_by_calls("_scaled_dot_product_flash_attention_for_cpu_backward", &attention_backward);
}

}  // namespace hologram::aten

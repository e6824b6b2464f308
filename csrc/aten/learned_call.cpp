#include "aten/precompiled.h"

#include "aten/learned_call.h"

#include <ATen/Context.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/copy.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <iterator>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "aten/block.h"
#include "aten/empty_requests.h"
#include "aten/operand.h"
#include "aten/prepare.h"
#include "aten/record_call.h"
#include "aten/report.h"
#include "aten/transfer.h"
#include "aten/vendor_launch.h"
#include "atlas/device.h"

namespace hologram::aten {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

// Operators of which a call may be learned, with all their overloads: what their results look like
// follows from shapes, dtypes and numbers alone.
const std::unordered_set<std::string>& learnable() {
  static const auto* names = new std::unordered_set<std::string>{
      // Elements by their indices; with a mask among these their number depends on values, see
      // describe().
      "index", "index_select", "index_add", "index_add_", "index_copy", "index_copy_",
      "index_fill_", "_index_put_impl_", "gather", "take", "scatter", "scatter_", "scatter_add",
      "scatter_add_", "scatter_reduce", "scatter_reduce_", "embedding_dense_backward",
      "masked_fill_",
      // Put together and moved.
      "cat", "copy_", "fill_", "zero_", "flip", "roll", "tril", "tril_", "triu", "triu_",
      "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d",
      "reflection_pad2d_backward", "replication_pad2d_backward", "pixel_shuffle", "pixel_unshuffle",
      "im2col", "col2im", "isneginf", "isposinf",
      // Truth values.
      "bitwise_and", "bitwise_and_", "bitwise_or", "bitwise_or_", "bitwise_xor", "bitwise_xor_",
      // Sorted.
      "sort", "topk",
      // Products, convolutions, attention.
      "addmv", "baddbmm", "addbmm", "dot", "convolution", "convolution_backward",
      "_scaled_dot_product_flash_attention_for_cpu",
      "_scaled_dot_product_flash_attention_for_cpu_backward",
      // Pooling and resampling.
      "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d",
      "avg_pool2d_backward", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward",
      "adaptive_max_pool2d", "adaptive_max_pool2d_backward", "upsample_nearest2d",
      "upsample_nearest2d_backward", "upsample_bilinear2d", "upsample_bilinear2d_backward",
      "upsample_bicubic2d", "upsample_bicubic2d_backward", "upsample_linear1d",
      "upsample_linear1d_backward", "upsample_nearest1d", "upsample_nearest1d_backward",
      "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"};
  return *names;
}

// Those of them, and others, that a vendor's device has kernels for which cost more of the host's
// time than to record them, and may be captured.
const std::unordered_set<std::string>& launchable() {
  static const auto* names =
      new std::unordered_set<std::string>{"cat",
                                          "embedding_dense_backward",
                                          "index_select",
                                          "_scaled_dot_product_cudnn_attention",
                                          "_scaled_dot_product_cudnn_attention_backward",
                                          "_scaled_dot_product_efficient_attention",
                                          "_scaled_dot_product_efficient_attention_backward"};
  return *names;
}

// Of their results, in bytes. Those with more take the device longer than the host, so that nothing
// is gained, and what they work on beside would stay taken for as long as their graph.
constexpr size_t kMostRecorded = size_t{8} << 20;
// What has been asked for less often runs at once: programs that come again are worth it, and
// libraries plan anew for each thread that calls them.
constexpr uint32_t kTimesAtOnce = 32;

// Where a tensor is among the arguments: itself, or an item of a list.
struct Seat {
  uint16_t position;
  int32_t item;  // -1: itself
  bool written;
};

// What a call has been given, but for the memory: shapes, dtypes and numbers.
using Key = c10::SmallVector<int64_t, 64>;
// What is known lives long, and comes and goes with shapes: in memory of its own, so that it leaves
// no holes in everybody else's. Leaked on purpose: programs may hold some of it to the end.
std::pmr::memory_resource* kept_memory() {
  static auto* const memory = new std::pmr::synchronized_pool_resource();
  return memory;
}

// Kept, it takes no more room than it needs; looked up, no memory is taken for it.
using KeptKey = std::pmr::vector<int64_t>;
using KeyWords = std::span<const int64_t>;
struct KeyHash {
  using is_transparent = void;
  size_t operator()(KeyWords key) const noexcept {
    uint64_t hash = key.size();
    for (const int64_t word : key) {
      hash = std::rotl((hash ^ static_cast<uint64_t>(word)) * 0x9e3779b97f4a7c15, 29);
    }
    return hash;
  }
};
struct SameKey {
  using is_transparent = void;
  bool operator()(KeyWords a, KeyWords b) const noexcept { return std::ranges::equal(a, b); }
};

// One result.
struct Return {
  enum class Kind : uint8_t { undefined, argument, fresh, number } kind = Kind::undefined;
  size_t seat = 0;  // of an argument that is returned
  int64_t number = 0;
  std::optional<TensorShape> shape;  // of a fresh one
  size_t bytes = 0;                  // of its storage
  size_t before = 0;                 // requests for as many that the kernel makes before
};

// What is known of calls that are given the same.
struct Results {
  std::pmr::vector<Return> all{kept_memory()};
  bool recordable = false;
  // Kernels may go another way when they are called again: then a result is not where it should be,
  // and is copied. A few times it is looked at anew how they go about it.
  static constexpr int kMostLooks = 4;
  int looks = 1;
  mutable std::atomic<bool> missed = false;
  // Of a vendor's kernel: how often it was asked for, and the overload that is given the tensor for
  // its only result, where that is a kernel, too.
  mutable std::atomic<uint32_t> times = 0;
  std::optional<c10::OperatorHandle> into;
  bool is_to_be_looked_at() const {
    return missed.load(std::memory_order_relaxed) && looks < kMostLooks;
  }
};
using KnownResults = std::shared_ptr<const Results>;

// The call in a program. Memory: that of all seats, of the seats that are written, of what is
// fresh.
class OperatorCall final : public KernelCall {
 public:
  OperatorCall(const char* name, const c10::OperatorHandle& op) : KernelCall(name), op_(op) {}

  Stack arguments;  // without tensors
  c10::SmallVector<Seat, 4> seats;
  c10::SmallVector<TensorShape, 4> shapes;          // of the seats
  std::vector<std::pair<Seat, TensorShape>> empty;  // tensors without elements
  KnownResults results;
  size_t first_fresh = 0;
  c10::DeviceIndex device = 0;
  const DelegateTarget* vendor = nullptr;  // whose kernel it is; null: torch's for the CPU

  bool is_launched() const noexcept override { return vendor != nullptr; }
  bool is_launched_as(const Call& other) const noexcept override {
    const auto* const its = dynamic_cast<const OperatorCall*>(&other);
    return its != nullptr && its->results == results;  // of one operator's table
  }
  void launch(void* stream, std::span<void* const> memory,
              std::shared_ptr<void>* captured) override {
    compute_by([&] {
      const VendorLaunch launch(*vendor, stream);
      std::optional<CapturedMemory> used;
      if (captured != nullptr) used.emplace(vendor->allocator);
      // Where the result's tensor is given, as large a request is for something else.
      Places places = results->into ? Places() : places_in(memory);
      PlacedResults placed(device, {places.data(), places.size()});
      const EmptyRequests requests;
      Stack stack = arguments;
      call(stack, memory, *vendor, placed);
      if (captured != nullptr) *captured = used->keep(stack);
    });
  }

 private:
  using Places = c10::SmallVector<PlacedResults::Place, 3>;
  Places places_in(std::span<void* const> memory) const {
    Places places;
    for (const Return& result : results->all) {
      if (result.kind == Return::Kind::fresh) {
        places.push_back({memory[first_fresh + places.size()], result.bytes, result.before});
      }
    }
    return places;
  }

  void compute(std::span<void* const> memory) override {
    Places places = places_in(memory);
    PlacedResults placed(device, {places.data(), places.size()});
    compute_into(memory, placed);
    TORCH_INTERNAL_ASSERT(placed.all_free(), "a kernel keeps the memory of its result");
  }

  void compute_into(std::span<void* const> memory, PlacedResults& placed) {
    static const DelegateTarget host;
    Stack stack = std::move(arguments);
    call(stack, memory, host, placed);
  }

  // By a target's kernel.
  void call(Stack& stack, std::span<void* const> memory, const DelegateTarget& target,
            PlacedResults& placed) const {
    const ResultRequests its_own;  // a call that is learned may wait for this one
    for (size_t i = 0; i < seats.size(); ++i) {
      seat(stack[seats[i].position], seats[i].item, shapes[i].over(memory[i], target));
    }
    for (const auto& [its, shape] : empty) {
      seat(stack[its.position], its.item, shape.over(nullptr, target));
    }
    const auto& into = results->into;
    if (into) stack.emplace_back(results->all.front().shape->over(memory[first_fresh], target));
    (into ? *into : op_).redispatchBoxed(c10::DispatchKeySet(target.key), &stack);
    placed.close();
    move_results(memory.subspan(first_fresh), stack, target);
  }

  // To where they should be.
  void move_results(std::span<void* const> places, const Stack& stack,
                    const DelegateTarget& target) const {
    const auto& all = results->all;
    c10::SmallVector<std::pair<Tensor, Tensor>, 3> moves;  // from, to
    size_t number = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].kind != Return::Kind::fresh) continue;
      void* const place = places[number++];
      const Tensor& made = stack[stack.size() - all.size() + i].toTensor();
      const void* const data = made.unsafeGetTensorImpl()->data();
      if (data == place && made.strides() == at::IntArrayRef(all[i].shape->strides)) continue;
      // One that lies in a place must not be overwritten by what comes there.
      const bool in_a_place = std::ranges::find(places, data) != places.end();
      moves.emplace_back(in_a_place ? made.clone() : made, all[i].shape->over(place, target));
    }
    for (const auto& [from, to] : moves) to.copy_(from);
    // Where the host cannot touch the memory, kernels for CPUs have all of them copied, and those
    // of a vendor what they ask for in a way that nobody sees: looking again would not help.
    if (!moves.empty() && is_host_addressable(device)) {
      results->missed.store(true, std::memory_order_relaxed);
    }
  }

  static void seat(IValue& value, int32_t item, Tensor tensor) {
    if (item < 0) {
      value = std::move(tensor);
    } else if (value.isTensorList()) {
      value.toTensorList().set(static_cast<size_t>(item), std::move(tensor));
    } else {
      value.toOptionalTensorList().set(static_cast<size_t>(item), std::move(tensor));
    }
  }

  const c10::OperatorHandle op_;
};

// An argument without the memory that it stands for: the places of tensors are left empty.
IValue without_tensors(const IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? IValue() : value;
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    list.resize(value.toListRef().size());
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    list.resize(value.toListRef().size());
    return list;
  }
  return value;
}

}  // namespace

struct LearnedCalls::Table {
  // Then the one goes that was asked for longest ago: models have some dozen of each operator's,
  // while in a loop over batches of all lengths more would hardly be asked for again.
  static constexpr size_t kMost = 128;

  struct Row {
    KnownResults results;
    std::atomic<uint64_t> asked;
  };
  std::shared_mutex mutex;
  std::pmr::unordered_map<KeptKey, Row, KeyHash, SameKey> rows{kept_memory()};
  std::atomic<uint64_t> questions = 0;

  KnownResults find(KeyWords key) {
    const std::shared_lock lock(mutex);
    const auto found = rows.find(key);
    if (found == rows.end()) return nullptr;
    found->second.asked.store(++questions, std::memory_order_relaxed);
    return found->second.results;
  }
  void keep(KeyWords key, KnownResults results) {
    const std::unique_lock lock(mutex);
    if (const auto found = rows.find(key); found != rows.end()) {
      found->second.results = std::move(results);
      return;
    }
    if (rows.size() == kMost) {
      const auto asked = [](const auto& row) { return row.second.asked.load(); };
      rows.erase(std::ranges::min_element(rows, {}, asked));
    }
    Row& row = rows[KeptKey(key.begin(), key.end(), kept_memory())];
    row.results = std::move(results);
    row.asked = ++questions;
  }
};

namespace {

// One call: what is looked up, and the tensors that it is given.
class Attempt {
 public:
  // Of calls on certain devices only.
  explicit Attempt(c10::function_ref<bool(c10::DeviceIndex)> records) : records_(records) {}

  // Whether it is of a kind that can be recorded.
  bool describe(const CallSchema& schema, const Stack& stack) {
    const size_t begin = stack.size() - schema.argument_count;
    auto arg = schema.args.begin();
    for (size_t position = 0; position < schema.argument_count; ++position) {
      const IValue& value = stack[begin + position];
      position_ = static_cast<uint16_t>(position);
      written_ = false;
      if (arg != schema.args.end() && arg->position == position) {
        written_ = arg->written;
        const bool tensors = arg->kind == ArgKind::tensor || arg->kind == ArgKind::tensor_list ||
                             arg->kind == ArgKind::optional_list;
        ++arg;
        if (!tensors && !value.isNone()) return false;
      }
      if (!add(value)) return false;
    }
    return !tensors.empty() && keeps_apart();
  }

  c10::DeviceIndex device() const { return tensors[0].device().index(); }

  KeyWords words() const { return {key.data(), key.size()}; }

  Key key;
  c10::SmallVector<Tensor, 4> tensors;  // with elements
  c10::SmallVector<Seat, 4> seats;
  std::vector<std::pair<Seat, TensorShape>> empty;

 private:
  enum Tag : int64_t {
    kNone,
    kUndefined,
    kTensor,
    kList,
    kInt,
    kDouble,
    kBool,
    kInts,
    kDoubles,
    kBools,
    kString
  };

  bool add(const IValue& value) {
    if (value.isTensor()) return add(value.toTensor(), -1);
    if (value.isNone()) return put(kNone);
    if (value.isInt()) return put(kInt, value.toInt());
    if (value.isDouble()) return put(kDouble, word_of(value.toDouble()));
    if (value.isBool()) return put(kBool, value.toBool());
    if (value.isIntList()) return put_each(kInts, value.toIntList());
    if (value.isDoubleList()) return put_each(kDoubles, value.toDoubleList());
    if (value.isBoolList()) return put_each(kBools, value.toBoolList());
    if (value.isString()) return put_each(kString, value.toStringRef());
    if (value.isTensorList()) {
      const auto list = value.toTensorList();
      put(kList, static_cast<int64_t>(list.size()));
      int32_t item = 0;
      for (const Tensor& tensor : list) {
        if (!add(tensor, item++)) return false;
      }
      return true;
    }
    if (value.isOptionalTensorList()) {
      const auto list = value.toOptionalTensorList();
      put(kList, static_cast<int64_t>(list.size()));
      int32_t item = 0;
      for (const std::optional<Tensor> tensor : list) {
        // How many elements a mask has, only its values say.
        if (tensor && tensor->defined() && tensor->scalar_type() == at::kBool) return false;
        if (!(tensor ? add(*tensor, item) : put(kNone))) return false;
        ++item;
      }
      return true;
    }
    return false;
  }

  bool add(const Tensor& tensor, int32_t item) {
    if (!tensor.defined()) return put(kUndefined);
    if (tensor.device().type() != kHologram) return false;
    // One that others are put behind, as caches do.
    const auto* const impl = tensor.unsafeGetTensorImpl();
    if (tensors.empty() && !records_(tensor.device().index())) return false;
    const bool bare = impl->numel() == 0 && is_plain_strided(impl) && item >= 0 && !written_;
    if (!bare && !is_plain_operand(tensor, tensors.empty() ? tensor.device().index() : device())) {
      return false;
    }
    put(kTensor, static_cast<int64_t>(tensor.scalar_type()));
    key.push_back(tensor.device().index());
    key.push_back(tensor.dim());
    key.append(tensor.sizes().begin(), tensor.sizes().end());
    key.append(tensor.strides().begin(), tensor.strides().end());
    const Seat seat{position_, item, written_};
    if (bare) {
      empty.emplace_back(seat, TensorShape(tensor));
      return true;
    }
    tensors.push_back(tensor);
    seats.push_back(seat);
    return true;
  }

  bool put(Tag tag) {
    key.push_back(tag);
    return true;
  }
  bool put(Tag tag, int64_t word) {
    key.push_back(tag);
    key.push_back(word);
    return true;
  }

  static int64_t word_of(int64_t number) { return number; }
  static int64_t word_of(double number) { return std::bit_cast<int64_t>(number); }
  static int64_t word_of(bool flag) { return flag; }
  static int64_t word_of(char letter) { return letter; }
  template <class List>
  bool put_each(Tag tag, const List& list) {
    put(tag, static_cast<int64_t>(list.size()));
    for (const typename List::value_type element : list) key.push_back(word_of(element));
    return true;
  }

  // Whether nothing that is written shares its memory with anything else: torch's kernels look at
  // storages, and those of a program are all different ones.
  bool keeps_apart() const {
    for (size_t i = 0; i < seats.size(); ++i) {
      if (!seats[i].written) continue;
      for (size_t k = 0; k < seats.size(); ++k) {
        if (k != i && tensors[k].storage().is_alias_of(tensors[i].storage())) return false;
      }
    }
    return true;
  }

  const c10::function_ref<bool(c10::DeviceIndex)> records_;
  uint16_t position_ = 0;
  bool written_ = false;
};

// What a tensor that may be written is like.
struct Form {
  void* data;
  Sizes sizes, strides;
  explicit Form(const Tensor& tensor)
      : data(tensor.unsafeGetTensorImpl()->unsafe_storage().mutable_data_ptr().get()),
        sizes(tensor.sizes().begin(), tensor.sizes().end()),
        strides(tensor.strides().begin(), tensor.strides().end()) {}
  bool operator==(const Form&) const = default;
};
using Forms = std::vector<Form>;

// What the results are, if such calls can be recorded.
std::optional<Return> return_of(const IValue& value, const Attempt& attempt,
                                const ResultRequests& requests) {
  Return result;
  if (value.isInt()) {
    result.kind = Return::Kind::number;
    result.number = value.toInt();
    return result;
  }
  if (!value.isTensor()) return std::nullopt;
  const Tensor& tensor = value.toTensor();
  if (!tensor.defined()) return result;
  for (size_t i = 0; i < attempt.tensors.size(); ++i) {
    if (!tensor.is_same(attempt.tensors[i])) continue;
    if (!attempt.seats[i].written) return std::nullopt;
    result.kind = Return::Kind::argument;
    result.seat = i;
    return result;
  }
  if (tensor.storage_offset() != 0 || !is_plain_operand(tensor, attempt.device())) {
    return std::nullopt;
  }
  for (const Tensor& given : attempt.tensors) {
    if (tensor.storage().is_alias_of(given.storage())) return std::nullopt;
  }
  result.kind = Return::Kind::fresh;
  result.shape.emplace(tensor);
  result.bytes = tensor.storage().nbytes();
  result.before = requests.before(tensor.storage().data());
  return result;
}

// What a call was that has been made, with its results on the stack. `forms`: of its tensors,
// before.
std::shared_ptr<Results> results_of(const Attempt& attempt, const Forms& forms,
                                    const ResultRequests& requests, at::ArrayRef<IValue> made) {
  auto results =
      std::allocate_shared<Results>(std::pmr::polymorphic_allocator<Results>(kept_memory()));
  results->all.reserve(made.size());
  if (forms != Forms(attempt.tensors.begin(), attempt.tensors.end())) return results;
  bool writes = std::ranges::any_of(attempt.seats, &Seat::written);
  size_t bytes = 0;
  for (const IValue& value : made) {
    std::optional<Return> result = return_of(value, attempt, requests);
    if (!result) return results;
    writes = writes || result->kind == Return::Kind::fresh;
    bytes += result->bytes;
    results->all.push_back(std::move(*result));
  }
  results->recordable = writes && (target_of(attempt.device()).is_cpu() || bytes <= kMostRecorded);
  return results;
}

// Replaces the last `arguments` on the stack by results that are recorded.
void record(const char* name, const c10::OperatorHandle& op, Attempt& attempt,
            const KnownResults& known, Stack& stack, size_t arguments) {
  const auto device = attempt.device();
  Window& window = current_window(device);
  auto body = std::make_shared<OperatorCall>(name, op);
  c10::SmallVector<const Tensor*, 6> reads, writes;
  for (size_t i = 0; i < attempt.tensors.size(); ++i) {
    reads.push_back(&attempt.tensors[i]);
    if (attempt.seats[i].written) writes.push_back(&attempt.tensors[i]);
    body->shapes.emplace_back(attempt.tensors[i]);
  }
  body->first_fresh = reads.size() + writes.size();
  body->seats = attempt.seats;
  body->empty = std::move(attempt.empty);
  body->results = known;
  body->device = device;
  if (const DelegateTarget& target = target_of(device); !target.is_cpu()) body->vendor = &target;
  const auto begin = stack.end() - static_cast<ptrdiff_t>(arguments);
  for (auto value = begin; value != stack.end(); ++value) {
    body->arguments.push_back(without_tensors(*value));
  }
  Stack results;
  results.reserve(known->all.size());  // `writes` has addresses of it
  for (const Return& result : known->all) {
    switch (result.kind) {
      case Return::Kind::undefined: results.emplace_back(Tensor()); break;
      case Return::Kind::number: results.emplace_back(result.number); break;
      case Return::Kind::argument: results.emplace_back(attempt.tensors[result.seat]); break;
      case Return::Kind::fresh:
        results.emplace_back(make_result(window, result.shape->sizes, result.shape->strides,
                                         result.shape->dtype, result.bytes, device));
        writes.push_back(&results.back().toTensor());
        break;
    }
  }
  record_call(name, {reads.data(), reads.size()}, {writes.data(), writes.size()}, std::move(body));
  stack.erase(begin, stack.end());
  std::ranges::move(results, std::back_inserter(stack));
}

}  // namespace

std::unique_ptr<LearnedCalls> LearnedCalls::of(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  if (!name.starts_with("aten::")) return nullptr;
  const std::string of_aten = name.substr(6);
  const bool on_host = learnable().contains(of_aten), launched = launchable().contains(of_aten);
  if (!on_host && !launched) return nullptr;
  return std::make_unique<LearnedCalls>(op, on_host, launched);
}

// The name lives as long as the process, as operators of aten do.
LearnedCalls::LearnedCalls(const c10::OperatorHandle& op, bool on_host, bool launched)
    : op_(op),
      name_(op.operator_name().name.c_str()),
      on_host_(on_host),
      launched_(launched),
      table_(std::make_unique<Table>()) {
  const auto& arguments = op.schema().arguments();
  const auto its = std::ranges::find(arguments, "dropout_p", &c10::Argument::name);
  if (its != arguments.end()) dropout_ = static_cast<size_t>(its - arguments.begin());
  if (!launched) return;
  const auto& [name, overload] = op.operator_name();
  out_ =
      c10::Dispatcher::singleton().findSchema({name, overload.empty() ? "out" : overload + "_out"});
}
LearnedCalls::~LearnedCalls() = default;

// Whether it draws random numbers.
bool LearnedCalls::draws(const CallSchema& schema, const Stack& stack) const {
  return dropout_ && stack[stack.size() - schema.argument_count + *dropout_].toDouble() != 0;
}

void LearnedCalls::call(const CallSchema& schema, Stack& stack, c10::function_ref<void()> kernel) {
  const auto records = [&](c10::DeviceIndex device) {
    const DelegateTarget& target = target_of(device);
    return target.is_cpu() ? on_host_ : launched_ && target.in_stream_order;
  };
  Attempt attempt(records);
  // An operator that is not deterministic says so when it is called.
  if (at::globalContext().deterministicAlgorithms() || draws(schema, stack) ||
      !attempt.describe(schema, stack)) {
    kernel();
    return;
  }
  const DelegateTarget& target = target_of(attempt.device());
  const KnownResults known = table_->find(attempt.words());
  if (known == nullptr || known->is_to_be_looked_at()) {
    const Forms forms(attempt.tensors.begin(), attempt.tensors.end());
    const ResultRequests requests;
    std::optional<EmptyRequests> of_vendor;
    if (!target.is_cpu()) of_vendor.emplace();
    kernel();
    of_vendor.reset();
    const at::ArrayRef<IValue> all(stack);
    auto results =
        results_of(attempt, forms, requests, all.slice(all.size() - op_.schema().returns().size()));
    if (known != nullptr) results->looks = known->looks + 1;
    const bool is_one = results->all.size() == 1 && results->all[0].kind == Return::Kind::fresh;
    // What torch makes of the operator for an overload that has no kernel would copy as well.
    if (is_one && !target.is_cpu() && out_ && out_->hasKernelForDispatchKey(target.key)) {
      results->into = out_;
    }
    table_->keep(attempt.words(), std::move(results));
  } else if (known->recordable && (target.is_cpu() || known->times++ >= kTimesAtOnce)) {
    note_delegated(schema.counter, attempt.device());
    record(name_, op_, attempt, known, stack, schema.argument_count);
  } else {
    kernel();
  }
}

}  // namespace hologram::aten

#include "aten/precompiled.h"

#include "aten/process_group.h"

#include <ATen/core/ivalue_inl.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "aten/alias.h"
#include "aten/compat.h"
#include "aten/delegate_target.h"
#include "aten/report.h"
#include "aten/runtime.h"
#include "aten/system_threads.h"

namespace hologram::aten {
namespace process_group {  // its names are its own in the unit that it is compiled with
namespace {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using Engine = c10::intrusive_ptr<c10d::Backend>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

// A stream of the vendor's for each of its devices, on which nothing is launched.
class SideStreams {
 public:
  c10::Stream of(c10::Device device) {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(device.index());
    if (found != streams_.end()) return found->second;
    const c10::Stream made =
        c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
    return streams_.emplace(device.index(), made).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<c10::DeviceIndex, c10::Stream> streams_;
};

// What a call of an engine gets for its tensors. Lives as long as the engine may use them.
class Lent {
 public:
  Lent(const char* name, std::shared_ptr<SideStreams> sides)
      : sides(std::move(sides)), name_(name) {
    frame_.pin_images();
  }
  const std::shared_ptr<SideStreams> sides;

  // Those of the host stay what they are, where none is ours.
  at::Tensor lend(const at::Tensor& tensor, bool written) {
    if (!tensor.defined()) return tensor;
    if (tensor.device().type() != kHologram) {
      other_ = tensor.device();
      return tensor;
    }
    check_bytes(tensor);
    const DelegateTarget& target = target_of(tensor.device().index());
    at::Tensor alias;
    // What is sparse gets other members.
    if (target.is_on_host_memory() && tensor.layout() == c10::kStrided) {
      for (const Pair& known : pairs_) {
        if (known.ours.is_same(tensor)) return known.theirs;
      }
      alias = alias_on_host(tensor);
    } else {
      is_copied_ = is_copied_ || target.kind == DelegateTarget::Kind::copied;
      is_framed_ = true;
      alias = frame_.argument(tensor, written);
    }
    its_target_ = &target;
    pairs_.push_back({tensor, alias});
    return alias;
  }
  Tensors lend(const Tensors& tensors, bool written) {
    Tensors aliases;
    aliases.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) aliases.push_back(lend(tensor, written));
    return aliases;
  }
  TensorLists lend(const TensorLists& lists, bool written) {
    TensorLists aliases;
    aliases.reserve(lists.size());
    for (const Tensors& list : lists) aliases.push_back(lend(list, written));
    return aliases;
  }

  // What is to be said before the engine has them.
  void check() const {
    TORCH_CHECK(pairs_.empty() || !other_,
                "expected all tensors of a collective to be on one device, got some on ", device(),
                " and some on ", *other_);
    if (is_copied_) note_delegated(op_counter(std::string("c10d::") + name_), *its_target_);
  }

  // What the tensors are to the engine; null: none of them is ours.
  const DelegateTarget* target() const { return its_target_; }
  bool is_on_host() const { return its_target_ == nullptr || its_target_->is_cpu(); }
  c10::Device device() const { return pairs_.front().ours.device(); }

  // The engine's call has returned: what it launched is in the order of the queue.
  void launched() {
    if (!is_on_host()) frame_.write_back();
  }
  // The engine is done: what it wrote into copies, or made of sparse tensors, is written back,
  // once.
  void done() {
    std::call_once(is_done_, [&] {
      if (is_framed_ && is_on_host()) frame_.write_back();
    });
  }

  at::Tensor original(const at::Tensor& theirs) const {
    for (const Pair& known : pairs_) {
      if (known.theirs.is_same(theirs)) return known.ours;
    }
    return theirs;
  }
  c10::IValue originals(const c10::IValue& value) const {
    if (value.isTensor()) return original(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(original(tensor));
      return list;
    }
    if (value.isList()) {
      const auto theirs = value.toList();
      c10::List<c10::IValue> list(theirs.elementType());
      for (const c10::IValue& item : theirs.vec()) list.push_back(originals(item));
      return list;
    }
    return value;
  }

 private:
  // An engine does not look, and ends the process.
  static void check_bytes(const at::Tensor& tensor) {
    if (tensor.layout() != c10::kStrided || tensor._is_zerotensor()) return;
    const size_t needed = extent_of(tensor).end, has = tensor.storage().nbytes();
    TORCH_CHECK(needed <= has, "a tensor of sizes ", tensor.sizes(), ", strides ", tensor.strides(),
                " and storage offset ", tensor.storage_offset(), " of dtype ", tensor.dtype(),
                " needs a storage of ", needed, " bytes, its storage has ", has);
  }

  struct Pair {
    at::Tensor ours, theirs;
  };
  const char* const name_;  // of the call, after "c10d::"
  std::vector<Pair> pairs_;
  AliasFrame frame_;
  const DelegateTarget* its_target_ = nullptr;
  std::optional<c10::Device> other_;  // that a tensor is on
  bool is_framed_ = false, is_copied_ = false;
  std::once_flag is_done_;
};

// An engine's work, with our tensors for its results. Of work on the host that has been waited for,
// nothing of the engine's is kept, so that the memory is nobody else's any more.
class CollectiveWork final : public c10d::Work {
 public:
  CollectiveWork(c10d::OpType type, WorkPointer inner, std::shared_ptr<Lent> lent)
      : Work(-1, type), state_{std::move(inner), std::move(lent)} {}

  bool isCompleted() override {
    const State now = state();
    if (!now.work) return true;
    if (!now.work->isCompleted()) return false;
    // Who asks until it is so reads the results without waiting for them.
    if (now.work->isSuccess()) now.lent->done();
    return true;
  }
  bool isSuccess() const override {
    const State now = state();
    return !now.work || now.work->isSuccess();
  }
  std::exception_ptr exception() const override {
    const State now = state();
    return now.work ? now.work->exception() : nullptr;
  }
  int sourceRank() const override {
    const State now = state();
    return now.work ? now.work->sourceRank() : Work::sourceRank();
  }
  Tensors result() override {
    const State now = state();
    return now.work ? originals(now) : result_;
  }
  void synchronize() override {
    const State now = state();
    if (!now.work) return;
    now.work->synchronize();
    now.lent->done();
  }
  bool wait(std::chrono::milliseconds timeout) override {
    const State now = state();
    if (!now.work) return true;
    const bool is_done = now.work->wait(timeout);
    now.lent->done();
    if (is_done && may_forget(now)) forget(now);
    return is_done;
  }
  void blockCurrentStream() override {
    const State now = state();
    if (!now.work) return;
    now.work->blockCurrentStream();
    now.lent->done();
  }
  void abort() override {
    if (const State now = state(); now.work) now.work->abort();
  }
  float getDuration() const override {
    const State now = state();
    return now.work ? now.work->getDuration() : Work::getDuration();
  }
  uint64_t getSequencenumber() const override {
    const State now = state();
    return now.work ? now.work->getSequencenumber() : Work::getSequencenumber();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    const State now = state();
    return now.work ? now.work->getFutureResult() : Work::getFutureResult();
  }
  // Asked for again it is the same.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const std::lock_guard lock(mutex_);
    if (!future_) future_ = state_.work ? future_of(state_, opType_) : future_of(result_);
    return future_;
  }

 private:
  struct State {
    WorkPointer work;  // null: it has been waited for
    std::shared_ptr<Lent> lent;
  };
  State state() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }
  static Tensors originals(const State& state) {
    Tensors tensors = state.work->result();
    for (at::Tensor& tensor : tensors) tensor = state.lent->original(tensor);
    return tensors;
  }
  // Not of a vendor's, which goes on for some time, nor of what is asked where it came from.
  bool may_forget(const State& state) const {
    return state.lent->target() != nullptr && state.lent->is_on_host() &&
           opType_ != c10d::OpType::RECV && opType_ != c10d::OpType::RECVANYSOURCE;
  }
  void forget(const State& done) {
    Tensors result;
    try {
      result = originals(done);
    } catch (const std::exception&) {  // it has none
    }
    const std::lock_guard lock(mutex_);
    result_ = std::move(result);
    state_ = {};
  }

  static c10::intrusive_ptr<c10::ivalue::Future> future_of(const Tensors& result) {
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(result);
    return future;
  }
  static c10::intrusive_ptr<c10::ivalue::Future> future_of(const State& state, c10d::OpType type) {
    const auto theirs = state.work->getFuture();
    if (!theirs) return {};
    std::vector<c10::Device> devices;
    if (!state.lent->is_on_host()) devices.push_back(state.lent->device());
    auto ours = c10::make_intrusive<c10::ivalue::Future>(theirs->elementType(), std::move(devices));
    // Torch would make another stream of its pool current each time, and each would become a queue
    // of ours. Messages may wait for each other, so that each has to have its own.
    const bool is_message = c10d::isP2POp(type, true);
    const bool beside = !is_message && !state.lent->is_on_host();
    const auto tell = [ours, beside, lent = state.lent](c10::ivalue::Future& done) {
      if (done.hasError()) return ours->setError(done.exception_ptr());
      try {
        std::optional<c10::StreamGuard> guard;
        if (beside) guard.emplace(lent->sides->of(lent->target()->device));
        done.wait();  // the current stream comes after it, nobody waits
        lent->done();
        ours->markCompleted(lent->originals(done.constValue()));
      } catch (...) {
        ours->setError(std::current_exception());
      }
    };
    theirs->addCallback(tell, is_message);
    return ours;
  }

  mutable std::mutex mutex_;  // of what follows
  State state_;
  Tensors result_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// A backend of a process group whose tensors are ours or the host's.
class HologramBackend final : public c10d::Backend {
 public:
  // The engines of memory that the host can touch, or gets copies of, and of the vendor's memory;
  // one of them may be null, and both the same.
  HologramBackend(Engine host, Engine vendors)
      : Backend((host ? host : vendors)->getRank(), (host ? host : vendors)->getSize()),
        host_(std::move(host)),
        vendors_(std::move(vendors)) {}

  const std::string getBackendName() const override { return "hologram"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return any().getBackendOptions(); }
  bool supportsSplitting() const override { return false; }
  bool supportsCoalescing() const override { return current().supportsCoalescing(); }
  void startCoalescing() override { current().startCoalescing(); }
  WorkPointer endCoalescing() override { return current().endCoalescing(); }
  void setTimeout(std::chrono::milliseconds timeout) override {
    each([&](Backend& engine) { engine.setTimeout(timeout); });
  }
  void setSequenceNumberForGroup() override {
    each([](Backend& engine) { engine.setSequenceNumberForGroup(); });
  }
  uint64_t getSequenceNumberForGroup() override { return any().getSequenceNumberForGroup(); }
  void setGroupUid(const std::string& uid) override {
    Backend::setGroupUid(uid);
    each([&](Backend& engine) { engine.setGroupUid(uid); });
  }
  void enableCollectivesTiming() override { any().enableCollectivesTiming(); }
  c10d::ErrorType getError() override { return any().getError(); }
  void abort() override {
    each([](Backend& engine) { engine.abort(); });
  }
  void shutdown() override {
    each([](Backend& engine) { engine.shutdown(); });
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all) override {
    host().monitoredBarrier(options, wait_all);
  }
  WorkPointer barrier(const c10d::BarrierOptions& options) override {
    c10d::BarrierOptions its = options;
    Backend& engine = current();
    if (!its.device || its.device->type() == kHologram) {
      // Torch names the accelerator without an index, for which NCCL would take the rank.
      const bool is_named = its.device && its.device->has_index();
      const c10::Device target =
          target_of(is_named ? its.device->index() : current_device()).device;
      its.device = target.is_cpu() ? std::nullopt : std::optional<at::Device>(target);
    }
    return engine.barrier(its);
  }

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return in_place(c10d::OpType::BROADCAST, "broadcast_", &Backend::broadcast, tensors, options);
  }
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return in_place(c10d::OpType::ALLREDUCE, "allreduce_", &Backend::allreduce, tensors, options);
  }
  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return in_place(c10d::OpType::ALLREDUCE, "allreduce_", &Backend::allreduce_sparse, tensors,
                    options);
  }
  WorkPointer allreduce_coalesced(Tensors& tensors,
                                  const c10d::AllreduceCoalescedOptions& options) override {
    return in_place(c10d::OpType::ALLREDUCE_COALESCED, "allreduce_coalesced_",
                    &Backend::allreduce_coalesced, tensors, options);
  }
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return in_place(c10d::OpType::REDUCE, "reduce_", &Backend::reduce, tensors, options);
  }
  WorkPointer recv(Tensors& tensors, int from, int tag) override {
    return in_place(c10d::OpType::RECV, "recv_", &Backend::recv, tensors, from, tag);
  }
  WorkPointer recvAnysource(Tensors& tensors, int tag) override {
    return in_place(c10d::OpType::RECVANYSOURCE, "recv_any_source_", &Backend::recvAnysource,
                    tensors, tag);
  }
  WorkPointer send(Tensors& tensors, int to, int tag) override {
    return run(c10d::OpType::SEND, "send", [&](Lent& lent) {
      Tensors its = lent.lend(tensors, false);
      return engine(lent).send(its, to, tag);
    });
  }
  WorkPointer allgather(TensorLists& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override {
    return between(c10d::OpType::ALLGATHER, "allgather_", &Backend::allgather, outputs, inputs,
                   options);
  }
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options) override {
    // NCCL takes memory of any shape, which its callers rely on, Gloo only rows like the input's.
    const bool is_flattened = !is_rows_of(output, input) && output.is_contiguous() &&
                              input.is_contiguous() && output.numel() == getSize() * input.numel();
    return between(c10d::OpType::_ALLGATHER_BASE, "_allgather_base_", &Backend::_allgather_base,
                   is_flattened ? output.view(-1) : output, is_flattened ? input.view(-1) : input,
                   options);
  }
  WorkPointer allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) override {
    return between(c10d::OpType::ALLGATHER_COALESCED, "allgather_coalesced_",
                   &Backend::allgather_coalesced, outputs, inputs, options);
  }
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override {
    return between(c10d::OpType::COALESCED, "allgather_into_tensor_coalesced_",
                   &Backend::allgather_into_tensor_coalesced, outputs, inputs, options);
  }
  WorkPointer gather(TensorLists& outputs, Tensors& inputs,
                     const c10d::GatherOptions& options) override {
    return between(c10d::OpType::GATHER, "gather_", &Backend::gather, outputs, inputs, options);
  }
  WorkPointer scatter(Tensors& outputs, TensorLists& inputs,
                      const c10d::ScatterOptions& options) override {
    return between(c10d::OpType::SCATTER, "scatter_", &Backend::scatter, outputs, inputs, options);
  }
  WorkPointer reduce_scatter(Tensors& outputs, TensorLists& inputs,
                             const c10d::ReduceScatterOptions& options) override {
    return between(c10d::OpType::REDUCE_SCATTER, "reduce_scatter_", &Backend::reduce_scatter,
                   outputs, inputs, options);
  }
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override {
    return between(c10d::OpType::_REDUCE_SCATTER_BASE, "_reduce_scatter_base_",
                   &Backend::_reduce_scatter_base, output, input, options);
  }
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override {
    return between(c10d::OpType::COALESCED, "reduce_scatter_tensor_coalesced_",
                   &Backend::reduce_scatter_tensor_coalesced, outputs, inputs, options);
  }
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input,
                            std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
                            const c10d::AllToAllOptions& options) override {
    return between(c10d::OpType::ALLTOALL_BASE, "alltoall_base_", &Backend::alltoall_base, output,
                   input, output_sizes, input_sizes, options);
  }
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs,
                       const c10d::AllToAllOptions& options) override {
    return between(c10d::OpType::ALLTOALL, "alltoall_", &Backend::alltoall, outputs, inputs,
                   options);
  }

 private:
  // Has an engine do what `call` does with what it lends.
  template <class Call>
  WorkPointer run(c10d::OpType type, const char* name, Call&& call) {
    const auto lent = std::make_shared<Lent>(name, sides_);
    WorkPointer work = call(*lent);
    if (lent->target() == nullptr) return work;
    lent->launched();
    // NCCL has none for a call that is in the order of the current stream.
    if (!work) return work;
    return c10::make_intrusive<CollectiveWork>(type, std::move(work), lent);
  }

  // Whether the ranks' inputs, one after the other, have the output's shape.
  bool is_rows_of(const at::Tensor& output, const at::Tensor& input) const {
    return input.dim() > 0 && output.dim() == input.dim() &&
           output.size(0) == getSize() * input.size(0) &&
           output.sizes().slice(1) == input.sizes().slice(1);
  }

  // A call whose tensors are read and written.
  template <class Method, class... Rest>
  WorkPointer in_place(c10d::OpType type, const char* name, Method method, const Tensors& tensors,
                       Rest&&... rest) {
    return run(type, name, [&](Lent& lent) {
      Tensors its = lent.lend(tensors, true);
      return (engine(lent).*method)(its, rest...);
    });
  }
  // A call that writes outputs and reads inputs: tensors, lists of them or lists of lists.
  template <class Method, class Outputs, class Inputs, class... Rest>
  WorkPointer between(c10d::OpType type, const char* name, Method method, const Outputs& outputs,
                      const Inputs& inputs, Rest&&... rest) {
    return run(type, name, [&](Lent& lent) {
      Outputs to = lent.lend(outputs, true);
      Inputs from = lent.lend(inputs, false);
      return (engine(lent).*method)(to, from, rest...);
    });
  }

  Backend& engine(const Lent& lent) const {
    lent.check();
    return lent.is_on_host() ? host() : vendors();
  }
  Backend& host() const {
    TORCH_CHECK(host_, "No backend type associated with device type cpu");
    return *host_;
  }
  Backend& vendors() const {
    TORCH_CHECK(vendors_, "this process group has no backend for the memory of hologram:",
                static_cast<int>(current_device()), ", which is that of a ",
                target_of(current_device()).device.type(), " device");
    return *vendors_;
  }
  // Of the current device.
  Backend& current() const {
    return vendors_ && !target_of(current_device()).is_cpu() ? *vendors_ : any();
  }
  Backend& any() const { return host_ ? *host_ : *vendors_; }
  template <class Do>
  void each(Do&& act) const {
    if (host_) act(*host_);
    if (vendors_ && vendors_ != host_) act(*vendors_);
  }

  const Engine host_, vendors_;
  const std::shared_ptr<SideStreams> sides_ = std::make_shared<SideStreams>();
};

// Of the parts of a step of DistributedDataParallel, as the host sees them.
class StepTimer final : public c10d::Timer {
 public:
  explicit StepTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto from = getTimestamp(start), to = getTimestamp(end);
    if (!from || !to || *to < *from) return std::nullopt;
    return *to - *from;
  }
};

// torch has a kernel of it for its own devices.
std::tuple<Tensors, WorkPointer> allreduce_sparse(
    at::TensorList tensors, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const c10::intrusive_ptr<c10d::ReduceOp>& operation,
    const std::optional<at::Tensor>& sparse_indices, bool, int64_t timeout) {
  Tensors its = tensors.vec();
  c10d::AllreduceOptions options;
  options.reduceOp = *operation;
  options.timeout = std::chrono::milliseconds(timeout);
  options.sparseIndices = sparse_indices;
  WorkPointer work = group->getBackend(kHologram)->allreduce_sparse(its, options);
  return {std::move(its), std::move(work)};
}

TORCH_LIBRARY_IMPL(c10d, SparsePrivateUse1, m) {
  m.impl("allreduce_", &allreduce_sparse);
}

// A thread has to be seen at rest twice, since one that waits for the interpreter's lock is at
// rest, too, until it gets it.
void let_gloo_threads_rest() {
  int rests = 0;
  wait_at_exit([&] {
    const auto threads = threads_named("pt_gloo_");
    const bool is_any_running =
        std::ranges::any_of(threads, [](const SystemThread& its) { return its.is_running; });
    rests = is_any_running ? 0 : rests + 1;
    return threads.empty() || rests == 2;
  });
}

}  // namespace
}  // namespace process_group

void bind_process_group(pybind11::module_& m) {
  using namespace process_group;
  c10d::TimerRegistry()->Register(kHologram,
                                  [](c10::Device device) -> std::unique_ptr<c10d::Timer> {
                                    return std::make_unique<StepTimer>(device);
                                  });
  m.def("process_group_backend", [](Engine host, Engine vendors) -> Engine {
    return c10::make_intrusive<HologramBackend>(std::move(host), std::move(vendors));
  });
  m.def("let_gloo_threads_rest", &let_gloo_threads_rest, py::call_guard<py::gil_scoped_release>());
}

}  // namespace hologram::aten

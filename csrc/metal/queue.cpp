#include "metal/queue.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "atlas/error.h"
#include "atlas/float_mode.h"
#include "cpu/compiled_group.h"
#include "gpu/moves.h"

namespace hologram::metal {
namespace {

// A command buffer is committed when it has so much to do: the GPU is to begin while the host goes
// on, and each one costs the host as much as many kernels.
constexpr size_t kMostOperations = 40;
constexpr size_t kMostBytes = size_t{40} << 20;
// So many command buffers of a queue run at a time. Metal has 64, and waits where there are more:
// under the queue's lock it would, which reports of their ends need.
constexpr size_t kMostRunning = 48;
// Of a run's scratch memory, which grows by whole steps.
constexpr size_t kScratchStep = size_t{4} << 20;
// Passes that an error names, which may be of any of them.
constexpr size_t kMostNamed = 8;

constexpr gpu::Target kMoves{};

size_t bytes_of(const Group& group, std::span<const Binding> bindings) {
  size_t of_element = 0, elements = 0;
  for (const Operand& its : group.operands) of_element += dtype_size(its.dtype);
  for (const Binding& its : bindings) elements += static_cast<size_t>(its.count);
  return of_element * elements;
}

// Of so many rows for each head.
size_t bytes_of(const Attention& attention, int64_t rows) {
  return static_cast<size_t>(attention.batch * attention.heads * rows * attention.head_size) *
         dtype_size(attention.dtype);
}

}  // namespace

void Moment::take(const Finished& how) noexcept {
  seconds_.store(how.error.empty() ? how.end : kFailed, std::memory_order_release);
  seconds_.notify_all();
}

double Moment::seconds() const noexcept {
  seconds_.wait(kUnknown, std::memory_order_acquire);
  return seconds_.load(std::memory_order_acquire);
}

double Moment::milliseconds_since(const hologram::Moment& other) const {
  const double before = static_cast<const Moment&>(other).seconds(), after = seconds();
  if (before == kFailed || after == kFailed) {
    throw Error("an event was never recorded: its queue failed");
  }
  return 1000 * (after - before);
}

Queue::Queue(const Device& device, Memory& memory, Kernels& kernels,
             const std::function<void()>& give_back_idle)
    : memory_(memory),
      kernels_(kernels),
      give_back_idle_(give_back_idle),
      queue_(device.make_queue()),
      event_(device.make_event()) {}

// Threads of Metal's report the end of each command buffer.
Queue::~Queue() {
  std::unique_lock lock(mutex_);
  commit();
  reported_.wait(lock, [&] { return running_ == 0; });
  if (scratch_ != nullptr) memory_.free(scratch_);
}

std::unique_lock<std::mutex> Queue::enter() {
  std::unique_lock lock(mutex_);
  reported_.wait(lock, [&] { return running_ < kMostRunning; });
  return lock;
}

Commands& Queue::commands() {
  if (!open_) open_.emplace(queue_.commands());
  return *open_;
}

void Queue::dispatch(const Pipeline& pipeline, std::span<const void* const> addresses,
                     std::span<const std::byte> bytes, uint32_t blocks, uint32_t threads) {
  std::array<Commands::Place, gpu::kMostBuffers> places;
  for (size_t i = 0; i < addresses.size(); ++i) {
    const auto found = memory_.find(addresses[i]);
    if (!found) throw Error("a kernel's argument is not in memory of the device");
    places[i] = *found;
  }
  commands().dispatch(pipeline, {places.data(), addresses.size()}, bytes, blocks, threads);
  ++operations_;
}

Ticket Queue::submit(const std::shared_ptr<const Compiled>& compiled, Frame& frame) {
  const auto& code = static_cast<const gpu::Code&>(*compiled->code);
  for (size_t i = 0; i < compiled->plan.batches.size(); ++i) {
    Frame::Pass pass(frame, i);
    const Batch& batch = compiled->plan.batches[i];
    try {
      if (pass.is_call()) {
        if (const auto copy = pass.strided_copy(); copy && copy_strided(*copy)) continue;
        if (const auto its = pass.product(); its && product(*its)) continue;
        finish();
        const FloatModeGuard mode(frame.program().float_mode);
        pass.call();
        continue;
      }
      if (pass.bindings().empty()) continue;
      const FloatModeGuard mode(frame.program().float_mode);
      run(code, i, pass.bindings());
    } catch (const std::exception& error) {
      pass.fail(error);
      continue;
    }
    const std::unique_lock lock = enter();
    enqueued(bytes_of(batch.group, pass.bindings()), compiled);
  }
  Released released;
  const std::unique_lock lock = enter();
  commit();
  note_done(released);
  return last_;
}

void Queue::run(const gpu::Code& code, size_t pass, std::span<const Binding> bindings) {
  const bool runs_here =
      holds_all(code.plan().batches[pass].group, bindings) &&
      gpu::run_by_kernels(code, pass, bindings, code.ready_if_known(pass, bindings),
                          give_back_idle_, runs,
                          [&](const gpu::Ready& ready) { launch(ready, bindings); });
  if (!runs_here) run_on_host(code, pass, bindings);
}

bool Queue::holds_all(const Group& group, std::span<const Binding> bindings) const noexcept {
  return std::ranges::all_of(bindings, [&](const Binding& its) {
    return its.count == 0 || std::all_of(its.operands, its.operands + group.operands.size(),
                                         [&](const void* address) { return holds(address); });
  });
}

void Queue::run_on_host(const gpu::Code& code, size_t pass, std::span<const Binding> bindings) {
  finish();
  for (const Binding& binding : bindings) {
    if (binding.count == 0) continue;
    cpu::run(code.on_cpu(pass), binding);
    ++runs.cpu;
  }
}

// Throws OutOfMemory with nothing enqueued. What ran before with the scratch memory may go on with
// the old one until it is done.
void Queue::launch(const gpu::Ready& ready, std::span<const Binding> bindings) {
  const size_t bytes = ready.prepared.scratch_bytes();
  char* replaced = nullptr;
  {
    const std::unique_lock lock = enter();
    if (bytes > scratch_bytes_) {
      const size_t wanted =
          (std::max(bytes, 2 * scratch_bytes_) + kScratchStep - 1) / kScratchStep * kScratchStep;
      auto* const memory =
          static_cast<char*>(memory_.allocate_or_throw(wanted, gpu::kScratchAlignment));
      replaced = std::exchange(scratch_, memory);
      scratch_bytes_ = wanted;
    }
    launch_all(ready, bindings, scratch_);
  }
  if (replaced == nullptr) return;
  finish();
  memory_.free(replaced);
}

// `memory`: for what is between the launches.
void Queue::launch_all(const gpu::Ready& ready, std::span<const Binding> bindings,
                       const char* memory) {
  std::array<const void*, gpu::kMostBuffers> addresses;
  std::array<std::byte, gpu::kMostParameterBytes> bytes;
  const gpu::Loaded* loaded = ready.loaded.data();
  for (const gpu::Prepared::Launch& its : ready.prepared.launches()) {
    const size_t count = its.arguments.size();
    if (count > addresses.size()) throw Error("a launch of too many arguments");
    for (size_t i = 0; i < count; ++i) {
      const gpu::Argument& argument = its.arguments[i];
      addresses[i] = argument.is_program ? reinterpret_cast<const void*>(loaded->program)
                                         : memory + argument.scratch;
    }
    for (const gpu::Prepared::Place& place : its.addresses) {
      addresses[place.at] = gpu::Prepared::address(place, bindings);
    }
    its.parameters.write(bytes.data(), bindings);
    dispatch(*static_cast<const Pipeline*>(loaded->function), {addresses.data(), count},
             {bytes.data(), its.parameters.bytes.size()}, its.blocks, its.threads);
    ++loaded;
  }
}

void Queue::launch_moves(const gpu::Launches& launches) {
  std::array<const void*, gpu::kMostBuffers> addresses;
  for (const gpu::Launch& its : launches.list) {
    std::ranges::transform(its.arguments, addresses.begin(),
                           [](const gpu::Argument& argument) { return argument.address; });
    dispatch(kernels_.find(*its.kernel), {addresses.data(), its.arguments.size()}, its.parameters,
             its.blocks, its.threads);
  }
}

// Between memory of the device a kernel copies; other memory of the host is copied there, when what
// came before is done.
Ticket Queue::copy(void* to, const void* from, size_t bytes, Direction) {
  if (!holds(to) || !holds(from)) {
    finish();
    std::memcpy(to, from, bytes);
    return last();
  }
  // Elements as large as the addresses allow.
  const auto bits = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes;
  const size_t element = std::min<size_t>(16, bits & (~bits + 1));
  const auto count = static_cast<int64_t>(bytes / element);
  const gpu::Launches launches =
      gpu::copy(kMoves, element, {to, {count}, {1}}, {const_cast<void*>(from), {count}, {1}});
  const std::unique_lock lock = enter();
  launch_moves(launches);
  return enqueued(2 * bytes);
}

Ticket Queue::fill(void* to, const void* element, size_t element_bytes, size_t count) {
  if (!holds(to)) {
    finish();
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(static_cast<char*>(to) + i * element_bytes, element, element_bytes);
    }
    return last();
  }
  const gpu::Launches launches =
      gpu::fill(kMoves, element_bytes, {to, {static_cast<int64_t>(count)}, {1}}, element);
  const std::unique_lock lock = enter();
  launch_moves(launches);
  return enqueued(element_bytes * count);
}

bool Queue::copies_strided(const StridedCopy& copy) {
  return copy.sizes.size() <= gpu::kMostMoveDimensions && holds(copy.to) && holds(copy.from);
}

std::optional<Ticket> Queue::copy_strided(const StridedCopy& copy) {
  if (!copies_strided(copy)) return std::nullopt;
  const gpu::Launches launches = gpu::copy(kMoves, copy);
  const std::unique_lock lock = enter();
  launch_moves(launches);
  ++runs.moves;
  return enqueued(2 * copy.bytes());
}

// Null where it cannot run here.
template <class Launch>
const Pipeline* Queue::pipeline_of(const Launch& launch) const {
  for (uint32_t i = 0; i < launch.count; ++i) {
    if (!holds(launch.addresses[i])) return nullptr;
  }
  const Pipeline& pipeline = kernels_.find_native(launch.kernel, launch.text);
  return launch.threads <= pipeline.most_threads() ? &pipeline : nullptr;
}

// Kernels that read and write so many bytes; none where one of them cannot run here.
template <class Launch>
std::optional<Ticket> Queue::run_native(std::span<const Launch> launches, size_t bytes) {
  std::array<const Pipeline*, 2> pipelines;
  for (size_t i = 0; i < launches.size(); ++i) {
    pipelines[i] = pipeline_of(launches[i]);
    if (pipelines[i] == nullptr) return std::nullopt;
  }
  const std::unique_lock lock = enter();
  for (size_t i = 0; i < launches.size(); ++i) {
    const Launch& its = launches[i];
    dispatch(*pipelines[i], {its.addresses.data(), its.count},
             std::as_bytes(std::span(&its.parameters, 1)), its.blocks, its.threads);
  }
  return enqueued(bytes);
}

std::optional<Ticket> Queue::product(const Product& product) {
  const auto launch = launch_of(product);
  if (!launch) return std::nullopt;
  const int64_t elements = product.rows * product.inner + product.inner * product.columns +
                           product.rows * product.columns;
  return run_native(std::span(&*launch, 1),
                    static_cast<size_t>(product.count * elements) * dtype_size(product.dtype));
}

bool Queue::computes(const Product& product) {
  const auto launch = launch_of(product);
  return launch && pipeline_of(*launch) != nullptr;
}

std::optional<Ticket> Queue::attention(const Attention& attention) {
  const auto launch = launch_of(attention);
  if (!launch) return std::nullopt;
  const int64_t rows = 2 * (attention.queries + attention.keys);
  return run_native(std::span(&*launch, 1), bytes_of(attention, rows));
}

std::optional<Ticket> Queue::attention_backward(const Attention& attention,
                                                const AttentionGradients& gradients) {
  const auto launches = launches_of(attention, gradients);
  if (!launches) return std::nullopt;
  const int64_t rows = 4 * (attention.queries + attention.keys);
  return run_native(std::span<const AttentionLaunch>(*launches), bytes_of(attention, rows));
}

Ticket Queue::record(std::shared_ptr<hologram::Moment> moment) {
  const std::unique_lock lock = enter();
  if (moment == nullptr) return last_;  // which is done when all before is
  ++last_;
  commit(std::static_pointer_cast<Moment>(std::move(moment)));
  return last_;
}

void Queue::wait_for(const Fence& fence) {
  auto* const other = dynamic_cast<Queue*>(fence.queue);
  if (other == nullptr) return fence.wait();
  if (other == this || other->known_done(fence.ticket)) return;
  {
    const std::unique_lock lock = other->enter();
    if (fence.ticket > other->committed_) other->commit();
  }
  const std::unique_lock lock = enter();
  commit();  // the other queue may wait for what is before this
  commands().wait_for(other->event_, fence.ticket);
  ++last_;  // what is behind it on the host is so, too
}

// The vendor's kernels are those of the host, which follow no queue.
void Queue::lend(void*) {
  finish();
}

Ticket Queue::take_back(void*) {
  return last();
}

Ticket Queue::last() noexcept {
  const std::lock_guard lock(mutex_);
  return last_;
}

bool Queue::done(Ticket ticket) noexcept {
  if (known_done(ticket)) return true;
  Released released;
  const std::lock_guard lock(mutex_);
  if (ticket > committed_) commit();
  note_done(released);
  return ticket <= done_.load(std::memory_order_relaxed);
}

void Queue::wait(Ticket ticket) {
  std::exception_ptr error;
  Released released;
  {
    const std::lock_guard lock(mutex_);
    if (ticket > committed_) commit();
  }
  reach(ticket);
  {
    const std::lock_guard lock(mutex_);
    note_done(released);
    error = std::exchange(error_, nullptr);
  }
  if (error != nullptr) std::rethrow_exception(error);
}

// All that is enqueued is done; what of it has failed somebody else is told.
void Queue::finish() noexcept {
  Ticket ticket = 0;
  {
    const std::unique_lock lock = enter();
    commit();
    ticket = committed_;
  }
  reach(ticket);
}

void Queue::reach(Ticket ticket) const noexcept {
  constexpr uint64_t kMilliseconds = 1000;
  while (!event_.wait(ticket, kMilliseconds)) {
  }
}

Ticket Queue::enqueued(size_t bytes, const std::shared_ptr<const Compiled>& compiled) {
  const Ticket ticket = ++last_;
  if (compiled != nullptr) {
    if (!submitted_.empty() && submitted_.back().compiled == compiled) {
      submitted_.back().ticket = ticket;
    } else {
      submitted_.push_back({ticket, compiled});
    }
  }
  bytes_ += bytes;
  if (operations_ >= kMostOperations || bytes_ >= kMostBytes) commit();
  return ticket;
}

void Queue::commit(std::shared_ptr<Moment> moment) {
  if (!open_ && committed_ == last_) return;
  Commands& all = commands();
  all.signal(event_, last_);
  Commands its = std::move(all);
  open_.reset();
  operations_ = bytes_ = 0;
  const Ticket first = committed_ + 1, last = last_;
  committed_ = last_;
  ++running_;
  ++committed_buffers;
  its.commit([this, first, last, moment = std::move(moment)](const Finished& how) {
    if (moment != nullptr) moment->take(how);
    finished(first, last, how);
  });
}

// Metal does not say which kernel it was: what the command buffer had is named. It has not raised
// the event either, for which others wait.
void Queue::finished(Ticket first, Ticket last, const Finished& how) noexcept {
  const std::lock_guard lock(mutex_);
  if (!how.error.empty()) {
    ++failed_buffers;
    std::string text = "Metal device 0: a command buffer failed: " + how.error;
    size_t named = 0;
    for (const Submitted& its : submitted_) {
      if (its.ticket < first) continue;
      for (size_t i = 0; i < its.compiled->plan.batches.size() && named < kMostNamed; ++i) {
        text += (named++ == 0 ? "; it was one of: " : "; ") + describe_pass(*its.compiled, i);
      }
    }
    if (error_ == nullptr) error_ = std::make_exception_ptr(Error(text));
    if (event_.value() < last) event_.set_value(last);
  }
  --running_;
  reported_.notify_all();
}

void Queue::note_done(Released& released) noexcept {
  const Ticket done = event_.value();
  if (done > done_.load(std::memory_order_relaxed)) done_.store(done, std::memory_order_release);
  while (!submitted_.empty() && submitted_.front().ticket <= done) {
    released.push_back(std::move(submitted_.front().compiled));
    submitted_.pop_front();
  }
}

}  // namespace hologram::metal

#include "cuda/queue.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "atlas/error.h"
#include "atlas/float_mode.h"
#include "cuda/host_run.h"
#include "gpu/moves.h"

namespace hologram::cuda {
namespace {

constexpr gpu::Target kMoves{};

// Of a run's scratch memory, which grows by whole steps.
constexpr size_t kScratchStep = size_t{4} << 20;
// So many submissions and marks are kept before the queue looks which of them are reached.
constexpr size_t kMostKept = 64;
// Passes that an error names, which may be of any of them.
constexpr size_t kMostNamed = 8;

Address address_of(const void* memory) {
  return reinterpret_cast<Address>(memory);
}

}  // namespace

Mark::Mark(const Gpu& gpu, bool with_timing) : gpu_(gpu), with_timing_(with_timing) {
  const ContextGuard guard(gpu_);
  check(driver().create_event(&event_, with_timing ? kEventWithTiming : kEventWithoutTiming),
        "cuEventCreate");
}

Mark::~Mark() {
  try {
    const ContextGuard guard(gpu_);
    driver().destroy_event(event_);
  } catch (const std::exception&) {  // the context is lost, and all that it had
  }
}

double Moment::milliseconds_since(const hologram::Moment& other) const {
  const ContextGuard guard(gpu_);
  float milliseconds = 0;
  const Event before = static_cast<const Moment&>(other).mark_->event();
  check(driver().elapsed_time(&milliseconds, before, mark_->event()), "cuEventElapsedTime");
  return milliseconds;
}

Queue::Queue(const Gpu& gpu, Kernels& kernels, ProductContext& products,
             const std::function<void()>& give_back_idle, Which which, int priority)
    : gpu_(gpu),
      driver_(driver()),
      kernels_(kernels),
      give_back_idle_(give_back_idle),
      products_(products) {
  if (which == Which::default_stream) return;
  const ContextGuard guard(gpu_);
  int least = 0, greatest = 0;
  check(driver_.stream_priorities(&least, &greatest), "cuCtxGetStreamPriorityRange");
  check(driver_.create_stream(&stream_, kStreamNonBlocking, priority < 0 ? greatest : least),
        "cuStreamCreate");
}

Queue::Queue(const Gpu& gpu, Kernels& kernels, ProductContext& products,
             const std::function<void()>& give_back_idle, Stream theirs)
    : gpu_(gpu),
      driver_(driver()),
      kernels_(kernels),
      give_back_idle_(give_back_idle),
      stream_(theirs),
      owned_(false),
      products_(products) {}

Queue::~Queue() {
  try {
    const ContextGuard guard(gpu_);
    if (owned_) driver_.synchronize_stream(stream_);
    staging_.free();
    replays_.free();
    launcher_.free();
    products_.free_workspace();
    if (scratch_ != 0) driver_.free(scratch_);
    if (counters_ != 0) driver_.free(counters_);
    if (owned_ && stream_ != nullptr) driver_.destroy_stream(stream_);
  } catch (const std::exception&) {  // the context is lost, and all that it had
  }
}

std::string Queue::name() const {
  return "CUDA device " + std::to_string(gpu_.ordinal);
}

// Whether somebody captures the stream into a graph. The default one cannot be.
bool Queue::captured() const {
  if (stream_ == nullptr) return false;
  CaptureStatus status = CaptureStatus::none;
  return driver_.stream_capturing(stream_, &status) == kSuccess && status != CaptureStatus::none;
}

// What was recorded before the capture began, or is given beside programs.
void Queue::refuse_capture(const std::string& what) const {
  throw Error(name() + ": " + what +
              " cannot be captured into a CUDA graph. What has been recorded " +
              "before the capture begins runs at torch.hologram.synchronize()");
}

bool Queue::takes_work() {
  if (stream_ == nullptr) return true;
  const LaunchGuard guard(gpu_);
  return !captured();
}

Ticket Queue::submit(const std::shared_ptr<const Compiled>& compiled, Frame& frame) {
  const auto& code = static_cast<const gpu::Code&>(*compiled->code);
  const LaunchGuard guard(gpu_);
  if (captured()) refuse_capture(describe_pass(*compiled, 0));
  launcher_.watch(frame.is_watched());
  if (const auto ticket = replay(compiled, frame)) return *ticket;
  for (size_t i = 0; i < compiled->plan.batches.size(); ++i) {
    if (frame.is_done(i)) continue;
    Frame::Pass pass(frame, i);
    try {
      if (const auto* const call = pass.launched()) {
        launch(**call, pass.addresses());
      } else if (pass.is_call()) {
        if (const auto copy = pass.strided_copy(); copy && copy_strided(*copy)) continue;
        if (const auto its = pass.product()) {
          if (const auto more = pass.product_with_epilogue(*its); more && product(*more)) {
            pass.note_epilogue();
            continue;
          }
          if (product(*its)) continue;
        }
        const CaptureGuard capture;
        const FloatModeGuard mode(frame.program().float_mode);
        pass.call_on_copies(*this);
      } else if (!pass.bindings().empty() && !run_known(code, i, pass.bindings()) &&
                 !run_kernels(code, i, pass.bindings())) {
        const CaptureGuard capture;
        const FloatModeGuard mode(frame.program().float_mode);
        run_on_cpu(code, i, pass.bindings());
      }
    } catch (const std::exception& error) {
      if (dynamic_cast<const AboutDevice*>(&error) == nullptr || pass.is_call()) {
        pass.fail(error);
      } else {
        pass.fail(
            DeviceError(error.what() + gpu::described(compiled->plan.batches[i], pass.bindings())));
      }
    }
  }
  Released released;
  const std::lock_guard lock(mutex_);
  const Ticket ticket = enqueued();
  keep(compiled, ticket);
  tidy(released);
  return ticket;
}

// Memory that others ask for while they launch is what lies idle here, too.
void Queue::launch(Call& call, std::span<void* const> memory) {
  try {
    call.launch(stream_, memory, nullptr);
  } catch (const CallError& error) {
    if (error.kind != CallError::Kind::out_of_memory) throw;
    give_back_idle_();
    call.launch(stream_, memory, nullptr);
  }
}

// A program that has come before as one graph; none, with nothing enqueued, where it is not one.
std::optional<Ticket> Queue::replay(const std::shared_ptr<const Compiled>& compiled, Frame& frame) {
  const uint64_t moved = frame.bytes_moved;
  Released released;
  const std::lock_guard lock(mutex_);
  // A profiler is told of kernels, not of graphs.
  if (frame.is_watched() || !frame.failures.empty()) return std::nullopt;
  Work* const work = replays_.begin(compiled);
  if (work == nullptr) return std::nullopt;
  const auto& code = static_cast<const gpu::Code&>(*compiled->code);
  const size_t count = compiled->plan.batches.size();
  std::array<uint64_t, 3> forms{};
  size_t products = 0, moves = 0;
  const auto note_all = [&] {
    for (size_t i = 0; i < count; ++i) {
      if (frame.is_done(i)) continue;
      Frame::Pass pass(frame, i);
      if (const auto* const call = pass.launched()) {
        work->add(*call, pass.addresses());
      } else if (const auto copy = pass.is_call() ? pass.strided_copy() : std::nullopt) {
        note_copy(*work, *copy);
        ++moves;
      } else if (pass.is_call()) {
        const auto product = pass.product();
        if (!product) return false;
        const auto more = pass.product_with_epilogue(*product);
        const bool has_epilogue = more && products_.computes(*more);
        if (has_epilogue) pass.note_epilogue();
        work->add(has_epilogue ? *more : *product);
        ++products;
      } else if (!pass.bindings().empty()) {
        const auto ready = code.ready_for_good(i, pass.bindings());
        if (ready == nullptr || !note_work(*work, *ready, pass.bindings())) return false;
        ++forms[static_cast<size_t>(ready->form)];
      }
    }
    return true;
  };
  const bool is_known = note_all();
  if (!is_known) replays_.give_up();
  const auto stage = [&](size_t bytes) { return this->stage(bytes, released); };
  if (!is_known || !replays_.enqueue(compiled, stream_, stage)) {
    frame.bytes_moved = moved;
    frame.forget_epilogues();
    return std::nullopt;
  }
  for (size_t i = 0; i < forms.size(); ++i) runs.count(static_cast<gpu::Form>(i), forms[i]);
  runs.moves += moves;
  Products::enqueued.fetch_add(products, std::memory_order_relaxed);
  const Ticket ticket = enqueued();
  keep(compiled, ticket);
  tidy(released);
  return ticket;
}

// False where memory that the launches need is not there.
bool Queue::note_work(Work& work, const gpu::Ready& ready, std::span<const Binding> bindings) {
  const gpu::Prepared& prepared = ready.prepared;
  if (prepared.scratch_bytes() > scratch_bytes_) return false;
  if (prepared.has_counters() && counters_ == 0) return false;
  size_t tables = 0;
  if (prepared.table_bytes() != 0) {
    std::byte* const begin = work.add_tables(prepared.table_bytes(), tables);
    for (const gpu::Prepared::Launch& its : prepared.launches()) {
      its.table.write(begin + its.table_offset, bindings);
    }
  }
  each_launch(ready, bindings, scratch_, tables,
              [&](const gpu::Prepared::Launch& its, const KernelLaunch& launch) {
                uint64_t in_tables = 0;
                for (size_t i = 0; i < its.arguments.size(); ++i) {
                  if (its.arguments[i].is_table) in_tables |= uint64_t{1} << i;
                }
                work.add(launch, in_tables);
              });
  return true;
}

// Its kernels are loaded: the program has run before.
void Queue::note_copy(Work& work, const StridedCopy& copy) {
  each_move(gpu::copy(kMoves, copy),
            [&](const gpu::Kernel&, const KernelLaunch& launch) { work.add(launch); });
}

void Queue::run_on_cpu(const gpu::Code& code, size_t pass, std::span<const Binding> bindings) {
  for (const Binding& binding : bindings) {
    if (binding.count == 0) continue;
    run_on_copies(*this, code.plan().batches[pass].group, code.on_cpu(pass), binding);
    ++runs.cpu;
  }
}

// What has run before with this shape, if all that it takes beside launches is there; false, with
// nothing enqueued, elsewhere.
bool Queue::run_known(const gpu::Code& code, size_t pass, std::span<const Binding> bindings) {
  const std::shared_ptr<const gpu::Ready> ready = code.ready_if_known(pass, bindings);
  if (ready == nullptr || ready->prepared.table_bytes() != 0) return false;
  {
    const std::lock_guard lock(mutex_);
    if (ready->prepared.scratch_bytes() > scratch_bytes_) return false;
    if (ready->prepared.has_counters() && counters_ == 0) return false;
    launch_all(*ready, bindings, scratch_);
  }
  runs.count(ready->form);
  return true;
}

// False, with nothing enqueued, where there are no kernels for it.
bool Queue::run_kernels(const gpu::Code& code, size_t pass, std::span<const Binding> bindings) {
  const CaptureGuard capture;
  return gpu::run_by_kernels(
      code, pass, bindings, nullptr, give_back_idle_, runs,
      [&](const gpu::Ready& ready) { make_room_and_launch(ready, bindings); });
}

// Throws OutOfMemory with nothing enqueued.
void Queue::make_room_and_launch(const gpu::Ready& ready, std::span<const Binding> bindings) {
  const gpu::Prepared& prepared = ready.prepared;
  Released released;
  const std::lock_guard lock(mutex_);
  const Address memory = scratch(prepared.scratch_bytes() + prepared.table_bytes());
  const Address tables = memory + prepared.scratch_bytes();
  if (prepared.has_counters()) have_counters();
  if (prepared.table_bytes() != 0) send_tables(prepared, bindings, tables, released);
  launch_all(ready, bindings, memory);
}

// `memory`: for what is between the launches, and for the tables behind it.
void Queue::launch_all(const gpu::Ready& ready, std::span<const Binding> bindings, Address memory) {
  each_launch(ready, bindings, memory, memory + ready.prepared.scratch_bytes(),
              [&](const gpu::Prepared::Launch& its, const KernelLaunch& the_launch) {
                launch(*its.kernel, the_launch);
              });
}

template <class F>
void Queue::each_launch(const gpu::Ready& ready, std::span<const Binding> bindings, Address scratch,
                        Address tables, F&& use) const {
  std::array<Address, gpu::kMostBuffers> addresses;
  std::array<std::byte, gpu::kMostParameterBytes> bytes;
  const gpu::Loaded* loaded = ready.loaded.data();
  for (const gpu::Prepared::Launch& its : ready.prepared.launches()) {
    const size_t count = its.arguments.size();
    if (count > addresses.size()) throw Error("a launch of too many arguments");
    for (size_t i = 0; i < count; ++i) {
      const gpu::Argument& argument = its.arguments[i];
      addresses[i] = argument.is_program    ? loaded->program
                     : argument.is_table    ? tables + its.table_offset
                     : argument.is_counters ? counters_
                                            : scratch + argument.scratch;
    }
    for (const gpu::Prepared::Place& place : its.addresses) {
      addresses[place.at] = address_of(gpu::Prepared::address(place, bindings));
    }
    its.parameters.write(bytes.data(), bindings);
    use(its, KernelLaunch{static_cast<Function>(loaded->function),
                          its.blocks,
                          its.threads,
                          {addresses.data(), count},
                          {bytes.data(), its.parameters.bytes.size()}});
    ++loaded;
  }
}

// Page-locked memory up to the end of the submission; null where there is none.
std::byte* Queue::stage(size_t bytes, Released& released) {
  // The ticket that the submission gets, or an earlier one of another thread's, which comes later
  // on the stream all the same.
  return staging_.take(bytes, last_ + 1, [&] { return ask(last_, released); });
}

void Queue::send_tables(const gpu::Prepared& prepared, std::span<const Binding> bindings,
                        Address to, Released& released) {
  std::byte* const staged = stage(prepared.table_bytes(), released);
  std::vector<std::byte> ordinary(staged != nullptr ? 0 : prepared.table_bytes());
  std::byte* const from = staged != nullptr ? staged : ordinary.data();
  for (const gpu::Prepared::Launch& its : prepared.launches()) {
    its.table.write(from + its.table_offset, bindings);
  }
  transferred(driver_.copy_to_device(to, from, prepared.table_bytes(), stream_), "copy",
              prepared.table_bytes());
}

void Queue::launch(const gpu::Kernel& kernel, const KernelLaunch& its) {
  const Status status = launcher_.launch(its, stream_);
  if (status == kSuccess) [[likely]]
    return;
  raise({name() + ": the kernel " + kernel.name + " cannot be launched: " + describe(status),
         status, loses_context(status)});
}

// What ran before on the stream has used it by then.
Address Queue::scratch(size_t bytes) {
  if (bytes <= scratch_bytes_) return scratch_;
  const size_t wanted =
      (std::max(bytes, 2 * scratch_bytes_) + kScratchStep - 1) / kScratchStep * kScratchStep;
  const Address memory = allocate(wanted);
  // The driver waits for the device before it takes it back.
  if (scratch_ != 0) driver_.free(scratch_);
  scratch_ = memory;
  scratch_bytes_ = wanted;
  return scratch_;
}

// Kernels leave them as they are made, and run one after the other.
void Queue::have_counters() {
  if (counters_ != 0) return;
  const size_t bytes = gpu::kCounters * sizeof(uint32_t);
  const Address memory = allocate(bytes);
  const Status status = driver_.fill_32(memory, 0, gpu::kCounters, stream_);
  if (status != kSuccess) driver_.free(memory);
  transferred(status, "fill", bytes);
  counters_ = memory;
}

void Queue::transferred(Status status, const char* what, size_t bytes) {
  if (status == kSuccess) return;
  raise({name() + ": a " + what + " of " + std::to_string(bytes) +
             " bytes failed: " + describe(status),
         status, loses_context(status)});
}

Ticket Queue::copy(void* to, const void* from, size_t bytes, Direction direction) {
  const ContextGuard guard(gpu_);
  if (captured()) refuse_capture("a copy of " + std::to_string(bytes) + " bytes");
  const std::lock_guard lock(mutex_);
  Status status = kSuccess;
  switch (direction) {
    case Direction::to_device:
      status = driver_.copy_to_device(address_of(to), from, bytes, stream_);
      break;
    case Direction::to_host:
      status = driver_.copy_to_host(to, address_of(from), bytes, stream_);
      break;
    case Direction::on_device:
      status = driver_.copy_on_device(address_of(to), address_of(from), bytes, stream_);
      break;
  }
  transferred(status, "copy", bytes);
  return enqueued();
}

bool Queue::reaches(const hologram::Queue& other) const noexcept {
  return dynamic_cast<const Queue*>(&other) != nullptr;
}

Ticket Queue::copy_from(hologram::Queue& source, void* to, const void* from, size_t bytes) {
  const Gpu& other = static_cast<Queue&>(source).gpu_;
  const ContextGuard guard(gpu_);
  have_access(gpu_, other);
  const std::lock_guard lock(mutex_);
  transferred(driver_.copy_from_peer(address_of(to), gpu_.context, address_of(from), other.context,
                                     bytes, stream_),
              "copy", bytes);
  return next();
}

Ticket Queue::fill(void* to, const void* element, size_t element_bytes, size_t count) {
  const ContextGuard guard(gpu_);
  if (captured()) refuse_capture("a fill of " + std::to_string(element_bytes * count) + " bytes");
  const std::lock_guard lock(mutex_);
  const size_t bytes = element_bytes * count;
  const auto value = [&]<class T>(T) {
    T bits;
    std::memcpy(&bits, element, sizeof bits);
    return bits;
  };
  switch (element_bytes) {
    case 1:
      transferred(driver_.fill_8(address_of(to), value(uint8_t{}), count, stream_), "fill", bytes);
      return enqueued();
    case 2:
      transferred(driver_.fill_16(address_of(to), value(uint16_t{}), count, stream_), "fill",
                  bytes);
      return enqueued();
    case 4:
      transferred(driver_.fill_32(address_of(to), value(uint32_t{}), count, stream_), "fill",
                  bytes);
      return enqueued();
    default: break;
  }
  const gpu::Tensor tensor{to, {static_cast<int64_t>(count)}, {1}};
  launch_moves(gpu::fill(kMoves, element_bytes, tensor, element));
  return enqueued();
}

bool Queue::copies_strided(const StridedCopy& copy) {
  return copy.sizes.size() <= gpu::kMostMoveDimensions;
}

std::optional<Ticket> Queue::copy_strided(const StridedCopy& copy) {
  if (!copies_strided(copy)) return std::nullopt;
  const ContextGuard guard(gpu_);
  if (captured()) refuse_capture("a copy of " + std::to_string(copy.bytes()) + " bytes");
  const gpu::Launches launches = gpu::copy(kMoves, copy);
  const std::lock_guard lock(mutex_);
  launcher_.watch(copy.is_watched);
  launch_moves(launches);
  ++runs.moves;
  return enqueued();
}

void Queue::launch_moves(const gpu::Launches& launches) {
  each_move(launches,
            [&](const gpu::Kernel& kernel, const KernelLaunch& its) { launch(kernel, its); });
}

template <class F>
void Queue::each_move(const gpu::Launches& launches, F&& use) const {
  std::array<Address, gpu::kMostBuffers> addresses;
  for (const gpu::Launch& its : launches.list) {
    std::ranges::transform(its.arguments, addresses.begin(), [](const gpu::Argument& argument) {
      return address_of(argument.address);
    });
    use(*its.kernel, KernelLaunch{kernels_.find(its.kernel->name),
                                  its.blocks,
                                  its.threads,
                                  {addresses.data(), its.arguments.size()},
                                  its.parameters});
  }
}

std::optional<Ticket> Queue::product(const Product& product) {
  const ContextGuard guard(gpu_);
  if (captured()) refuse_capture("a matrix product");
  const std::lock_guard lock(mutex_);
  if (!with_product(product, [&] { return products_.enqueue(product, stream_); })) {
    return std::nullopt;
  }
  Products::enqueued.fetch_add(1, std::memory_order_relaxed);
  return enqueued();
}

bool Queue::computes(const Product& product) {
  const ContextGuard guard(gpu_);
  const std::lock_guard lock(mutex_);
  return with_product(product, [&] { return products_.computes(product); });
}

// An error says of which product it is.
template <class F>
bool Queue::with_product(const Product& product, F&& call) const {
  try {
    return call();
  } catch (const Error& error) {
    throw Error(name() + ": a product of " + std::to_string(product.rows) + "x" +
                std::to_string(product.inner) + " and " + std::to_string(product.inner) + "x" +
                std::to_string(product.columns) + ": " + error.what());
  }
}

Ticket Queue::record(std::shared_ptr<hologram::Moment> moment) {
  const ContextGuard guard(gpu_);
  Released released;
  const std::lock_guard lock(mutex_);
  const Ticket ticket = next();
  if (moment == nullptr) {
    mark_behind(ticket);
  } else {
    const auto& mark = static_cast<Moment&>(*moment).mark();
    check(driver_.record_event(mark->event(), stream_), "cuEventRecord");
    recorded_.push_back({ticket, mark});
  }
  tidy(released);
  return ticket;
}

void Queue::wait_for(const Fence& fence) {
  auto* const other = dynamic_cast<Queue*>(fence.queue);
  if (other == nullptr) return fence.wait();
  std::shared_ptr<Mark> mark;
  {
    const ContextGuard guard(other->gpu_);
    const std::lock_guard lock(other->mutex_);
    if (fence.ticket <= other->done_.load(std::memory_order_acquire)) return;
    mark = other->mark_behind(fence.ticket).mark;
  }
  const ContextGuard guard(gpu_);
  const std::lock_guard lock(mutex_);
  check(driver_.wait_for_event(stream_, mark->event(), 0), "cuStreamWaitEvent");
}

// Of the same stream the order is that of the launches.
void Queue::lend(void* stream) {
  auto* const other = static_cast<Stream>(stream);
  give_context(gpu_);
  if (other == stream_) return;
  const ContextGuard guard(gpu_);
  const std::lock_guard lock(mutex_);
  Ticket& lent = lent_[other];
  if (last_ <= std::max(lent, done_.load(std::memory_order_relaxed))) return;
  check(driver_.wait_for_event(other, mark_behind(last_).mark->event(), 0), "cuStreamWaitEvent");
  lent = last_;
}

Ticket Queue::take_back(void* stream) {
  auto* const other = static_cast<Stream>(stream);
  const ContextGuard guard(gpu_);
  const std::lock_guard lock(mutex_);
  if (other != stream_) {
    const std::shared_ptr<Mark> mark = new_mark();
    check(driver_.record_event(mark->event(), other), "cuEventRecord");
    check(driver_.wait_for_event(stream_, mark->event(), 0), "cuStreamWaitEvent");
    marks_.push_back(mark);  // recorded anew, it is another event to those who wait for it
  }
  return next();
}

Ticket Queue::last() noexcept {
  const std::lock_guard lock(mutex_);
  return last_;
}

bool Queue::done(Ticket ticket) noexcept {
  if (ticket <= done_.load(std::memory_order_acquire)) return true;
  Released released;
  try {
    const ContextGuard guard(gpu_);
    const std::lock_guard lock(mutex_);
    if (ticket <= done_.load(std::memory_order_relaxed)) return true;
    if (captured()) return false;  // no event says so
    ask(ticket, released);
  } catch (const std::exception&) {  // nothing comes to an end any more
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr) error_ = std::current_exception();
    note_done(last_, released);
  }
  return ticket <= done_.load(std::memory_order_acquire);
}

void Queue::wait(Ticket ticket) {
  const ContextGuard guard(gpu_);
  Recorded reached{ticket, nullptr};
  {
    const std::lock_guard lock(mutex_);
    if (ticket > done_.load(std::memory_order_relaxed)) reached = mark_behind(ticket);
  }
  const Status status =
      reached.mark != nullptr ? driver_.synchronize_event(reached.mark->event()) : kSuccess;
  reached.mark = nullptr;  // so that it can be used again
  Released released;
  const std::lock_guard lock(mutex_);
  if (status != kSuccess) lost(status);
  note_done(reached.ticket, released);
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

// Of what has just been enqueued. A stream of somebody else's may be gone when it is asked for.
Ticket Queue::enqueued() {
  const Ticket ticket = next();
  if (!owned_) mark_behind(ticket);
  return ticket;
}

// Behind all up to the ticket; what is recorded already, or a new one.
Queue::Recorded Queue::mark_behind(Ticket ticket) {
  const auto found = std::ranges::lower_bound(recorded_, ticket, {}, &Recorded::ticket);
  if (found != recorded_.end()) return *found;
  if (captured()) refuse_capture("an event");
  std::shared_ptr<Mark> mark = new_mark();
  const Status status = driver_.record_event(mark->event(), stream_);
  if (status != kSuccess) lost(status);
  return recorded_.emplace_back(Recorded{last_, std::move(mark)});
}

std::shared_ptr<Mark> Queue::new_mark() {
  if (marks_.empty()) return std::make_shared<Mark>(gpu_, false);
  std::shared_ptr<Mark> mark = std::move(marks_.back());
  marks_.pop_back();
  return mark;
}

// Up to which ticket all is done, without waiting for more; one day the given one is. What is done
// is let go.
Ticket Queue::ask(Ticket ticket, Released& released) {
  mark_behind(ticket);
  const Status status = look(released);
  if (status != kSuccess && status != kNotReady) lost(status);
  return done_.load(std::memory_order_relaxed);
}

// Notes what is done of that which is recorded; what is not is kNotReady.
Status Queue::look(Released& released) noexcept {
  Status status = kSuccess;
  while (!recorded_.empty() && status == kSuccess) {
    status = driver_.query_event(recorded_.front().mark->event());
    if (status == kSuccess) note_done(recorded_.front().ticket, released);
  }
  return status;
}

void Queue::note_done(Ticket ticket, Released& released) noexcept {
  while (!recorded_.empty() && recorded_.front().ticket <= ticket) {
    std::shared_ptr<Mark>& mark = recorded_.front().mark;
    // Nobody else waits for it. Those of moments come from outside, and would be ever more.
    if (mark.use_count() == 1 && !mark->with_timing()) marks_.push_back(std::move(mark));
    recorded_.pop_front();
  }
  while (!submitted_.empty() && submitted_.front().ticket <= ticket) {
    released.push_back(std::move(submitted_.front().compiled));
    submitted_.pop_front();
  }
  if (ticket > done_.load(std::memory_order_relaxed)) {
    done_.store(ticket, std::memory_order_release);
  }
}

// The programs of cold kernels lie in device memory as long as their code lives.
void Queue::keep(const std::shared_ptr<const Compiled>& compiled, Ticket ticket) {
  if (!submitted_.empty() && submitted_.back().compiled == compiled) {
    submitted_.back().ticket = ticket;
  } else {
    submitted_.push_back({ticket, compiled});
  }
}

// Lets go of what is done where nobody asks; looks less often the more there is to do.
void Queue::tidy(Released& released) noexcept {
  if (submitted_.size() + recorded_.size() < most_kept_) return;
  const CaptureGuard capture;
  try {
    mark_behind(last_);
    look(released);
  } catch (const std::exception&) {  // whoever waits is told
  }
  most_kept_ = std::max(kMostKept, 2 * (submitted_.size() + recorded_.size()));
}

// The driver says of an error of a kernel what it was, not of which: what was not finished is
// named. Its context takes no more work then.
void Queue::lost(Status status) {
  std::string text;
  size_t named = 0;
  for (const Submitted& its : submitted_) {
    for (size_t i = 0; i < its.compiled->plan.batches.size() && named < kMostNamed; ++i) {
      text += (named++ == 0 ? "; it was one of: " : "; ") + describe_pass(*its.compiled, i);
    }
  }
  raise(lost_fault(gpu_, status, text));
}

}  // namespace hologram::cuda

// {emitted, pieces, cold, cpu, moves}, for tests.
extern "C" HOLOGRAM_EXPORT void hologram_cuda_runs(uint64_t* counts) {
  for (const auto& [name, count] : hologram::cuda::Queue::runs.named()) *counts++ = count;
}

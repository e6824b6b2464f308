#include "commands.h"

#include <Block.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "../gpu/kernel_library.h"
#include "../sim/late_thread.h"
#include "settings.h"

namespace simulated_metal {

// Threads of a queue. They outlive it, as its last reference may be theirs, and serve others.
struct Workers {
  explicit Workers(int seed)
      : kernels(static_cast<uint64_t>(seed), settings().delay),
        handlers(static_cast<uint64_t>(seed) + 1'000'000, settings().delay) {}
  sim::LateThread kernels, handlers;
  const pid_t process = ::getpid();  // threads are not there in a child
};

namespace {

constexpr size_t kMostBytes = 4096;
constexpr int kMostCommandBuffers = 64;  // of a queue that was made without saying how many
constexpr unsigned long kSimdWidth = 32;
constexpr unsigned long kSerial = 0;  // MTL::DispatchType

using Block = void (^)(CommandBuffer*);

std::atomic<bool> any_failed{false};

class IdleWorkers {
 public:
  static IdleWorkers& instance() {
    static auto& its = *new IdleWorkers;
    return its;
  }
  Workers* take() {
    const std::lock_guard guard(mutex_);
    if (all_.empty()) return new Workers(settings().seed + made_++);
    Workers* const its = all_.back();
    all_.pop_back();
    return its;
  }
  void put(Workers* its) {
    const std::lock_guard guard(mutex_);
    all_.push_back(its);
  }

 private:
  std::mutex mutex_;
  std::vector<Workers*> all_;
  int made_ = 0;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string argument_text(size_t index, const Kernel& kernel) {
  return "argument " + std::to_string(index) + " of kernel " + kernel.name;
}

// Whether each argument of a kernel is given, and no other one.
void check(const Bindings& bindings, const Kernel& kernel) {
  std::array<bool, kMostArguments> known{};
  for (const KernelArgument& its : kernel.arguments) {
    const Binding& given = bindings.at(its.index);
    known[its.index] = true;
    if (!given.buffer && !given.is_bytes) {
      misuse(argument_text(its.index, kernel) + " is missing");
    }
    if (!its.is_buffer && given.is_bytes && given.bytes.size() != its.bytes) {
      misuse(argument_text(its.index, kernel) + " has " + std::to_string(its.bytes) +
             " bytes, given are " + std::to_string(given.bytes.size()));
    }
    if (!its.is_buffer && given.buffer && given.buffer->bytes() - given.offset < its.bytes) {
      misuse(argument_text(its.index, kernel) + " reaches beyond its buffer");
    }
  }
  for (size_t i = 0; i < bindings.size(); ++i) {
    if ((bindings[i].buffer || bindings[i].is_bytes) && !known[i]) {
      misuse(argument_text(i, kernel) + " is given, but it has none");
    }
  }
}

}  // namespace

CommandQueue::CommandQueue()
    : Object(Kinds::instance().at("MTLCommandQueue")), workers_(IdleWorkers::instance().take()) {}

void CommandQueue::deallocate() {
  IdleWorkers::instance().put(workers_);
}

void CommandQueue::take_place() {
  std::unique_lock lock(mutex_);
  if (places_ == kMostCommandBuffers && committed_ == 0) {
    misuse("a command buffer is made that waits forever: none of the queue's is committed");
  }
  changed_.wait(lock, [&] { return places_ < kMostCommandBuffers; });
  ++places_;
}

void CommandQueue::note_commit() {
  const std::lock_guard guard(mutex_);
  ++committed_;
}

void CommandQueue::leave_place(bool was_committed) {
  const std::lock_guard guard(mutex_);
  --places_;
  if (was_committed) --committed_;
  changed_.notify_all();
}

CommandBuffer::CommandBuffer(CommandQueue* queue)
    : Object(Kinds::instance().at("MTLCommandBuffer")), queue_(Ref<CommandQueue>::retained(queue)) {
  queue->take_place();
}

bool CommandBuffer::has_any_failed() {
  return any_failed;
}

void CommandBuffer::check_writable(const char* what) {
  if (status() != Status::not_enqueued) {
    misuse(std::string(what) + ": the command buffer is committed");
  }
  if (encoder_ != nullptr) misuse(std::string(what) + ": an encoder of the command buffer is open");
}

ComputeEncoder* CommandBuffer::make_encoder(unsigned long dispatch_type) {
  check_writable("an encoder");
  if (dispatch_type != kSerial) misuse("an encoder of kernels that do not wait for each other");
  auto* const encoder = new ComputeEncoder(this);
  encoder_ = encoder;
  return encoder;
}

void CommandBuffer::end_encoder(const ComputeEncoder* encoder) {
  if (encoder_ == encoder) encoder_ = nullptr;
}

void CommandBuffer::add(Step step) {
  steps_.push_back(std::move(step));
}

void CommandBuffer::add_handler(Handler handler) {
  check_writable("a handler");
  handlers_.push_back(std::move(handler));
}

void CommandBuffer::commit() {
  check_writable("commit");
  if (queue_->workers().process != ::getpid()) misuse("commit: in a child of the process");
  status_ = Status::committed;
  queue_->note_commit();
  for (const Step& step : steps_) {
    const auto* const dispatch = std::get_if<Dispatch>(&step);
    if (dispatch == nullptr) continue;
    for (const Binding& its : dispatch->bindings) {
      if (its.buffer) its.buffer->begin_use();
    }
  }
  const bool fails = settings().failed_commands.next();
  queue_->workers().kernels.push([its = Ref<CommandBuffer>::retained(this), fails] {
    its->run(fails);
    its->queue_->workers().handlers.push([its] {
      for (const Handler& handler : its->handlers_) handler(its.get());
      its->handlers_.clear();
    });
  });
}

CommandBuffer::Status CommandBuffer::status() {
  const std::lock_guard guard(mutex_);
  return status_;
}

Error* CommandBuffer::error() {
  const std::lock_guard guard(mutex_);
  return error_.get();
}

// Of steps from this one on: kernels of theirs do not run any more.
void CommandBuffer::end_uses(size_t from) {
  for (; from < steps_.size(); ++from) {
    const auto* const dispatch = std::get_if<Dispatch>(&steps_[from]);
    if (dispatch == nullptr) continue;
    for (const Binding& its : dispatch->bindings) {
      if (its.buffer) its.buffer->end_use();
    }
  }
}

void CommandBuffer::run(const Dispatch& dispatch) {
  const Kernel& kernel = dispatch.pipeline->kernel;
  if (dispatch.threads > static_cast<uint32_t>(settings().most_threads)) {
    throw std::runtime_error(kernel.name + ": " + std::to_string(dispatch.threads) +
                             " threads of a threadgroup: there may be " +
                             std::to_string(settings().most_threads));
  }
  std::vector<hg_argument> arguments;
  for (const KernelArgument& its : kernel.arguments) {
    const Binding& given = dispatch.bindings.at(its.index);
    const void* const data = given.is_bytes
                                 ? static_cast<const void*>(given.bytes.data())
                                 : static_cast<const void*>(given.buffer->memory() + given.offset);
    arguments.push_back({data, its.bytes});
  }
  kernel.library->run(kernel.code, dispatch.blocks, dispatch.threads, arguments);
}

void CommandBuffer::run(bool fails) {
  double begin = 0;
  std::string error = fails ? "as a test wants it" : "";
  size_t number = 0;
  for (; number < steps_.size() && error.empty(); ++number) {
    const Step& step = steps_[number];
    if (const auto* const wait = std::get_if<Wait>(&step)) {
      wait->event->wait(wait->value);
      continue;
    }
    if (begin == 0) begin = now();
    if (const auto* const signal = std::get_if<Signal>(&step)) {
      signal->event->set(signal->value);
      continue;
    }
    const Dispatch& dispatch = std::get<Dispatch>(step);
    try {
      run(dispatch);
    } catch (const std::exception& what) {
      error = what.what();
    }
    // Here, so that who waits for a signal behind it finds it ended.
    for (const Binding& its : dispatch.bindings) {
      if (its.buffer) its.buffer->end_use();
    }
  }
  end_uses(number);
  if (!error.empty()) any_failed = true;
  {
    const std::lock_guard guard(mutex_);
    end_ = now();
    begin_ = begin != 0 ? begin : end_;
    if (!error.empty()) error_ = Ref<Error>(new Error("command buffer failed: " + error));
    status_ = error.empty() ? Status::completed : Status::error;
  }
  queue_->leave_place(true);
}

void CommandBuffer::deallocate() {
  if (status_ == Status::not_enqueued) queue_->leave_place(false);
  steps_.clear();
  handlers_.clear();
  error_ = {};
  queue_ = {};
}

ComputeEncoder::ComputeEncoder(CommandBuffer* commands)
    : Object(Kinds::instance().at("MTLComputeCommandEncoder")),
      commands_(Ref<CommandBuffer>::retained(commands)) {}

void ComputeEncoder::check_open(const char* what) {
  if (!commands_) misuse(std::string(what) + ": the encoder has ended");
}

void ComputeEncoder::set_pipeline(Pipeline* pipeline) {
  check_open("a pipeline");
  if (pipeline == nullptr) misuse("no pipeline is given to an encoder");
  pipeline_ = Ref<Pipeline>::retained(pipeline);
}

Binding& ComputeEncoder::at(size_t index) {
  check_open("an argument");
  if (index >= kMostArguments) {
    misuse("argument " + std::to_string(index) + ": the last one is " +
           std::to_string(kMostArguments - 1));
  }
  return bindings_[index];
}

void ComputeEncoder::set_buffer(Buffer* buffer, size_t offset, size_t index) {
  Binding& its = at(index);
  if (buffer != nullptr && offset >= buffer->bytes()) {
    misuse("argument " + std::to_string(index) + " begins behind its buffer");
  }
  its = {Ref<Buffer>::retained(buffer), offset, {}, false};
}

void ComputeEncoder::set_bytes(const void* bytes, size_t count, size_t index) {
  Binding& its = at(index);
  if (count == 0 || count > kMostBytes) {
    misuse("argument " + std::to_string(index) + " of " + std::to_string(count) +
           " bytes: there may be 1 to " + std::to_string(kMostBytes));
  }
  const auto* const first = static_cast<const std::byte*>(bytes);
  its = {{}, 0, {first, first + count}, true};
}

void ComputeEncoder::dispatch(Size blocks, Size threads) {
  check_open("a dispatch");
  if (!pipeline_) misuse("a dispatch without a pipeline");
  if (blocks.height != 1 || blocks.depth != 1 || threads.height != 1 || threads.depth != 1) {
    misuse("a dispatch of more dimensions than one");
  }
  if (blocks.width == 0 || threads.width == 0) misuse("a dispatch of no threads");
  // What simdgroups do where some of their threads are missing depends on the device.
  if (threads.width % kSimdWidth != 0) {
    misuse("a threadgroup of " + std::to_string(threads.width) + " threads: no whole simdgroups");
  }
  check(bindings_, pipeline_->kernel);
  // Metal would take the same arguments for the next one; nothing is to rely on that.
  commands_->add(Dispatch{pipeline_, std::exchange(bindings_, {}),
                          static_cast<uint32_t>(blocks.width),
                          static_cast<uint32_t>(threads.width)});
}

void ComputeEncoder::end() {
  check_open("an end");
  commands_->end_encoder(this);
  commands_ = {};
}

void ComputeEncoder::deallocate() {
  if (commands_) misuse("an encoder is released that has not ended");
  pipeline_ = {};
  bindings_ = {};
}

void define_commands(Kinds& kinds) {
  Kind& queue = kinds.define("MTLCommandQueue");
  queue.add("commandBuffer",
            [](CommandQueue* self, SEL) { return autoreleased(new CommandBuffer(self)); });

  Kind& commands = kinds.define("MTLCommandBuffer");
  commands.add("computeCommandEncoderWithDispatchType:",
               [](CommandBuffer* self, SEL, unsigned long type) {
                 return autoreleased(self->make_encoder(type));
               });
  commands.add("encodeWaitForEvent:value:",
               [](CommandBuffer* self, SEL, SharedEvent* event, uint64_t value) {
                 self->check_writable("a wait for an event");
                 self->add(Wait{Ref<SharedEvent>::retained(event), value});
               });
  commands.add("encodeSignalEvent:value:",
               [](CommandBuffer* self, SEL, SharedEvent* event, uint64_t value) {
                 self->check_writable("a signal of an event");
                 self->add(Signal{Ref<SharedEvent>::retained(event), value});
               });
  commands.add("addCompletedHandler:", [](CommandBuffer* self, SEL, Block block) {
    self->add_handler([copy = std::shared_ptr<const void>(_Block_copy(block), &_Block_release)](
                          CommandBuffer* its) { ((Block)copy.get())(its); });
  });
  commands.add("commit", [](CommandBuffer* self, SEL) { self->commit(); });
  commands.add("status", [](CommandBuffer* self, SEL) { return self->status(); });
  commands.add("error", [](CommandBuffer* self, SEL) { return self->error(); });
  commands.add("GPUStartTime", [](CommandBuffer* self, SEL) { return self->begin(); });
  commands.add("GPUEndTime", [](CommandBuffer* self, SEL) { return self->end(); });

  Kind& encoder = kinds.define("MTLComputeCommandEncoder");
  encoder.add("setComputePipelineState:",
              [](ComputeEncoder* self, SEL, Pipeline* pipeline) { self->set_pipeline(pipeline); });
  encoder.add("setBuffer:offset:atIndex:",
              [](ComputeEncoder* self, SEL, Buffer* buffer, size_t offset, size_t index) {
                self->set_buffer(buffer, offset, index);
              });
  encoder.add("setBytes:length:atIndex:",
              [](ComputeEncoder* self, SEL, const void* bytes, size_t count, size_t index) {
                self->set_bytes(bytes, count, index);
              });
  encoder.add("dispatchThreadgroups:threadsPerThreadgroup:",
              [](ComputeEncoder* self, SEL, Size blocks, Size threads) {
                self->dispatch(blocks, threads);
              });
  encoder.add("endEncoding", [](ComputeEncoder* self, SEL) { self->end(); });
}

}  // namespace simulated_metal

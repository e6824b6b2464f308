// What a backend must not do: each case ends the process. What runtime.h does not let happen is
// done with metal-cpp itself.
#include <sys/wait.h>
#include <unistd.h>

#include <Metal/Metal.hpp>
#include <thread>

#include "check.h"

extern "C" {
void* objc_autoreleasePoolPush(void);
void objc_autoreleasePoolPop(void* pool);
}

namespace check {
namespace {

struct Pool {
  ~Pool() { objc_autoreleasePoolPop(pool); }
  void* const pool = objc_autoreleasePoolPush();
};

MTL::CommandQueue* metal(const CommandQueue& queue) {
  return static_cast<MTL::CommandQueue*>(queue.get());
}
MTL::Device* metal(const Device& device) {
  return static_cast<MTL::Device*>(device.get());
}

void open_encoder() {
  const Ready its;
  const Pool pool;
  MTL::CommandBuffer* const commands = metal(its.queue)->commandBuffer();
  commands->computeCommandEncoder(MTL::DispatchTypeSerial);
  commands->commit();
}

void encoder_that_has_not_ended() {
  const Ready its;
  const Pool pool;
  metal(its.queue)->commandBuffer()->computeCommandEncoder(MTL::DispatchTypeSerial);
}

void signal_with_an_open_encoder() {
  const Ready its;
  const Event event = its.device.make_event();
  const Pool pool;
  MTL::CommandBuffer* const commands = metal(its.queue)->commandBuffer();
  commands->computeCommandEncoder(MTL::DispatchTypeSerial);
  commands->encodeSignalEvent(static_cast<MTL::SharedEvent*>(event.get()), 1);
}

void concurrent_encoder() {
  const Ready its;
  const Pool pool;
  metal(its.queue)->commandBuffer()->computeCommandEncoder(MTL::DispatchTypeConcurrent);
}

void two_commits() {
  const Ready its;
  const Pool pool;
  MTL::CommandBuffer* const commands = metal(its.queue)->commandBuffer();
  commands->commit();
  commands->commit();
}

void dead_object() {
  const Ready its;
  MTL::CommandBuffer* commands = nullptr;
  {
    const Pool pool;
    commands = metal(its.queue)->commandBuffer();
  }
  commands->status();
}

void dead_argument() {
  const Ready its;
  void* event = nullptr;
  {
    const Event dead = its.device.make_event();
    event = dead.get();
  }
  const Pool pool;
  metal(its.queue)->commandBuffer()->encodeWait(static_cast<MTL::SharedEvent*>(event), 1);
}

void two_releases() {
  const Ready its;
  const Event event = its.device.make_event();
  static_cast<MTL::SharedEvent*>(event.get())->release();
}

void no_pool() {
  const Ready its;
  metal(its.queue)->commandBuffer();
}

void pools_out_of_order() {
  void* const first = objc_autoreleasePoolPush();
  objc_autoreleasePoolPush();
  objc_autoreleasePoolPop(first);
}

void thread_with_a_pool() {
  std::thread([] { objc_autoreleasePoolPush(); }).join();
}

void unknown_selector() {
  const Ready its;
  metal(its.device)->newFence();
}

void unknown_selector_of_a_class() {
  const Pool pool;
  NS::String::string();
}

void nil() {
  const Event none;
  none.value();
}

void compile_with(MTL::CompileOptions* options, const Device& device) {
  NS::Error* error = nullptr;
  metal(device)->newLibrary(NS::String::string(kText, NS::UTF8StringEncoding), options, &error);
}
void fast_math() {
  const Pool pool;
  MTL::CompileOptions* const options = MTL::CompileOptions::alloc()->init()->autorelease();
  options->setLanguageVersion(MTL::LanguageVersion3_1);
  compile_with(options, Device::system_default());
}
void other_language() {
  const Pool pool;
  MTL::CompileOptions* const options = MTL::CompileOptions::alloc()->init()->autorelease();
  options->setLanguageVersion(MTL::LanguageVersion3_2);
  compile_with(options, Device::system_default());
}

// The queue waits for an event while the host gives the memory up.
void buffer_in_use() {
  const Ready its;
  const Event event = its.device.make_event();
  Array<int> x(its.device);
  const Commands::Place place{&x.buffer, 0};
  Commands commands = its.queue.commands();
  commands.wait_for(event, 1);
  commands.dispatch(its.pipeline("increment"), {&place, 1}, {}, 1, 32);
  commands.commit([](const Finished&) {});
  x.buffer = Buffer();
}

void buffer_gone_before_commit() {
  const Ready its;
  Array<int> x(its.device);
  const Commands::Place place{&x.buffer, 0};
  Commands commands = its.queue.commands();
  commands.dispatch(its.pipeline("increment"), {&place, 1}, {}, 1, 32);
  x.buffer = Buffer();
  commands.commit([](const Finished&) {});
}

void half_a_page() {
  Device::system_default().wrap(pages<char>(32768).data(), 16384 + 4096);
}
void within_a_page() {
  Device::system_default().wrap(pages<char>(65536).data() + 4096, 16384);
}
void no_bytes() {
  Device::system_default().wrap(pages<char>(16384).data(), 0);
}
void no_memory_there() {
  char* const start = pages<char>(65536).data();
  ::munmap(start + 16384, 16384);
  Device::system_default().wrap(start, 65536);
}
void memory_of_another_buffer() {
  const Device device = Device::system_default();
  char* const start = pages<char>(65536).data();
  const Buffer first = device.wrap(start + 16384, 16384),
               second = device.wrap(start + 32768, 16384);
  REQUIRE(first && second);
  device.wrap(start, 32768);
}

// Dispatches `kernel` with so many buffers and bytes.
void dispatch(const char* kernel, size_t buffers, size_t bytes, uint32_t blocks = 1,
              uint32_t threads = 32, size_t offset = 0) {
  const Ready its;
  const Array<int> x(its.device);
  const std::vector<Commands::Place> places(buffers, {&x.buffer, offset});
  const std::vector<std::byte> parameters(bytes);
  its.queue.commands().dispatch(its.pipeline(kernel), places, parameters, blocks, threads);
}
void many_buffers() {
  dispatch("increment", 32, 0);
}
void many_bytes() {
  dispatch("linear", 2, 4100);
}
void part_of_a_simdgroup() {
  dispatch("increment", 1, 0, 1, 48);
}
void no_blocks() {
  dispatch("increment", 1, 0, 0);
}
void missing_buffer() {
  dispatch("linear", 1, 0);
}
void missing_parameters() {
  dispatch("linear", 2, 0);
}
void other_parameters() {
  dispatch("linear", 2, 16);
}
void one_argument_too_many() {
  dispatch("increment", 2, 0);
}
void behind_the_buffer() {
  dispatch("increment", 1, 0, 1, 32, 16384);
}

// A page has 4,096 numbers; the threads behind them write, too.
void beyond_the_end() {
  const Ready its;
  const Array<int> x(its.device);
  const Commands::Place place{&x.buffer, 0};
  Commands commands = its.queue.commands();
  commands.dispatch(its.pipeline("increment"), {&place, 1}, {}, 129, 32);
  run(std::move(commands));
}

void event_that_falls() {
  Event event = Device::system_default().make_event();
  event.set_value(2);
  event.set_value(1);
}

void many_command_buffers() {
  const Ready its;
  std::vector<Commands> all;
  for (int i = 0; i < 65; ++i) all.push_back(its.queue.commands());
}

void in_a_child() {
  const Ready its;
  const pid_t child = ::fork();
  if (child == 0) its.queue.commands().commit([](const Finished&) {});
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) std::abort();
}

constexpr NamedCase kCases[] = {
    {"open_encoder", open_encoder},
    {"encoder_that_has_not_ended", encoder_that_has_not_ended},
    {"signal_with_an_open_encoder", signal_with_an_open_encoder},
    {"concurrent_encoder", concurrent_encoder},
    {"two_commits", two_commits},
    {"dead_object", dead_object},
    {"dead_argument", dead_argument},
    {"two_releases", two_releases},
    {"no_pool", no_pool},
    {"pools_out_of_order", pools_out_of_order},
    {"thread_with_a_pool", thread_with_a_pool},
    {"unknown_selector", unknown_selector},
    {"unknown_selector_of_a_class", unknown_selector_of_a_class},
    {"nil", nil},
    {"fast_math", fast_math},
    {"other_language", other_language},
    {"buffer_in_use", buffer_in_use},
    {"buffer_gone_before_commit", buffer_gone_before_commit},
    {"half_a_page", half_a_page},
    {"within_a_page", within_a_page},
    {"no_bytes", no_bytes},
    {"no_memory_there", no_memory_there},
    {"memory_of_another_buffer", memory_of_another_buffer},
    {"many_buffers", many_buffers},
    {"many_bytes", many_bytes},
    {"part_of_a_simdgroup", part_of_a_simdgroup},
    {"no_blocks", no_blocks},
    {"missing_buffer", missing_buffer},
    {"missing_parameters", missing_parameters},
    {"other_parameters", other_parameters},
    {"one_argument_too_many", one_argument_too_many},
    {"behind_the_buffer", behind_the_buffer},
    {"beyond_the_end", beyond_the_end},
    {"event_that_falls", event_that_falls},
    {"many_command_buffers", many_command_buffers},
    {"in_a_child", in_a_child},
};

}  // namespace

std::span<const NamedCase> cases_of_misuse() {
  return kCases;
}

}  // namespace check

// What works.
#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "check.h"

extern "C" int64_t simulated_metal_living(const char* kind);

namespace check {
namespace {

void device() {
  const Device its = Device::system_default();
  const DeviceInfo info = its.info();
  REQUIRE(info.name == "simulated Metal GPU");
  REQUIRE(info.memory == uint64_t{10} << 30);
  REQUIRE(info.most_buffer_bytes == uint64_t{8} << 30);
  REQUIRE(info.shared_memory_bytes == 32768);
  REQUIRE(Device::page_size() == 16384);
  REQUIRE(its.allocated_bytes() == 0);
  {
    const Array<float> x(its, 2 * 16384);
    REQUIRE(its.allocated_bytes() == 2 * 16384);
    const Buffer other = x.buffer;
    REQUIRE(other.get() == x.buffer.get());
    REQUIRE(its.allocated_bytes() == 2 * 16384);
  }
  REQUIRE(its.allocated_bytes() == 0);
}

void pointwise() {
  const Ready its;
  const Array<float> x(its.device), y(its.device);
  constexpr uint32_t kCount = 1000;
  for (size_t i = 0; i < x.host.size(); ++i) x.host[i] = static_cast<float>(i);
  // From the tenth element of x on, to the twentieth one of y.
  const Commands::Place places[] = {{&x.buffer, 40}, {&y.buffer, 80}};
  const Numbers numbers{2, 3, kCount};
  Commands commands = its.queue.commands();
  commands.dispatch(its.pipeline("linear"), places, bytes_of(numbers), 8, 128);
  REQUIRE(run(std::move(commands)).error.empty());
  for (size_t i = 0; i < y.host.size(); ++i) {
    const bool is_result = i >= 20 && i < 20 + kCount;
    REQUIRE(y.host[i] == (is_result ? 2.0f * static_cast<float>(i - 10) + 3.0f : 0.0f));
  }
}

void rows() {
  const Ready its;
  const Array<float> x(its.device), y(its.device);
  constexpr uint32_t kRows = 5, kColumns = 700;
  for (size_t i = 0; i < x.host.size(); ++i) x.host[i] = static_cast<float>(i % 13);
  for (const uint32_t threads : {32u, 256u, 1024u}) {
    const Commands::Place places[] = {{&x.buffer, 0}, {&y.buffer, 0}};
    Commands commands = its.queue.commands();
    commands.dispatch(its.pipeline("sum_rows"), places, bytes_of(kColumns), kRows, threads);
    REQUIRE(run(std::move(commands)).error.empty());
    for (uint32_t row = 0; row < kRows; ++row) {
      float sum = 0;  // of whole numbers: exact in any order
      for (uint32_t i = 0; i < kColumns; ++i) sum += x.host[row * kColumns + i];
      REQUIRE(y.host[row] == sum);
    }
  }
}

void arguments_by_index() {
  const Ready its;
  const Array<float> x(its.device), y(its.device);
  for (size_t i = 0; i < 32; ++i) x.host[i] = static_cast<float>(i);
  const Commands::Place places[] = {{&y.buffer, 0}, {&x.buffer, 0}};
  Commands commands = its.queue.commands();
  commands.dispatch(its.pipeline("subtract"), places, bytes_of(4.0f), 1, 32);
  REQUIRE(run(std::move(commands)).error.empty());
  for (size_t i = 0; i < 32; ++i) REQUIRE(y.host[i] == static_cast<float>(i) - 4.0f);
}

// Kernels of a command buffer, and command buffers of a queue, run in order; more of them than a
// queue has at a time.
void order() {
  const Ready its;
  const Array<int> x(its.device);
  const Pipeline increment = its.pipeline("increment");
  const Event event = its.device.make_event();
  constexpr int kBuffers = 200;
  std::vector<int> ended;
  std::atomic<int> count = 0;
  for (int i = 0; i < kBuffers; ++i) {
    Commands commands = its.queue.commands();
    const Commands::Place place{&x.buffer, 0};
    for (int k = 0; k < 3; ++k) commands.dispatch(increment, {&place, 1}, {}, 1, 32);
    commands.signal(event, static_cast<uint64_t>(i) + 1);
    commands.commit([&, i](const Finished& how) {
      REQUIRE(how.error.empty());
      ended.push_back(i);
      ++count;
    });
  }
  REQUIRE(event.wait(kBuffers, 60'000));
  for (size_t i = 0; i < 32; ++i) REQUIRE(x.host[i] == 3 * kBuffers);
  while (count != kBuffers) std::this_thread::yield();
  for (int i = 0; i < kBuffers; ++i) REQUIRE(ended[static_cast<size_t>(i)] == i);
}

// Two queues that take turns.
void two_queues() {
  const Ready its;
  const std::array<CommandQueue, 2> queues{its.queue, its.device.make_queue()};
  const std::array<Event, 2> events{its.device.make_event(), its.device.make_event()};
  const Array<float> x(its.device);
  const Pipeline linear = its.pipeline("linear");
  constexpr uint64_t kTurns = 20;
  Ending last;
  for (uint64_t turn = 1; turn <= kTurns; ++turn) {
    for (const size_t which : {0, 1}) {
      Commands commands = queues[which].commands();
      // What the other one has done before it.
      commands.wait_for(events[1 - which], which == 0 ? turn - 1 : turn);
      const Commands::Place places[] = {{&x.buffer, 0}, {&x.buffer, 0}};
      const Numbers numbers = which == 0 ? Numbers{1, 1, 32} : Numbers{2, 0, 32};
      commands.dispatch(linear, places, bytes_of(numbers), 1, 32);
      commands.signal(events[which], turn);
      const bool is_last = turn == kTurns && which == 1;
      commands.commit(is_last ? last.callback() : [](const Finished&) {});
    }
  }
  REQUIRE(last.wait().error.empty());
  float expected = 0;
  for (uint64_t turn = 0; turn < kTurns; ++turn) expected = (expected + 1) * 2;
  for (size_t i = 0; i < 32; ++i) REQUIRE(x.host[i] == expected);
}

// Within a command buffer: kernels before and after a signal and a wait.
void between() {
  const Ready its;
  const CommandQueue other = its.device.make_queue();
  const Event there = its.device.make_event(), back = its.device.make_event();
  const Array<float> x(its.device);
  const Pipeline linear = its.pipeline("linear");
  const Commands::Place places[] = {{&x.buffer, 0}, {&x.buffer, 0}};
  const auto add = [&](Commands& commands, Numbers numbers) {
    commands.dispatch(linear, places, bytes_of(numbers), 1, 32);
  };
  Commands first = its.queue.commands(), second = other.commands();
  add(first, {1, 1, 32});
  first.signal(there, 1);
  first.wait_for(back, 1);
  add(first, {1, 3, 32});
  first.wait_for(back, 1);  // it has it
  add(first, {10, 0, 32});
  second.wait_for(there, 1);
  add(second, {2, 0, 32});
  second.signal(back, 1);
  Ending ending;
  first.commit(ending.callback());
  second.commit([](const Finished&) {});
  REQUIRE(ending.wait().error.empty());
  for (size_t i = 0; i < 32; ++i) REQUIRE(x.host[i] == ((0 + 1) * 2 + 3) * 10);
}

// The host waits for a queue, and a queue for the host.
void events() {
  const Ready its;
  const Event event = its.device.make_event();
  REQUIRE(event.value() == 0);
  REQUIRE(event.wait(0, 0));
  REQUIRE(!event.wait(1, 20));
  const Array<int> x(its.device);
  Commands commands = its.queue.commands();
  const Commands::Place place{&x.buffer, 0};
  commands.wait_for(event, 1);
  commands.dispatch(its.pipeline("increment"), {&place, 1}, {}, 1, 32);
  commands.signal(event, 2);
  Ending ending;
  commands.commit(ending.callback());
  REQUIRE(!event.wait(2, 50));
  REQUIRE(x.host[0] == 0 && ending.times() == 0);
  Event same = event;
  same.set_value(1);
  REQUIRE(event.wait(2, UINT64_MAX));
  REQUIRE(x.host[0] == 1);
  REQUIRE(event.value() == 2);
  REQUIRE(ending.wait().error.empty());
}

void times() {
  const Ready its;
  const Array<float> x(its.device);
  const Event event = its.device.make_event();
  const Commands::Place places[] = {{&x.buffer, 0}, {&x.buffer, 0}};
  Ending first, second;
  for (Ending* ending : {&first, &second}) {
    Commands commands = its.queue.commands();
    commands.dispatch(its.pipeline("linear"), places, bytes_of(Numbers{1, 1, 32}), 1000, 1024);
    commands.commit(ending->callback());
  }
  const Finished a = first.wait(), b = second.wait();
  REQUIRE(0 < a.begin && a.begin < a.end && a.end <= b.begin && b.begin < b.end);
  REQUIRE(b.end - a.begin < 60);
}

// What a callback holds is given up once, and what nobody commits is nothing.
void callbacks() {
  const Ready its;
  const auto held = std::make_shared<std::atomic<int>>(0);
  {
    Commands commands = its.queue.commands();
    commands.commit([held](const Finished&) { ++*held; });
  }
  while (held.use_count() != 1) std::this_thread::yield();
  REQUIRE(*held == 1);

  const Array<int> x(its.device);
  const Commands::Place place{&x.buffer, 0};
  Commands dropped = its.queue.commands();
  dropped.dispatch(its.pipeline("increment"), {&place, 1}, {}, 1, 32);
  Commands other = its.queue.commands();
  other.dispatch(its.pipeline("increment"), {&place, 1}, {}, 1, 64);
  dropped = std::move(other);  // its encoder is open
  REQUIRE(run(std::move(dropped)).error.empty());
  REQUIRE(x.host[0] == 1 && x.host[63] == 1);
  Commands never = its.queue.commands();
  never.dispatch(its.pipeline("increment"), {&place, 1}, {}, 1, 32);
}

void no_kernel() {
  const Ready its;
  REQUIRE(!its.pipeline("nothing"));
  REQUIRE(its.pipeline("linear").most_threads() == 1024);
}

// Nothing is left, whatever was done.
void leaks() {
  for (const Case before : {&pointwise, &two_queues, &callbacks, &no_kernel}) before();
  message_of([] { Device::system_default().compile("nonsense"); });
  for (const char* kind : {"MTLBuffer", "MTLLibrary", "MTLFunction", "MTLComputePipelineState",
                           "MTLCommandQueue", "MTLCommandBuffer", "MTLComputeCommandEncoder",
                           "MTLSharedEvent", "MTLCompileOptions", "NSString", "NSError"}) {
    // The thread that has called a callback may still be at it.
    for (int i = 0; i < 10'000 && simulated_metal_living(kind) != 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (simulated_metal_living(kind) != 0) fail(__FILE__, __LINE__, std::string(kind) + " leaks");
  }
}

constexpr NamedCase kCases[] = {
    {"device", device},       {"pointwise", pointwise},
    {"rows", rows},           {"arguments_by_index", arguments_by_index},
    {"order", order},         {"two_queues", two_queues},
    {"between", between},     {"events", events},
    {"times", times},         {"callbacks", callbacks},
    {"no_kernel", no_kernel}, {"leaks", leaks},
};

}  // namespace

std::span<const NamedCase> cases_of_running() {
  return kCases;
}

}  // namespace check

// What fails as it has to. The environment says what; each case prints what the backend would say.
#include "check.h"

namespace check {
namespace {

// HOLOGRAM_TEST_METAL_NO_DEVICE, _OS_VERSION, _FAMILY
void no_device() {
  std::puts(message_of([] { Device::system_default(); }).c_str());
}

// HOLOGRAM_TEST_METAL_NO_BUFFER=2 and _MOST_BUFFER_BYTES=32768
void no_buffer() {
  const Device device = Device::system_default();
  REQUIRE(device.info().most_buffer_bytes == 32768);
  const Array<float> first(device), second(device), third(device, 32768), large(device, 49152);
  REQUIRE(first.buffer && !second.buffer && third.buffer && !large.buffer);
  REQUIRE(device.allocated_bytes() == 16384 + 32768);
}

void compile_error() {
  const Device device = Device::system_default();
  std::string text = kText;
  const std::string right = "y[i] = left[i] - right;";
  text.replace(text.find(right), right.size(), "y[i] = left[i] - wrong;");
  std::puts(message_of([&] { device.compile(text); }).c_str());
}

// HOLOGRAM_TEST_METAL_COMPILE_ERROR=2
void refused_library() {
  const Device device = Device::system_default();
  REQUIRE(device.compile(kText));
  std::puts(message_of([&] { device.compile(kText); }).c_str());
  REQUIRE(device.compile(kText));
}

// HOLOGRAM_TEST_METAL_NO_PIPELINE=1 or _SIMD_WIDTH=16
void no_pipeline() {
  const Ready its;
  std::puts(message_of([&] { its.pipeline("linear"); }).c_str());
}

// HOLOGRAM_TEST_METAL_FAILED_COMMANDS=2: it does nothing and signals nothing; others run.
void failed_commands() {
  const Ready its;
  const Array<int> x(its.device);
  const Event event = its.device.make_event();
  const Commands::Place place{&x.buffer, 0};
  Ending endings[3];
  for (Ending& ending : endings) {
    Commands commands = its.queue.commands();
    commands.dispatch(its.pipeline("increment"), {&place, 1}, {}, 1, 32);
    if (&ending == &endings[1]) commands.signal(event, 1);
    commands.commit(ending.callback());
  }
  REQUIRE(endings[0].wait().error.empty());
  std::puts(endings[1].wait().error.c_str());
  REQUIRE(endings[2].wait().error.empty());
  REQUIRE(x.host[0] == 2);
  REQUIRE(event.value() == 0);
  // What the backend does for who waits, whatever others have signalled meanwhile.
  Event same = event;
  same.set_value(7);
  same.set_value(6);
  REQUIRE(event.value() == 6);
}

void run_one(const char* kernel, uint32_t threads) {
  const Ready its;
  const Array<int> x(its.device);
  const Event event = its.device.make_event();
  const Commands::Place place{&x.buffer, 0};
  Commands commands = its.queue.commands();
  commands.dispatch(its.pipeline(kernel), {&place, 1}, {}, 1, threads);
  commands.signal(event, 1);
  std::puts(run(std::move(commands)).error.c_str());
  REQUIRE(event.value() == 0);
}
void much_threadgroup_memory() {
  run_one("much_memory", 32);
}
void many_threads() {
  run_one("increment", 2048);
}
// HOLOGRAM_TEST_METAL_MOST_THREADS=64
void more_threads_than_the_pipeline_has() {
  const Ready its;
  REQUIRE(its.pipeline("increment").most_threads() == 64);
  run_one("increment", 96);
}
void barrier_of_some() {
  run_one("barrier_of_some", 32);
}

// The text of standard input, whose last kernel halves numbers. Prints its name.
void text() {
  std::string text;
  for (int c = std::getchar(); c != EOF; c = std::getchar()) text.push_back(static_cast<char>(c));
  const Device device = Device::system_default();
  const Pipeline halve = device.compile(text).pipeline("halve");
  const Array<float> x(device), y(device);
  for (size_t i = 0; i < 100; ++i) x.host[i] = static_cast<float>(i);
  const Commands::Place places[] = {{&x.buffer, 0}, {&y.buffer, 0}};
  Commands commands = device.make_queue().commands();
  commands.dispatch(halve, places, bytes_of(uint32_t{100}), 4, 32);
  REQUIRE(run(std::move(commands)).error.empty());
  for (size_t i = 0; i < 128; ++i) {
    REQUIRE(y.host[i] == (i < 100 ? 0.5f * static_cast<float>(i) : 0));
  }
  std::puts("halve");
}

constexpr NamedCase kCases[] = {
    {"text", text},
    {"no_device", no_device},
    {"no_buffer", no_buffer},
    {"compile_error", compile_error},
    {"refused_library", refused_library},
    {"no_pipeline", no_pipeline},
    {"failed_commands", failed_commands},
    {"much_threadgroup_memory", much_threadgroup_memory},
    {"many_threads", many_threads},
    {"more_threads_than_the_pipeline_has", more_threads_than_the_pipeline_has},
    {"barrier_of_some", barrier_of_some},
};

}  // namespace

std::span<const NamedCase> cases_of_faults() {
  return kCases;
}

}  // namespace check

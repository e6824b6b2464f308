// What the environment says to the runtime of this folder.
//
// HOLOGRAM_TEST_METAL_OS_VERSION: of macOS (15.0.0). HOLOGRAM_TEST_METAL_FAMILY: the latest of
// Apple's GPU families that the device is of (9; 0: it is none of Apple's).
// HOLOGRAM_TEST_METAL_MOST_BUFFER_BYTES: of one buffer (8 GiB). HOLOGRAM_TEST_METAL_SIMD_WIDTH:
// threads of a simdgroup, as pipelines say (32). HOLOGRAM_TEST_METAL_MOST_THREADS: of a
// threadgroup, likewise (1024). HOLOGRAM_TEST_METAL_DELAY: most microseconds that a queue waits
// before each command buffer, and before it says that one has ended (50).
// HOLOGRAM_TEST_METAL_SEED: of those delays. HOLOGRAM_TEST_METAL_OPTIMIZE: how well kernels are
// compiled (2).
//
// Faults: HOLOGRAM_TEST_METAL_NO_DEVICE, whether there is none; and the numbers, from 1, of what
// fails: HOLOGRAM_TEST_METAL_NO_BUFFER of buffers, HOLOGRAM_TEST_METAL_COMPILE_ERROR of libraries,
// HOLOGRAM_TEST_METAL_NO_PIPELINE of pipelines, HOLOGRAM_TEST_METAL_FAILED_COMMANDS of command
// buffers that are committed: they end with an error and have done nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <set>

namespace simulated_metal {

// What fails, by number.
class Fault {
 public:
  explicit Fault(const char* variable);
  // Counts one more of its kind; whether that one fails.
  bool next() { return numbers_.contains(++count_); }

 private:
  const std::set<int> numbers_;
  std::atomic<int> count_{0};
};

struct Settings {
  Settings();
  std::array<long, 3> version;
  int family;
  uint64_t most_buffer_bytes;
  int simd_width, most_threads, delay, seed, optimize;
  bool no_device;
  Fault no_buffer, compile_error, no_pipeline, failed_commands;
};
Settings& settings();

}  // namespace simulated_metal

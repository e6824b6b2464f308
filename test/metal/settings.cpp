#include "settings.h"

#include <cstdio>
#include <cstdlib>

#include "../sim/environment.h"
#include "objc.h"

namespace simulated_metal {
namespace {

std::array<long, 3> version() {
  const char* const text = std::getenv("HOLOGRAM_TEST_METAL_OS_VERSION");
  std::array<long, 3> its{15, 0, 0};
  if (text != nullptr && std::sscanf(text, "%ld.%ld.%ld", &its[0], &its[1], &its[2]) != 3) {
    misuse("HOLOGRAM_TEST_METAL_OS_VERSION is no version of three numbers");
  }
  return its;
}

uint64_t large_number(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

Fault::Fault(const char* variable) : numbers_(sim::numbers(variable)) {}

Settings::Settings()
    : version(simulated_metal::version()),
      family(sim::number("HOLOGRAM_TEST_METAL_FAMILY", 9)),
      most_buffer_bytes(large_number("HOLOGRAM_TEST_METAL_MOST_BUFFER_BYTES", uint64_t{8} << 30)),
      simd_width(sim::number("HOLOGRAM_TEST_METAL_SIMD_WIDTH", 32)),
      most_threads(sim::number("HOLOGRAM_TEST_METAL_MOST_THREADS", 1024)),
      delay(sim::number("HOLOGRAM_TEST_METAL_DELAY", 50)),
      seed(sim::number("HOLOGRAM_TEST_METAL_SEED", 1)),
      optimize(sim::number("HOLOGRAM_TEST_METAL_OPTIMIZE", 2)),
      no_device(sim::number("HOLOGRAM_TEST_METAL_NO_DEVICE", 0) != 0),
      no_buffer("HOLOGRAM_TEST_METAL_NO_BUFFER"),
      compile_error("HOLOGRAM_TEST_METAL_COMPILE_ERROR"),
      no_pipeline("HOLOGRAM_TEST_METAL_NO_PIPELINE"),
      failed_commands("HOLOGRAM_TEST_METAL_FAILED_COMMANDS") {}

Settings& settings() {
  static auto& its = *new Settings;
  return its;
}

}  // namespace simulated_metal

// What the cases share: each runs in a process of its own, by its name, and says what was wrong.
#pragma once

#include <sys/mman.h>

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "atlas/error.h"
#include "metal/runtime.h"

namespace check {

using namespace hologram::metal;

using Case = void (*)();
using NamedCase = std::pair<const char*, Case>;
// By file: what works, what fails as it has to, and misuse, which ends the process.
std::span<const NamedCase> cases_of_running();
std::span<const NamedCase> cases_of_faults();
std::span<const NamedCase> cases_of_misuse();

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::exit(1);
}
#define REQUIRE(condition) \
  if (!(condition)) check::fail(__FILE__, __LINE__, "not so: " #condition)

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const hologram::Error& error) {
    return error.what();
  }
  std::fprintf(stderr, "nothing was thrown\n");
  std::exit(1);
}
inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

// Pages of numbers, as long as the process lives; nobody may touch the page behind them.
template <class T>
std::span<T> pages(size_t bytes) {
  const size_t page = Device::page_size();
  void* const got =
      ::mmap(nullptr, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const auto start = (reinterpret_cast<uintptr_t>(got) + page - 1) / page * page;
  ::mprotect(reinterpret_cast<void*>(start), bytes, PROT_READ | PROT_WRITE);
  return {reinterpret_cast<T*>(start), bytes / sizeof(T)};
}

// Memory of the device and the host's view of it.
template <class T>
struct Array {
  explicit Array(const Device& device, size_t bytes = Device::page_size())
      : host(pages<T>(bytes)), buffer(device.wrap(host.data(), bytes)) {}
  std::span<T> host;
  Buffer buffer;
};

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// How a command buffer has ended, for who waits for it; the callback may outlive it.
class Ending {
 public:
  std::function<void(const Finished&)> callback() {
    return [its = its_](const Finished& how) {
      const std::lock_guard guard(its->mutex);
      its->how = how;
      ++its->times;
      its->changed.notify_all();
    };
  }
  Finished wait() {
    std::unique_lock lock(its_->mutex);
    its_->changed.wait(lock, [&] { return its_->times != 0; });
    return its_->how;
  }
  int times() {
    const std::lock_guard guard(its_->mutex);
    return its_->times;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    Finished how;
    int times = 0;
  };
  const std::shared_ptr<State> its_ = std::make_shared<State>();
};

inline Finished run(Commands commands) {
  Ending ending;
  commands.commit(ending.callback());
  return ending.wait();
}

// Text that stands alone, as what the backend compiles.
inline constexpr const char* kText = R"(#include <metal_stdlib>
using namespace metal;

struct Numbers {
  float factor, summand;
  uint count;
};

// y = factor * x + summand
kernel void linear(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                   constant Numbers& its [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  if (i < its.count) y[i] = its.factor * x[i] + its.summand;
}

kernel void increment(device int* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  x[i] = x[i] + 1;
}

// Of a row for each threadgroup, through simdgroups and threadgroup memory.
kernel void sum_rows(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                     constant uint& columns [[buffer(2)]],
                     uint3 row [[threadgroup_position_in_grid]],
                     uint3 threads [[threads_per_threadgroup]],
                     uint thread_number [[thread_index_in_threadgroup]]) {
  threadgroup float partial[32];
  float sum = 0.0f;
  for (uint i = thread_number; i < columns; i += threads.x) sum += x[row.x * columns + i];
  sum = simd_sum(sum);
  if (thread_number % 32 == 0) partial[thread_number / 32] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_number == 0) {
    float all = 0.0f;
    for (uint i = 0; i < threads.x / 32; ++i) all += partial[i];
    y[row.x] = all;
  }
}

// Arguments whose indices are no order of theirs.
kernel void subtract(constant float& right [[buffer(2)]], device float* y [[buffer(0)]],
                     device const float* left [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = left[i] - right;
}

kernel void much_memory(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup float all[10000];
  all[i] = 1.0f;
  y[i] = all[i];
}

kernel void barrier_of_some(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  if (i < 3) threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = 1.0f;
}
)";

struct Numbers {
  float factor, summand;
  uint32_t count;
};

// A device with kText compiled, and a queue.
struct Ready {
  Ready() : device(Device::system_default()), queue(device.make_queue()) {
    library = device.compile(kText);
  }
  Pipeline pipeline(const char* kernel) const { return library.pipeline(kernel); }

  Device device;
  CommandQueue queue;
  Library library;
};

}  // namespace check

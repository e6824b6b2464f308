// Nanoseconds per allocate/deallocate pair of a device's memory beside posix_memalign, and
// what the distance of small blocks modulo 4096 costs a kernel (4K aliasing).
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <thread>
#include <vector>

#include "atlas/boundary.h"
#include "atlas/device.h"
#include "cpu/pointwise.h"

namespace {

using hologram::Allocation;

constexpr int kPairs = 2'000'000;

struct Pool {
  static Allocation allocate(size_t nbytes) {
    return hologram::device(0).memory().allocate(nbytes);
  }
  static void deallocate(Allocation block) { hologram::device(0).memory().deallocate(block); }
};

// What torch's CPU allocator does.
struct System {
  static Allocation allocate(size_t nbytes) {
    void* data = nullptr;
    return posix_memalign(&data, 64, nbytes) == 0 ? Allocation{data, nbytes} : Allocation{};
  }
  static void deallocate(Allocation block) { std::free(block.data); }
};

// Replaces one of `live` blocks at a time; the sizes cycle through `sizes`.
template <class Allocator>
double run(const std::vector<size_t>& sizes, size_t live) {
  std::vector<Allocation> blocks(live);
  for (size_t i = 0; i < live; ++i) blocks[i] = Allocator::allocate(sizes[i % sizes.size()]);
  double best = 1e9;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0, slot = 0, size = 0; i < kPairs; ++i) {
      Allocator::deallocate(blocks[slot]);
      blocks[slot] = Allocator::allocate(sizes[size]);
      if (++slot == live) slot = 0;
      if (++size == sizes.size()) size = 0;
    }
    const std::chrono::duration<double, std::nano> elapsed =
        std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count() / kPairs);
  }
  for (const Allocation& block : blocks) Allocator::deallocate(block);
  return best;
}

void report(const char* what, const std::vector<size_t>& sizes, size_t live) {
  std::printf("%-34s %7.1f ns  (posix_memalign %8.1f ns)\n", what, run<Pool>(sizes, live),
              run<System>(sizes, live));
}

// Nanoseconds of out = x + y over 12 KiB of float32 in cache, with x, y and out at the given
// distances after multiples of 4096.
double add(size_t x, size_t y, size_t out) {
  constexpr size_t kBytes = hologram::kBoundaryClassBytes, kCalls = 20'000;
  static char* const memory = static_cast<char*>(Pool::allocate(4 << 20).data);
  const auto kernel = hologram::cpu::binary(hologram::Op::add, hologram::DType::f32);
  double best = 1e9;
  for (int repeat = 0; repeat < 10; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < kCalls; ++i) {
      kernel(memory + x, memory + 4 * 4096 + y, memory + 8 * 4096 + out, kBytes / sizeof(float));
    }
    const std::chrono::duration<double, std::nano> elapsed =
        std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count() / kCalls);
  }
  return best;
}

}  // namespace

int main() {
  std::mt19937 random(0);
  std::vector<size_t> mixed(509);
  for (size_t& size : mixed) size = (size_t{64} << random() % 16) + random() % 64;

  report("256 B, 64 live", {256}, 64);
  report("16 KiB, 64 live", {16 * 1024}, 64);
  report("12 KiB, 200 live (96 fit)", {12 * 1024}, 200);
  report("12 KiB, 64 live", {12 * 1024}, 64);
  report("64 B, 1 live", {64}, 1);
  report("4 MiB, 4 live", {4 << 20}, 4);
  report("64 B .. 2 MiB mixed, 64 live", mixed, 64);

  const auto contender = [](double& result) { result = run<Pool>({12 * 1024}, 64); };
  double first = 0, second = 0;
  std::thread other(contender, std::ref(second));
  contender(first);
  other.join();
  std::printf("%-34s %7.1f ns\n", "12 KiB, 64 live, 2 threads at once", (first + second) / 2);

  for (const auto [x, y, out] : std::initializer_list<std::array<size_t, 3>>{
           {0, 0, 0}, {0, 0, 256}, {0, 0, 1024}, {0, 256, 512}, {0, 1024, 2048}, {64, 0, 0}}) {
    std::printf("add, 12 KiB, bases %4zu %4zu %4zu       %7.1f ns\n", x, y, out, add(x, y, out));
  }
}

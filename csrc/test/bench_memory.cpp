// Nanoseconds per allocate/deallocate pair of the linear pool, beside malloc and posix_memalign.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "atlas/device.h"

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

}  // namespace

int main() {
  std::mt19937 random(0);
  std::vector<size_t> mixed(509);
  for (size_t& size : mixed) size = (size_t{64} << random() % 16) + random() % 64;

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
}

// What a device's memory costs, as Markdown tables. Arguments choose tables: pairs, touch, threads,
// aliasing; none means all.
#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "atlas/allocation.h"
#include "atlas/backends.h"
#include "atlas/boundary.h"
#include "atlas/memory.h"
#include "atlas/op_table.h"
#include "cpu/compiled_group.h"

namespace {

using namespace hologram;

constexpr size_t kKiB = 1024, kMiB = kKiB * 1024;
constexpr int kWindows = 31;  // a measurement is made of so many, to see past other processes

Backend& backend() {
  static const auto backend = make_cpu_backend(0, 1);
  return *backend;
}

// A device's memory as it is.
class Pool {
 public:
  Allocation allocate(size_t nbytes) { return pool_.allocate(nbytes); }
  void deallocate(Allocation block) { pool_.deallocate(block); }

 private:
  MemoryPool pool_{backend(), std::numeric_limits<size_t>::max()};
};

// The same with every class of the boundary pool taken, so that the linear pool serves all.
class Linear {
 public:
  Linear() {
    for (Allocation& block : taken_) block = pool_.allocate(kBoundaryClassBytes);
  }
  ~Linear() {
    for (const Allocation& block : taken_) pool_.deallocate(block);
  }
  Allocation allocate(size_t nbytes) { return pool_.allocate(nbytes); }
  void deallocate(Allocation block) { pool_.deallocate(block); }

 private:
  MemoryPool pool_{backend(), std::numeric_limits<size_t>::max()};
  std::array<Allocation, kBoundaryClasses> taken_;
};

// What torch's CPU allocator does.
class System {
 public:
  Allocation allocate(size_t nbytes) {
    void* data = nullptr;
    return posix_memalign(&data, 64, nbytes) == 0 ? Allocation{data, nbytes} : Allocation{};
  }
  void deallocate(Allocation block) { std::free(block.data); }
};

// From 2^first bytes up to 2^(first + octaves), every octave as often.
size_t log_uniform(std::mt19937& random, int first, unsigned octaves) {
  const size_t low = size_t{1} << (static_cast<unsigned>(first) + random() % octaves);
  return low + random() % low;
}

// Nanoseconds of one of `steps` calls of `step`.
template <class F>
double time_of(size_t steps, F&& step) {
  const auto start = std::chrono::steady_clock::now();
  for (size_t i = 0; i < steps; ++i) step();
  const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
  return elapsed.count() / static_cast<double>(steps);
}

// The same in the quickest window of `steps` calls.
template <class F>
double nanoseconds(size_t steps, F&& step) {
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < kWindows; ++i) best = std::min(best, time_of(steps, step));
  return best;
}

struct Block {
  Allocation allocation;
  size_t nbytes = 0;  // asked for
};

// `live` blocks, replaced one after another; the sizes cycle through `sizes`.
template <class Allocator>
class Ring {
 public:
  Ring(Allocator& allocator, const std::vector<size_t>& sizes, size_t live)
      : allocator_(allocator), sizes_(sizes), blocks_(live) {
    for (Block& block : blocks_) allocate(block);
  }
  ~Ring() {
    for (const Block& block : blocks_) allocator_.deallocate(block.allocation);
  }

  const Block& replace() {
    Block& block = blocks_[slot_];
    if (++slot_ == blocks_.size()) slot_ = 0;
    allocator_.deallocate(block.allocation);
    allocate(block);
    return block;
  }
  const std::vector<Block>& blocks() const { return blocks_; }

 private:
  void allocate(Block& block) {
    block.nbytes = sizes_[size_];
    if (++size_ == sizes_.size()) size_ = 0;
    block.allocation = allocator_.allocate(block.nbytes);
  }

  Allocator& allocator_;
  const std::vector<size_t>& sizes_;
  std::vector<Block> blocks_;
  size_t slot_ = 0, size_ = 0;
};

template <class Allocator>
double pair(const std::vector<size_t>& sizes, size_t live) {
  Allocator allocator;
  Ring ring(allocator, sizes, live);
  return nanoseconds(50'000, [&] { ring.replace(); });
}

void pairs() {
  std::printf(
      "| a free and an allocation | device ns | linear pool alone ns | posix_memalign ns |\n"
      "|---|---:|---:|---:|\n");
  std::mt19937 random(0);
  std::vector<size_t> mixed(509);
  for (size_t& size : mixed) size = log_uniform(random, 6, 15);
  const auto report = [](const std::string& what, const std::vector<size_t>& sizes, size_t live) {
    std::printf("| %s, %zu live | %.1f | %.1f | %.1f |\n", what.c_str(), live,
                pair<Pool>(sizes, live), pair<Linear>(sizes, live), pair<System>(sizes, live));
  };
  for (const size_t size :
       {size_t{64}, size_t{256}, kKiB, 4 * kKiB, 12 * kKiB, 16 * kKiB, 256 * kKiB, 4 * kMiB}) {
    const auto name = size < kKiB   ? std::to_string(size) + " B"
                      : size < kMiB ? std::to_string(size / kKiB) + " KiB"
                                    : std::to_string(size / kMiB) + " MiB";
    report(name, {size}, 1);
    if (size < kMiB) report(name, {size}, 64);
  }
  report("12 KiB (96 fit)", {12 * kKiB}, 200);
  report("64 B to 2 MiB mixed", mixed, 64);
  for (size_t& size : mixed) size = log_uniform(random, 2, 11);
  report("4 B to 8 KiB mixed", mixed, 96);
}

// A step replaces one of `live` blocks and writes it, then reads another: what the place of the
// blocks costs in the caches is part of the time.
template <class Allocator>
double touch(const std::vector<size_t>& sizes, size_t live) {
  Allocator allocator;
  Ring ring(allocator, sizes, live);
  for (const Block& block : ring.blocks()) std::memset(block.allocation.data, 1, block.nbytes);
  std::mt19937 random(1);
  std::vector<size_t> order(4099);
  for (size_t& index : order) index = random() % live;
  volatile char sink = 0;
  size_t next = 0;
  return nanoseconds(std::max<size_t>(2 * live, 2'000'000 / (sizes[0] + 100)), [&] {
    const Block& written = ring.replace();
    std::memset(written.allocation.data, static_cast<char>(next), written.nbytes);
    const Block& read = ring.blocks()[order[next]];
    if (++next == order.size()) next = 0;
    const char* const bytes = static_cast<const char*>(read.allocation.data);
    char sum = 0;
    for (size_t i = 0; i < read.nbytes; i += 64) sum = static_cast<char>(sum + bytes[i]);
    sink = static_cast<char>(sink + sum);
  });
}

void touches() {
  std::printf(
      "| replace, write, read another | boundary pool ns | linear pool ns | ratio |\n"
      "|---|---:|---:|---:|\n");
  const auto report = [](const std::string& what, const std::vector<size_t>& sizes, size_t live) {
    const double boundary = touch<Pool>(sizes, live), linear = touch<Linear>(sizes, live);
    std::printf("| %s, %zu live | %.1f | %.1f | %.2f |\n", what.c_str(), live, boundary, linear,
                boundary / linear);
  };
  for (const size_t size : {8, 64, 128, 192, 256, 512, 1024, 4096, 12'288}) {
    for (const size_t live : {16, 96, 400, 1500, 4000}) {
      if (live * ((size + 255) / 256) > size_t{kBoundaryClasses} * kBoundaryPages) continue;
      report(std::to_string(size) + " B", {size}, live);
    }
  }
  std::mt19937 random(2);
  std::vector<size_t> mixed(509);
  for (size_t& size : mixed) size = log_uniform(random, 2, 11);
  for (const size_t live : {16, 96, 300}) report("4 B to 8 KiB mixed", mixed, live);
}

// About `count` nanoseconds of work that touches no memory.
void work(int count) {
  uint64_t state = 1;
  for (int i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    asm volatile("" : "+r"(state));
  }
}

// Nanoseconds of a pair in each of `count` threads that use one allocator at once and work for
// `pause` nanoseconds between pairs, which is not part of the result. The median window: the
// quickest would be one in which the others did not run.
template <class Allocator>
double contended(int count, size_t size, int pause) {
  constexpr size_t kSteps = 100'000;
  Allocator allocator;
  const std::vector<size_t> sizes{size};
  std::vector<double> results;
  std::mutex lock;
  std::barrier together(count);
  const auto run = [&] {
    Ring ring(allocator, sizes, 16);
    for (int i = 0; i < kWindows; ++i) {
      together.arrive_and_wait();
      const double alone = time_of(kSteps, [&] { work(pause); });
      together.arrive_and_wait();
      const double all = time_of(kSteps, [&] {
        ring.replace();
        work(pause);
      });
      const std::lock_guard guard(lock);
      results.push_back(all - alone);
    }
  };
  std::vector<std::thread> running;
  for (int i = 0; i < count; ++i) running.emplace_back(run);
  for (std::thread& thread : running) thread.join();
  const auto middle = results.begin() + static_cast<ptrdiff_t>(results.size() / 2);
  std::nth_element(results.begin(), middle, results.end());
  return *middle;
}

void threads() {
  std::printf(
      "| threads at once | block | pause between pairs | device ns | posix_memalign ns |\n"
      "|---:|---:|---:|---:|---:|\n");
  for (const size_t size : {size_t{256}, 16 * kKiB}) {
    for (const auto& [count, pause] : std::vector<std::pair<int, int>>{
             {1, 0}, {2, 0}, {4, 0}, {1, 200}, {2, 200}, {1, 1000}, {2, 1000}}) {
      std::printf("| %d | %zu B | %d ns | %.1f | %.1f |\n", count, size, pause,
                  contended<Pool>(count, size, pause), contended<System>(count, size, pause));
    }
  }
}

// Nanoseconds of out = x + y over 12 KiB of float32 in cache, with x, y and out at the given
// distances after multiples of 4096. The three regions do not overlap.
double add(char* memory, size_t x, size_t y, size_t out) {
  const Operand operand{DType::f32, Layout::dense};
  const auto load = [](uint16_t index) { return Node{NodeKind::load, Op{}, DType::f32, index}; };
  const Group group{ComputeType::f32,
                    {operand, operand, operand},
                    {load(0),
                     load(1),
                     {NodeKind::compute, Op::add, DType::f32, 0, 1},
                     {NodeKind::store, Op{}, DType::f32, 2, 2}},
                    0};
  const auto code = cpu::compile(group);
  void* const operands[] = {memory + x, memory + 5 * 4096 + y, memory + 10 * 4096 + out};
  Binding binding;
  binding.operands = operands;
  binding.count = kBoundaryClassBytes / sizeof(float);
  return nanoseconds(2'000, [&] { cpu::run(*code, binding); });
}

void aliasing() {
  std::printf(
      "| bases of x, y, out modulo 4096 | x + y over 12 KiB ns |\n"
      "|---|---:|\n");
  Pool pool;
  const Allocation block = pool.allocate(4 * kMiB);
  char* const memory = static_cast<char*>(block.data);
  std::memset(memory, 0, 64 * 4096);
  for (const auto& [x, y, out] : std::vector<std::array<size_t, 3>>{{0, 0, 0},
                                                                    {0, 0, 64},
                                                                    {0, 0, 128},
                                                                    {0, 0, 256},
                                                                    {0, 0, 512},
                                                                    {0, 0, 1024},
                                                                    {0, 0, 3840},
                                                                    {0, 256, 512},
                                                                    {0, 1024, 2048},
                                                                    {0, 1408, 2752}}) {
    std::printf("| %zu, %zu, %zu | %.1f |\n", x, y, out, add(memory, x, y, out));
  }
  pool.deallocate(block);
}

}  // namespace

int main(int argc, char** argv) {
  const std::pair<const char*, void (*)()> tables[] = {
      {"pairs", pairs}, {"touch", touches}, {"threads", threads}, {"aliasing", aliasing}};
  bool first = true;
  for (const auto& [name, print] : tables) {
    const bool wanted = argc == 1 || std::any_of(argv + 1, argv + argc, [name = name](char* given) {
                          return std::string(given) == name;
                        });
    if (!wanted) continue;
    if (!first) std::printf("\n");
    print();
    first = false;
  }
  if (!first) return 0;
  std::fprintf(stderr, "usage: %s [pairs] [touch] [threads] [aliasing]\n", argv[0]);
  return 2;
}

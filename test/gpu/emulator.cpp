// The scheduler: threads of a block are fibers where they have to be, a loop where they need not.
//
// A fiber runs thread after thread until one of them waits; only then is another fiber opened. So a
// kernel without barriers is a loop without a switch. Blocks run one after another.
#include "emulator.h"

#include <dlfcn.h>
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "device_side.h"

#if !defined(__x86_64__)
#error "the switch of stacks is written for x86-64 only"
#endif

// hgemu_switch(&saved, to): saves what a call keeps and the stack, and goes on with another one.
asm(R"(
.text
.globl hgemu_switch
.hidden hgemu_switch
.type hgemu_switch, @function
hgemu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size hgemu_switch, .-hgemu_switch
)");
extern "C" void hgemu_switch(void** saved, void* to);

namespace {

using hgemu::Exchanged;
using hgemu::KernelInfo;
using hgemu::kPoison;
using hgemu::Role;
using hgemu::Site;
using hgemu::Thread;

// Limits of Metal, the narrower ones of the two.
constexpr uint32_t kMostThreads = 1024;
constexpr size_t kMostSharedBytes = 32 * 1024;
constexpr size_t kMostParameterBytes = 4096;

constexpr size_t kStackBytes = 128 * 1024, kPage = 4096;
// Behind shared memory, to see who writes there; the address sanitizer has its own.
#if __has_feature(address_sanitizer)
constexpr size_t kCanaryBytes = 0;
#else
constexpr size_t kCanaryBytes = 64;
#endif

std::mutex launches;
std::string last_error;

enum class State : uint8_t { unstarted, running, ready, at_barrier, at_exchange, done };

struct Fiber {
  char* memory = nullptr;
  void* stack = nullptr;  // where it goes on
  uint32_t thread = 0;

  Fiber();
  Fiber(const Fiber&) = delete;
  void reset();
};

struct Simdgroup {
  uint32_t slots[2][32];
  uint32_t present[2];
  uint32_t phase;
  uint32_t waiting;  // a bit for each lane
  uint32_t live;     // lanes that could take part: those that exist and have not left
  // Of the launch: its threads, in the order in which they go on.
  uint32_t count, threads[32];
};

struct Shared {
  int declaration;
  size_t bytes;
  char* memory;
};

// The launch that runs; there is one at a time.
struct Run {
  const KernelInfo* kernel = nullptr;
  void* const* slots = nullptr;
  uint32_t count = 0;  // threads of a block
  size_t dynamic_bytes = 0;
  std::vector<uint32_t> order;
  std::vector<Thread> threads;
  std::vector<State> states;
  std::vector<Site> sites;
  std::vector<Fiber*> fibers;  // of threads that wait
  std::vector<Simdgroup> groups;
  std::vector<Shared> shared;
  std::vector<std::unique_ptr<char[]>> shared_memory;
  std::vector<uint32_t> ready;  // threads, in the order in which they go on
  uint32_t next = 0;            // in `order`
  uint32_t done = 0, at_barrier = 0;
  std::string error;
};
Run run;

void* scheduler = nullptr;  // its stack while a fiber runs
Fiber* current = nullptr;
std::vector<std::unique_ptr<Fiber>> pool;
std::vector<Fiber*> idle;

void leave_fiber() {
  hgemu_switch(&current->stack, scheduler);
}

void fail(std::string why) {
  if (run.error.empty()) run.error = std::move(why);
}

std::string text_of(const Site& site) {
  return std::string(site.file) + ":" + std::to_string(site.line) + ":" +
         std::to_string(site.column);
}

bool same(const Site& a, const Site& b) {
  return a.line == b.line && a.column == b.column &&
         (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

void resume_later(uint32_t thread) {
  run.states[thread] = State::ready;
  run.ready.push_back(thread);
}

// Lets a simdgroup go on if all of its lanes are there.
void release_exchange(Simdgroup& its) {
  if (its.waiting == 0 || its.waiting != its.live) return;
  const Site* first = nullptr;
  const uint32_t lowest = its.threads[0] / 32 * 32;
  for (uint32_t lanes = its.waiting; lanes != 0; lanes &= lanes - 1) {
    const Site& site = run.sites[lowest + static_cast<uint32_t>(std::countr_zero(lanes))];
    if (first != nullptr && !same(*first, site)) {
      fail("lanes of a simdgroup are at different operations: " + text_of(*first) + " and " +
           text_of(site));
      return;
    }
    first = &site;
  }
  const uint32_t phase = its.phase++ % 2;
  its.present[phase] = its.waiting;
  for (uint32_t lanes = ~its.waiting; lanes != 0; lanes &= lanes - 1) {
    its.slots[phase][std::countr_zero(lanes)] = kPoison;
  }
  for (uint32_t i = 0; i < its.count; ++i) {
    if (run.states[its.threads[i]] == State::at_exchange) resume_later(its.threads[i]);
  }
  its.waiting = 0;
}

bool release_barrier() {
  if (run.at_barrier != run.count) return false;
  for (uint32_t i = 1; i < run.count; ++i) {
    if (!same(run.sites[0], run.sites[i])) {
      fail("threads are at different barriers: " + text_of(run.sites[0]) + " and " +
           text_of(run.sites[i]));
      return false;
    }
  }
  run.at_barrier = 0;
  for (uint32_t at : run.order) resume_later(at);
  return true;
}

void begin_thread(uint32_t thread) {
  current->thread = thread;
  run.states[thread] = State::running;
  hgemu::hgemu_thread = &run.threads[thread];
}

// Of every fiber: takes threads as long as there are any.
[[noreturn]] void fiber_main() {
  for (;;) {
    while (run.next < run.count && run.error.empty()) {
      begin_thread(run.order[run.next++]);
      run.kernel->run(run.slots);
      const uint32_t thread = current->thread;
      run.states[thread] = State::done;
      ++run.done;
      Simdgroup& its = run.groups[thread / 32];
      its.live &= ~(1u << thread % 32);
      release_exchange(its);  // those that wait for it need not
    }
    idle.push_back(current);
    leave_fiber();
  }
}

Fiber::Fiber() {
  void* const got = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED || mprotect(got, kPage, PROT_NONE) != 0) {
    std::perror("emulator: no memory for a stack");
    std::abort();
  }
  memory = static_cast<char*>(got);
  reset();
}

void Fiber::reset() {
#if __has_feature(address_sanitizer)
  // What it left, it left without a return: functions that come have frames there of their own.
  __asan_unpoison_memory_region(memory + kPage, kStackBytes - kPage);
#endif
  auto* top = reinterpret_cast<void**>(memory + kStackBytes);
  *--top = nullptr;  // as if fiber_main had been called: 8 bytes off a multiple of 16
  *--top = reinterpret_cast<void*>(&fiber_main);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  stack = top;
}

void switch_to(Fiber* fiber) {
  current = fiber;
  hgemu_switch(&scheduler, fiber->stack);
  current = nullptr;
}

Fiber* fresh_fiber() {
  if (idle.empty()) {
    pool.push_back(std::make_unique<Fiber>());
    return pool.back().get();
  }
  Fiber* const fiber = idle.back();
  idle.pop_back();
  return fiber;
}

// Why nothing can go on.
std::string stuck() {
  std::string barrier, exchange;
  uint32_t at_barrier = 0, at_exchange = 0;
  for (uint32_t i = 0; i < run.count; ++i) {
    if (run.states[i] == State::at_barrier && at_barrier++ == 0) barrier = text_of(run.sites[i]);
    if (run.states[i] == State::at_exchange && at_exchange++ == 0) exchange = text_of(run.sites[i]);
  }
  const auto waiting = [](uint32_t threads, const std::string& where) {
    return std::to_string(threads) + " wait at " + where;
  };
  std::string why = at_barrier != 0 ? "not all threads reach a barrier: "
                                    : "not all lanes reach an operation of their simdgroup: ";
  if (at_barrier != 0) why += waiting(at_barrier, barrier);
  if (at_barrier != 0 && at_exchange != 0) why += ", ";
  if (at_exchange != 0) why += waiting(at_exchange, "the simdgroup's operation at " + exchange);
  if (run.done != 0) why += ", " + std::to_string(run.done) + " have left the kernel";
  return why;
}

void begin_block() {
  run.next = run.done = run.at_barrier = 0;
  run.ready.clear();
  std::fill(run.states.begin(), run.states.end(), State::unstarted);
  for (Simdgroup& its : run.groups) {
    its.waiting = 0;
    its.live = its.count == 32 ? ~0u : (1u << its.count) - 1;
  }
  // New memory for each block: what a kernel reads before it writes is poison.
  run.shared.clear();
  run.shared_memory.clear();
}

char* take_shared(int declaration, size_t bytes) {
  size_t total = run.dynamic_bytes + bytes;
  for (const Shared& its : run.shared) {
    if (its.declaration == declaration && its.bytes == bytes) return its.memory;
    if (its.declaration >= 0) total += its.bytes;
  }
  if (total > kMostSharedBytes) {
    fail(std::to_string(total) + " bytes of threadgroup memory: there are " +
         std::to_string(kMostSharedBytes));
    return nullptr;
  }
  run.shared_memory.emplace_back(new char[bytes + kCanaryBytes]);
  char* const memory = run.shared_memory.back().get();
  std::memset(memory, 0xff, bytes);
  std::memset(memory + bytes, 0x5a, kCanaryBytes);
  run.shared.push_back({declaration, bytes, memory});
  return memory;
}

void end_block() {
  for (const Shared& its : run.shared) {
    for (size_t i = 0; i < kCanaryBytes; ++i) {
      if (its.memory[its.bytes + i] != 0x5a) fail("a write beyond the end of threadgroup memory");
    }
  }
}

// False if the block went wrong.
void run_block() {
  while (run.done < run.count && run.error.empty()) {
    if (!run.ready.empty()) {
      std::vector<uint32_t> now;
      now.swap(run.ready);
      for (uint32_t thread : now) {
        if (!run.error.empty()) break;
        Fiber* const fiber = run.fibers[thread];
        run.states[thread] = State::running;
        hgemu::hgemu_thread = &run.threads[thread];
        switch_to(fiber);
      }
    } else if (run.next < run.count) {
      switch_to(fresh_fiber());
    } else {
      fail(stuck());
    }
  }
  end_block();
  if (!run.error.empty()) {
    // Threads in the midst of the kernel are given up; kernels own nothing.
    idle.clear();
    for (auto& fiber : pool) {
      fiber->reset();
      idle.push_back(fiber.get());
    }
  }
}

int refuse(std::string why) {
  last_error = std::move(why);
  return 1;
}

}  // namespace

struct hg_library {
  void* handle;
  const KernelInfo* kernels;
};
struct hg_kernel {
  KernelInfo info;
};

namespace hgemu {

extern "C" {

Thread* hgemu_thread = nullptr;

void hgemu_barrier(Site site) {
  const uint32_t thread = current->thread;
  run.states[thread] = State::at_barrier;
  run.sites[thread] = site;
  run.fibers[thread] = current;
  ++run.at_barrier;
  release_barrier();
  leave_fiber();
}

Exchanged hgemu_exchange(uint32_t value, Site site) {
  const uint32_t thread = current->thread, lane = thread % 32;
  Simdgroup& its = run.groups[thread / 32];
  const uint32_t phase = its.phase % 2;
  its.slots[phase][lane] = value;
  its.waiting |= 1u << lane;
  run.states[thread] = State::at_exchange;
  run.sites[thread] = site;
  run.fibers[thread] = current;
  release_exchange(its);
  leave_fiber();
  return {its.slots[phase], its.present[phase]};
}

void* hgemu_shared(int declaration, size_t bytes) {
  void* const memory = take_shared(declaration, bytes);
  if (memory == nullptr) leave_fiber();
  return memory;
}

void hgemu_fail(const char* why) {
  fail(why);
  leave_fiber();
}

}  // extern "C"

}  // namespace hgemu

extern "C" {

const char* hg_emulator_error(void) {
  return last_error.c_str();
}

hg_library* hg_library_open(const char* path) {
  void* const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    refuse(dlerror());
    return nullptr;
  }
  auto* const kernels = reinterpret_cast<const KernelInfo* (*)()>(dlsym(handle, "hgemu_kernels"));
  if (kernels == nullptr) {
    refuse(std::string(path) + " holds no kernels");
    return nullptr;
  }
  return new hg_library{handle, kernels()};
}

hg_kernel* hg_library_kernel(hg_library* library, const char* name) {
  for (const KernelInfo* k = library->kernels; k != nullptr; k = k->next) {
    if (std::strcmp(k->name, name) == 0) return new hg_kernel{*k};
  }
  refuse(std::string("no kernel is named ") + name);
  return nullptr;
}

namespace {
bool is_given(Role role) {
  return role == Role::buffer || role == Role::parameter || role == Role::threadgroup_memory;
}

// One that the host gives; null if there are not so many.
const hgemu::ArgumentInfo* given(const hg_kernel* kernel, int argument) {
  for (int i = 0; i < kernel->info.count; ++i) {
    const hgemu::ArgumentInfo& its = kernel->info.arguments[i];
    if (is_given(its.role) && argument-- == 0) return &its;
  }
  return nullptr;
}
}  // namespace

int hg_kernel_arguments(const hg_kernel* kernel) {
  int count = 0;
  for (int i = 0; i < kernel->info.count; ++i) count += is_given(kernel->info.arguments[i].role);
  return count;
}

char hg_kernel_role(const hg_kernel* kernel, int argument) {
  const hgemu::ArgumentInfo* const its = given(kernel, argument);
  return its != nullptr ? static_cast<char>(its->role) : '\0';
}

size_t hg_kernel_bytes(const hg_kernel* kernel, int argument) {
  const hgemu::ArgumentInfo* const its = given(kernel, argument);
  return its != nullptr && its->role == Role::parameter ? its->bytes : 0;
}

int hg_kernel_index(const hg_kernel* kernel, int argument) {
  const hgemu::ArgumentInfo* const its = given(kernel, argument);
  return its != nullptr ? its->index : -1;
}

int hg_launch(const hg_kernel* kernel, const uint32_t grid[3], const uint32_t block[3],
              const hg_argument* arguments, int argument_count, int order, uint64_t seed) {
  const std::lock_guard guard(launches);
  const KernelInfo& info = kernel->info;
  const std::string prefix = std::string(info.name) + ": ";
  const uint64_t count = uint64_t{block[0]} * block[1] * block[2];
  if (count == 0 || count > kMostThreads) {
    return refuse(prefix + std::to_string(count) + " threads in a block: 1 to " +
                  std::to_string(kMostThreads) + " are possible");
  }
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return refuse(prefix + "an empty grid");
  if (argument_count != hg_kernel_arguments(kernel)) {
    return refuse(prefix + std::to_string(argument_count) + " arguments given, " +
                  std::to_string(hg_kernel_arguments(kernel)) + " expected");
  }

  run.kernel = &info;
  run.error.clear();
  run.count = static_cast<uint32_t>(count);
  run.dynamic_bytes = 0;
  std::vector<void*> slots(static_cast<size_t>(info.count), nullptr);
  // Parameters are copied, to memory of exactly their size.
  std::vector<std::unique_ptr<char[]>> copies;
  struct Dynamic {
    int slot;
    size_t bytes;
  };
  std::vector<Dynamic> dynamic;
  for (int i = 0, given = 0; i < info.count; ++i) {
    const hgemu::ArgumentInfo& its = info.arguments[i];
    if (!is_given(its.role)) continue;
    const hg_argument& argument = arguments[given++];
    switch (its.role) {
      case Role::buffer: slots[i] = const_cast<void*>(argument.data); break;
      case Role::parameter:
        if (argument.size > kMostParameterBytes) {
          return refuse(prefix + "a parameter of " + std::to_string(argument.size) +
                        " bytes: there may be " + std::to_string(kMostParameterBytes));
        }
        if (argument.size != its.bytes) {
          return refuse(prefix + "a parameter of " + std::to_string(argument.size) + " bytes is " +
                        std::to_string(its.bytes) + " in the kernel");
        }
        // new char[] is aligned for any type.
        copies.emplace_back(new char[argument.size]);
        std::memcpy(copies.back().get(), argument.data, argument.size);
        slots[i] = copies.back().get();
        break;
      default:
        if (argument.size % 16 != 0) {
          return refuse(prefix + std::to_string(argument.size) +
                        " bytes of threadgroup memory: no multiple of 16");
        }
        dynamic.push_back({i, argument.size});
        break;
    }
  }
  for (const Dynamic& its : dynamic) run.dynamic_bytes += its.bytes;
  if (run.dynamic_bytes > kMostSharedBytes) {
    return refuse(prefix + std::to_string(run.dynamic_bytes) +
                  " bytes of threadgroup memory: there are " + std::to_string(kMostSharedBytes));
  }

  run.slots = slots.data();
  run.order.resize(count);
  std::iota(run.order.begin(), run.order.end(), 0u);
  if (order == HG_ORDER_REVERSE) std::reverse(run.order.begin(), run.order.end());
  if (order == HG_ORDER_SEEDED) {
    std::mt19937_64 random(seed);
    std::shuffle(run.order.begin(), run.order.end(), random);
  }
  run.threads.resize(count);
  run.states.resize(count);
  run.sites.resize(count);
  run.fibers.resize(count);
  run.groups.assign((count + 31) / 32, Simdgroup());
  for (const uint32_t thread : run.order) {
    Simdgroup& its = run.groups[thread / 32];
    its.threads[its.count++] = thread;
  }
  for (uint32_t i = 0; i < run.count; ++i) {
    Thread& t = run.threads[i];
    t.number = i;
    t.thread = {i % block[0], i / block[0] % block[1], i / block[0] / block[1]};
    t.block_size = {block[0], block[1], block[2]};
    t.grid_size = {grid[0], grid[1], grid[2]};
  }
  for (uint32_t z = 0; z < grid[2]; ++z) {
    for (uint32_t y = 0; y < grid[1]; ++y) {
      for (uint32_t x = 0; x < grid[0]; ++x) {
        for (Thread& t : run.threads) t.block = {x, y, z};
        begin_block();
        for (const Dynamic& its : dynamic) {
          run.dynamic_bytes -= its.bytes;  // counted by take_shared
          slots[its.slot] = take_shared(-1 - its.slot, its.bytes);
          run.dynamic_bytes += its.bytes;
        }
        run_block();
        if (!run.error.empty()) {
          return refuse(prefix + run.error + " (block " + std::to_string(x) + ", " +
                        std::to_string(y) + ", " + std::to_string(z) + ")");
        }
      }
    }
  }
  return 0;
}

}  // extern "C"

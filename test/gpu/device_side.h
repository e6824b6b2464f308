// What compiled kernels and the emulator say to each other. Included by both, C++14.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace hgemu {

struct Triple {
  uint32_t x, y, z;
};

// Where a barrier or an operation of a simdgroup stands in the text.
struct Site {
  const char* file;
  int line, column;
};

// Of the thread that runs.
struct Thread {
  Triple thread, block, block_size, grid_size;
  uint32_t number;  // in its block
};
extern "C" Thread* hgemu_thread;

extern "C" void hgemu_barrier(Site site);
// Gives a lane's value to the others of its simdgroup. `values` and `present` stay what they are
// until the lane's next exchange; a lane that takes no part is poison there.
struct Exchanged {
  const uint32_t* values;
  uint32_t present;  // a bit for each lane
};
extern "C" Exchanged hgemu_exchange(uint32_t value, Site site);
// The memory of a declaration in the block that runs, the same for all its threads.
extern "C" void* hgemu_shared(int declaration, size_t bytes);
// A kernel can't go on; does not return.
extern "C" void hgemu_fail(const char* why);

inline uint32_t lane() {
  return hgemu_thread->number % 32;
}

// What a lane reads that does not exist: NaN as a float.
constexpr uint32_t kPoison = 0xffffffffu;

enum class Role : char {
  buffer = 'b',
  parameter = 'p',
  threadgroup_memory = 't',
  thread_position_in_threadgroup = '0',
  threadgroup_position_in_grid = '1',
  threads_per_threadgroup = '2',
  threadgroups_per_grid = '3',
  thread_position_in_grid = '4',
  thread_index_in_threadgroup = '5',
  thread_index_in_simdgroup = '6',
  simdgroup_index_in_threadgroup = '7',
};

struct ArgumentInfo {
  Role role;
  int index;
  size_t bytes;  // of a parameter
};

struct KernelInfo {
  const char* name;
  void (*run)(void* const* arguments);  // a slot for each argument, those of builtins unused
  int count;
  const ArgumentInfo* arguments;
  const KernelInfo* next;
};

// Each library exports the head of its list.
extern "C" const KernelInfo* hgemu_kernels();

inline Triple builtin(Role role) {
  const Thread& t = *hgemu_thread;
  switch (role) {
    case Role::thread_position_in_threadgroup: return t.thread;
    case Role::threadgroup_position_in_grid: return t.block;
    case Role::threads_per_threadgroup: return t.block_size;
    case Role::threadgroups_per_grid: return t.grid_size;
    case Role::thread_position_in_grid:
      return {t.block.x * t.block_size.x + t.thread.x, t.block.y * t.block_size.y + t.thread.y,
              t.block.z * t.block_size.z + t.thread.z};
    case Role::thread_index_in_threadgroup: return {t.number, 0, 0};
    case Role::thread_index_in_simdgroup: return {t.number % 32, 0, 0};
    case Role::simdgroup_index_in_threadgroup: return {t.number / 32, 0, 0};
    default: return {0, 0, 0};
  }
}

// The worst that an approximation may give: as far off as it may be, into another number of bf16 if
// one is there. Of 0, and what is flushed to it, it is 1, and what is too small is 0 (PTX ISA).
inline float exp2_within_22_bits(float x) {
  if (__builtin_fabsf(x) < 1.17549435e-38f) return 1;
  if (x < -126) return 0;
  const double exact = __builtin_exp2(static_cast<double>(x)), off = exact / 4194304;  // 2^22
  const auto rounded = [](double y) {
    const float narrow = static_cast<float>(y);
    uint32_t bits;
    __builtin_memcpy(&bits, &narrow, sizeof bits);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  };
  return static_cast<float>(rounded(exact + off) != rounded(exact) ? exact + off : exact - off);
}

// As far off as it may be, to either side.
inline float reciprocal_within_22_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  const double exact = 1 / static_cast<double>(x), off = exact / 4194304;  // 2^22
  return static_cast<float>(__builtin_parity(bits) != 0 ? exact + off : exact - off);
}

inline float widen_f16(uint16_t bits) {
  _Float16 half;
  __builtin_memcpy(&half, &bits, sizeof half);
  return static_cast<float>(half);
}
inline uint16_t narrow_f16(float x) {
  const _Float16 half = static_cast<_Float16>(x);
  uint16_t bits;
  __builtin_memcpy(&bits, &half, sizeof bits);
  return bits;
}

}  // namespace hgemu

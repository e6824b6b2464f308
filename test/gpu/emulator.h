// Runs GPU kernels on the CPU: kernel text of either language, compiled by clang (emulator.py).
//
// C ABI, also for programs that load the emulator with dlopen. Launches of all threads are run one
// after another. Functions that fail say why in hg_emulator_error().
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hg_library hg_library;
typedef struct hg_kernel hg_kernel;

// In which order the threads of a block are started.
enum { HG_ORDER_FORWARD = 0, HG_ORDER_REVERSE = 1, HG_ORDER_SEEDED = 2 };

typedef struct hg_argument {
  const void* data;  // of a buffer its address, of a parameter what is copied
  size_t size;       // of a parameter its bytes; not looked at for a buffer
} hg_argument;

// A shared library that emulator.py made of kernel text; null if it is none. Never unloaded.
hg_library* hg_library_open(const char* path);
// Null if there is none of this name.
hg_kernel* hg_library_kernel(hg_library* library, const char* name);
// Arguments that the host gives, and of which kind: 'b' buffer, 'p' parameter, 't' threadgroup
// memory (the argument's size is what to take).
int hg_kernel_arguments(const hg_kernel* kernel);
char hg_kernel_role(const hg_kernel* kernel, int argument);
// Of a parameter; 0 for others.
size_t hg_kernel_bytes(const hg_kernel* kernel, int argument);
// Its number in the text: in CUDA they are numbered from 0; -1 where there is no such argument.
int hg_kernel_index(const hg_kernel* kernel, int argument);
// Threads are grid[0] * grid[1] * grid[2] blocks of block[0] * block[1] * block[2]. 0 if all went
// well; the contents of buffers are anything otherwise.
int hg_launch(const hg_kernel* kernel, const uint32_t grid[3], const uint32_t block[3],
              const hg_argument* arguments, int argument_count, int order, uint64_t seed);
// Of the last function that failed, on any thread.
const char* hg_emulator_error(void);

#ifdef __cplusplus
}
#endif

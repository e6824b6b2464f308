// The kernel dialect: one text, compiled by NVRTC, by Metal's compiler and, in tests, for the CPU.
//
// Kernel text includes this file and nothing else. A prelude says what differs between the two
// languages; the rest of the dialect is written once, in C++14 (that of MSL 3) without lambdas.
//
// Rules that one of the languages makes, and all keep:
//  - Arguments of a kernel: HG_CBUF, HG_BUF and HG_PARAM, in the order of their indices from 0. A
//    parameter is read as `name` or `name.field`; a copy of a whole struct is no text of both.
//  - A pointer says where it points: HG_GLOBAL T*, HG_SHARED_PTR(T), HG_THREAD T*.
//  - HG_SHARED stands at the top of a kernel. HG_SYNC() and hg_shfl_* are reached by all threads.
//    HG_SYNC orders shared memory only. A block is a multiple of 32 threads, at most 1024.
//  - hg_f16, hg_bf16 and hg_b8 are what lies in memory: nothing but hg_convert makes numbers of
//    them (a cast would give their bits), and arithmetic is done in float.
//  - hg_f64 is such a type where HG_HAS_F64 is 0. Its numbers are hg_double: f64 as it is computed
//    with, of which a constant is HG_F64(number, bits).
//  - Literals of float end in f. Names that begin with hg_ or HG_ are the dialect's.
// No operation may be contracted into another one, or results differ from other backends': NVRTC
// needs -fmad=false; the Metal prelude says so itself, and a library is to be built with safe math.
#ifndef HOLOGRAM_GPU_H
#define HOLOGRAM_GPU_H

#if defined(__METAL__) || defined(__METAL_VERSION__)
#include "prelude_metal.h"
#else
#include "prelude_cuda.h"
#endif

// What lies in memory where the languages have no type, or different ones: bits with a name.
enum class hg_f16 : hg_u16 {};
enum class hg_bf16 : hg_u16 {};
enum class hg_b8 : hg_u8 {};  // a byte; what is not zero is true

#define HG_WARP 32u
#define HG_LANE (HG_LID % HG_WARP)
#define HG_WARP_ID (HG_LID / HG_WARP)

// Each uses those before it.
#include "integer.h"

#if !HG_HAS_F64
#include "soft_f64.h"

#include "large_sine.h"
#endif

#include "scalar.h"

#include "convert.h"

#include "functions.h"

#include "power.h"

#include "draw.h"

#include "vector.h"

#include "pairs.h"

#include "tensors.h"

#endif

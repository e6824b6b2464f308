// Makes the compiler vectorise the loops of a file. Include after every other header.
//
// The library is built with -O2, at which GCC 12 leaves loops of unknown length alone. Trap flags
// are no part of a kernel's result, and keeping them would stop comparisons from being vectorised.
#pragma once

#if defined(__clang__)
#define HOLOGRAM_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#pragma GCC optimize("O3", "no-trapping-math")
#define HOLOGRAM_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

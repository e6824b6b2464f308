// Integers of 64 bits by their halves.
#ifndef HOLOGRAM_GPU_INTEGER_H
#define HOLOGRAM_GPU_INTEGER_H

// x * y / 2^64, rounded down.
HG_DEV hg_u64 hg_multiply_high(hg_u64 x, hg_u64 y) {
  const hg_u64 mask = 0xffffffffu;
  const hg_u64 first = (x >> 32) * (y & mask) + (((x & mask) * (y & mask)) >> 32);
  const hg_u64 second = (x & mask) * (y >> 32) + (first & mask);
  return (x >> 32) * (y >> 32) + (first >> 32) + (second >> 32);
}

#endif

// The sine and cosine of a float beyond 2^17 where the language has no f64: in integers, rounded to
// f64 and then to float, as the CPU's are, whose C library rounds to f64. The error before that is
// below 2^-60 of the result. All floats have been tried: they have glibc's bits (2.36).
#ifndef HOLOGRAM_GPU_LARGE_SINE_H
#define HOLOGRAM_GPU_LARGE_SINE_H

// 2 / pi, behind 32 zeros.
HG_CONSTANT hg_u32 hg_two_over_pi[9] = {0u,          0xa2f9836eu, 0x4e441529u,
                                        0xfc2757d1u, 0xf534ddc0u, 0xdb629599u,
                                        0x3c439041u, 0xfe5163abu, 0xdebbc561u};

// c - z * (next coefficient - z * ...), in units of 2^-64.
HG_DEV hg_u64 hg_series(hg_u64, hg_u64 c) {
  return c;
}
template <class... Rest>
HG_DEV hg_u64 hg_series(hg_u64 z, hg_u64 c, Rest... rest) {
  return c - hg_multiply_high(z, hg_series(z, rest...));
}

// sin(|x| + quarter * pi / 2). By Payne and Hanek (Radian Reduction for Trigonometric Functions,
// 1983): of 2 / pi the digits are multiplied that make no multiples of four quarters and are large
// enough to be seen.
HG_DEV float hg_large_sine(float x, hg_u32 quarter) {
  const hg_u32 u = hg_as_u32(x), digits = (u & 0x7fffffu) | 0x800000u;
  const hg_u32 exponent = (u >> 23) & 0xffu;
  if (exponent == 0xffu) return hg_as_f32(0x7fc00000u);
  // |x| = digits * 2^(exponent - 150). 128 digits of 2 / pi, so that the product's first two bits
  // are quarters.
  const hg_u32 first = exponent - 120u, shift = first % 32u;
  hg_u32 words[4];
  hg_u64 carry = 0;
  HG_UNROLL
  for (hg_u32 i = 4u; i-- > 0u;) {
    const hg_u64 pair = (static_cast<hg_u64>(hg_two_over_pi[first / 32u + i]) << 32) |
                        hg_two_over_pi[first / 32u + i + 1u];
    carry += static_cast<hg_u64>(static_cast<hg_u32>(pair >> (32u - shift))) * digits;
    words[i] = static_cast<hg_u32>(carry);
    carry >>= 32;
  }
  hg_u64 high = (static_cast<hg_u64>(words[0]) << 32) | words[1];
  hg_u64 low = (static_cast<hg_u64>(words[2]) << 32) | words[3];
  // The nearest quarter, and what is left: at most 1/2, in units of 2^-128.
  const hg_u32 turn = static_cast<hg_u32>((high + 0x2000000000000000ul) >> 62);
  high = (high << 2) | (low >> 62);
  low <<= 2;
  const bool is_below = (high >> 63) != 0u;
  high = is_below ? ~high : high;
  low = is_below ? ~low : low;  // in the last place, which is not seen, it is not the negative
  // No float is so near to a quarter that `high` is 0.
  const hg_u32 zeros = hg_leading_zeros(high);
  const hg_u64 rest = (high << zeros) | ((low >> 1) >> (63u - zeros));
  // The angle in units of 2^-(63 + zeros), and its square.
  const hg_u64 angle = hg_multiply_high(rest, 0xc90fdaa22168c235ul);  // pi / 4
  const hg_u32 down = 2u * zeros - 2u;
  const hg_u64 z = hg_multiply_high(angle, angle) >> (down < 63u ? down : 63u);

  // The series of Taylor: 1 / 3!, 1 / 5! and so on, or 1 / 2!, 1 / 4! and so on.
  const hg_u32 where = turn + quarter;
  const bool is_cosine = (where & 1u) != 0u;
  const hg_u64 less =
      hg_multiply_high(z, hg_series(z, is_cosine ? 0x8000000000000000ul : 0x2aaaaaaaaaaaaaabul,
                                    is_cosine ? 0x0aaaaaaaaaaaaaabul : 0x0222222222222222ul,
                                    is_cosine ? 0x005b05b05b05b05bul : 0x000d00d00d00d00dul,
                                    is_cosine ? 0x0001a01a01a01a02ul : 0x00002e3bc74aad8eul,
                                    is_cosine ? 0x0000049f93edde28ul : 0x0000006b99159fd5ul,
                                    is_cosine ? 0x00000008f76c77fcul : 0x00000000b092309dul,
                                    is_cosine ? 0x000000000c9cba54ul : 0x0000000000d73f9ful,
                                    is_cosine ? 0x00000000000d73faul : 0x000000000000ca96ul,
                                    is_cosine ? 0x0000000000000b41ul : 0x0000000000000098ul,
                                    is_cosine ? 0x0000000000000008ul : 0x0000000000000000ul));
  const hg_u64 whole = is_cosine ? 0x8000000000000000ul : angle;
  const hg_i32 scale = is_cosine ? 63 : 63 + static_cast<hg_i32>(zeros);
  const hg_u64 bits = hg_f64_of_integer(whole - hg_multiply_high(whole, less), scale);
  const float size = hg_double_to_float(hg_as_f64(bits));
  const hg_u32 odd = is_below && !is_cosine ? 1u : 0u;
  return hg_as_f32(hg_as_u32(size) ^ ((((where >> 1) ^ odd) & 1u) << 31));
}
HG_DEV float hg_large_sin(float x) {
  const float y = hg_large_sine(x, 0u);
  return hg_as_f32(hg_as_u32(y) ^ (hg_as_u32(x) & 0x80000000u));
}
HG_DEV float hg_large_cos(float x) {
  return hg_large_sine(x, 1u);
}

#endif

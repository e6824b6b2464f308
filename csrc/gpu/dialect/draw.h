// Random numbers (atlas/random.h): what an element of a space is, from the generator's seed, the
// first counter and the element's number.
#ifndef HOLOGRAM_GPU_DRAW_H
#define HOLOGRAM_GPU_DRAW_H

struct hg_words {
  hg_u32 x, y, z, w;
};

// Philox 4x32-10 (atlas/philox.h).
HG_DEV hg_words hg_philox(hg_u64 key, hg_u64 counter) {
  hg_u32 x = static_cast<hg_u32>(counter), y = static_cast<hg_u32>(counter >> 32), z = 0u, w = 0u;
  hg_u32 low = static_cast<hg_u32>(key), high = static_cast<hg_u32>(key >> 32);
  HG_UNROLL
  for (int round = 0; round < 10; ++round) {
    const hg_u32 p = hg_mul_high(0xd2511f53u, x), q = hg_mul_high(0xcd9e8d57u, z);
    const hg_u32 p_low = 0xd2511f53u * x, q_low = 0xcd9e8d57u * z;
    x = q ^ y ^ low;
    y = q_low;
    z = p ^ w ^ high;
    w = p_low;
    low += 0x9e3779b9u;
    high += 0xbb67ae85u;
  }
  hg_words words;
  words.x = x;
  words.y = y;
  words.z = z;
  words.w = w;
  return words;
}
HG_DEV hg_u32 hg_word(hg_words words, hg_u32 i) {
  return i < 2u ? (i == 0u ? words.x : words.y) : (i == 2u ? words.z : words.w);
}
// Two of them, the first one low.
HG_DEV hg_u64 hg_long_word(hg_words words, hg_u32 i) {
  const hg_u32 low = i == 0u ? words.x : words.z, high = i == 0u ? words.y : words.w;
  return static_cast<hg_u64>(low) | (static_cast<hg_u64>(high) << 32);
}

// ---- of words ----

// [0, 1), a number of so many digits: 24, of f16 11, of bf16 8.
HG_DEV float hg_uniform_of(hg_u32 word, hg_u32 digits) {
  const float unit = hg_as_f32((127u - digits) << 23);  // 2^-digits
  return static_cast<float>(word >> (32u - digits)) * unit;
}
// sqrt(-2 log(u)) with u = (word / 2 + 1/2) / 2^31, the word's half rounded down: in (0, 1].
HG_DEV float hg_normal_radius(hg_u32 word) {
  const float u = hg_fma(static_cast<float>(word >> 1), 4.656613e-10f, 2.3283064e-10f);
  const hg_log_parts parts = hg_log_of(u);
  return hg_sqrt(-2.0f * hg_logarithm(parts.f, hg_log_n(parts)));
}
// The cosine of 2 pi word / 2^32, or the sine.
HG_DEV float hg_turn(hg_u32 word, bool is_sine) {
  const hg_u32 shifted = word + 0x20000000u;
  const hg_i32 rest = static_cast<hg_i32>((shifted & 0x3fffffffu) - 0x20000000u);
  const float x = static_cast<float>(rest) * 1.4629181e-09f;
  const float z = x * x;
  const float s = hg_fma(x * z, hg_polynomial(z, -0.16666654f, 0.008332098f, -0.00019506023f), x);
  const float c = hg_fma(z * z, hg_polynomial(z, 0.04166664f, -0.001388713f, 2.4412086e-05f),
                         hg_fma(z, -0.5f, 1.0f));
  const bool odd = (shifted & 0x40000000u) != 0u;               // the quarter is 1 or 3
  const hg_u32 half = shifted & 0x80000000u;                    // 2 or 3
  const hg_u32 middle = half ^ ((shifted << 1) & 0x80000000u);  // 1 or 2
  return is_sine ? hg_as_f32(hg_as_u32(odd ? c : s) ^ half)
                 : hg_as_f32(hg_as_u32(odd ? s : c) ^ middle);
}

// ---- of an element, of which `at` are before it in the words ----

// Not rounded to the dtype: it has no more digits than that.
HG_DEV float hg_uniform(hg_words words, hg_u32 at, hg_u32 digits) {
  return hg_uniform_of(hg_word(words, at), digits);
}
// Not rounded to the dtype.
HG_DEV float hg_normal(hg_words words, hg_u32 at) {
  return hg_normal_radius(at < 2u ? words.x : words.z) *
         hg_turn(at < 2u ? words.y : words.w, at % 2u != 0u);
}
// [0, range), a range of at most 2^32.
HG_DEV hg_i64 hg_integer(hg_words words, hg_u32 at, hg_u64 range) {
  const hg_u64 word = hg_word(words, at);
  return static_cast<hg_i64>((word * range) >> 32);
}
// [0, range), a range of at most 2^64, which is 0.
HG_DEV hg_i64 hg_long_integer(hg_words words, hg_u32 at, hg_u64 range) {
  const hg_u64 word = hg_long_word(words, at);
  return static_cast<hg_i64>(range == 0u ? word : hg_multiply_high(word, range));
}
#if HG_HAS_F64
HG_DEV double hg_uniform_f64(hg_words words, hg_u32 at) {
  return static_cast<double>(hg_long_word(words, at) >> 11) *
         hg_as_f64(0x3ca0000000000000ull);  // 2^-53
}
HG_DEV double hg_normal_f64(hg_words words, hg_u32 at) {
  const double unit = hg_as_f64(0x3ca0000000000000ull);
  const double u = static_cast<double>((hg_long_word(words, 0u) >> 11) + 1u) * unit;
  const double angle =
      static_cast<double>(hg_long_word(words, 1u) >> 11) * unit * 6.283185307179586;
  return sqrt(-2.0 * log(u)) * (at == 0u ? cos(angle) : sin(angle));
}
#endif

#endif

// 16 bytes of elements, read and written at once: of operands whose addresses are multiples of 16.
#ifndef HOLOGRAM_GPU_VECTOR_H
#define HOLOGRAM_GPU_VECTOR_H

// Elements in one.
#define HG_VEC(T) (16u / static_cast<hg_u32>(sizeof(T)))

// Words, as an array of narrow elements would not stay in registers.
template <class T>
struct hg_vec {
  hg_u32 word[4];
};

template <class T>
HG_DEV hg_vec<T> hg_vec_of(hg_u32x4 words) {
  hg_vec<T> v;
  v.word[0] = words.x;
  v.word[1] = words.y;
  v.word[2] = words.z;
  v.word[3] = words.w;
  return v;
}
template <class T>
HG_DEV hg_u32x4 hg_words_of(hg_vec<T> v) {
  hg_u32x4 words;
  words.x = v.word[0];
  words.y = v.word[1];
  words.z = v.word[2];
  words.w = v.word[3];
  return words;
}

template <class T>
HG_DEV hg_vec<T> hg_load_vec(HG_GLOBAL const T* p) {
  return hg_vec_of<T>(*reinterpret_cast<HG_GLOBAL const hg_u32x4*>(p));
}
template <class T>
HG_DEV void hg_store_vec(HG_GLOBAL T* p, hg_vec<T> v) {
  *reinterpret_cast<HG_GLOBAL hg_u32x4*>(p) = hg_words_of(v);
}
// The bits of an element, and back.
#define HG_BITS(T, U)                        \
  HG_DEV U hg_bits(T x) {                    \
    return static_cast<U>(x);                \
  }                                          \
  HG_DEV T hg_from_bits(hg_tag<T>, U bits) { \
    return static_cast<T>(bits);             \
  }
HG_BITS(hg_b8, hg_u8)
HG_BITS(hg_u8, hg_u8)
HG_BITS(hg_i8, hg_u8)
HG_BITS(hg_i16, hg_u16)
HG_BITS(hg_f16, hg_u16)
HG_BITS(hg_bf16, hg_u16)
HG_BITS(hg_i32, hg_u32)
HG_BITS(hg_u32, hg_u32)
HG_BITS(hg_i64, hg_u64)
HG_BITS(hg_u64, hg_u64)
#if !HG_HAS_F64
HG_BITS(hg_f64, hg_u64)
#endif
#undef HG_BITS
HG_DEV hg_u32 hg_bits(float x) {
  return hg_as_u32(x);
}
HG_DEV float hg_from_bits(hg_tag<float>, hg_u32 bits) {
  return hg_as_f32(bits);
}
HG_DEV hg_u64 hg_bits(hg_double x) {
  return hg_as_u64(x);
}
HG_DEV hg_double hg_from_bits(hg_tag<hg_double>, hg_u64 bits) {
  return hg_as_f64(bits);
}

template <class T, hg_u32 bytes>
struct hg_place;  // of an element i in words
template <class T>
struct hg_place<T, 4> {
  HG_DEV T get(HG_THREAD const hg_u32* word, hg_u32 i) {
    return hg_from_bits(hg_tag<T>(), word[i]);
  }
  HG_DEV void set(HG_THREAD hg_u32* word, hg_u32 i, T x) { word[i] = hg_bits(x); }
};
template <class T>
struct hg_place<T, 8> {
  HG_DEV T get(HG_THREAD const hg_u32* word, hg_u32 i) {
    return hg_from_bits(hg_tag<T>(), static_cast<hg_u64>(word[2 * i]) |
                                         (static_cast<hg_u64>(word[2 * i + 1]) << 32));
  }
  HG_DEV void set(HG_THREAD hg_u32* word, hg_u32 i, T x) {
    const hg_u64 bits = hg_bits(x);
    word[2 * i] = static_cast<hg_u32>(bits);
    word[2 * i + 1] = static_cast<hg_u32>(bits >> 32);
  }
};
#define HG_NARROW(bytes, U)                                                                \
  template <class T>                                                                       \
  struct hg_place<T, bytes> {                                                              \
    HG_DEV T get(HG_THREAD const hg_u32* word, hg_u32 i) {                                 \
      const hg_u32 shift = i % (4 / bytes) * (8 * bytes);                                  \
      return hg_from_bits(hg_tag<T>(), static_cast<U>(word[i / (4 / bytes)] >> shift));    \
    }                                                                                      \
    HG_DEV void set(HG_THREAD hg_u32* word, hg_u32 i, T x) {                               \
      const hg_u32 shift = i % (4 / bytes) * (8 * bytes), mask = (1u << (8 * bytes)) - 1u; \
      const hg_u32 rest = word[i / (4 / bytes)] & ~(mask << shift);                        \
      word[i / (4 / bytes)] = rest | (static_cast<hg_u32>(hg_bits(x)) << shift);           \
    }                                                                                      \
  };
HG_NARROW(2, hg_u16)
HG_NARROW(1, hg_u8)
#undef HG_NARROW

// Element i; in an unrolled loop, where i is known, a move.
template <class T>
HG_DEV T hg_vec_get(HG_THREAD const hg_vec<T>& v, hg_u32 i) {
  return hg_place<T, sizeof(T)>::get(v.word, i);
}
template <class T>
HG_DEV void hg_vec_set(HG_THREAD hg_vec<T>& v, hg_u32 i, T x) {
  hg_place<T, sizeof(T)>::set(v.word, i, x);
}

// ---- a few elements side by side ----

// Words in memory: of `bytes`, a power of two, at a multiple of that or of 16.
template <hg_u32 bytes>
struct hg_words_at {
  HG_DEV void load(HG_THREAD hg_u32* word, HG_GLOBAL const hg_u32x4* p) {
    HG_UNROLL
    for (hg_u32 i = 0; i < bytes / 16u; ++i) {
      const hg_u32x4 words = p[i];
      word[4u * i] = words.x;
      word[4u * i + 1u] = words.y;
      word[4u * i + 2u] = words.z;
      word[4u * i + 3u] = words.w;
    }
  }
  HG_DEV void load_once(HG_THREAD hg_u32* word, HG_GLOBAL const hg_u32x4* p) {
    HG_UNROLL
    for (hg_u32 i = 0; i < bytes / 16u; ++i) {
      const hg_u32x4 words = hg_load_once(p + i);
      word[4u * i] = words.x;
      word[4u * i + 1u] = words.y;
      word[4u * i + 2u] = words.z;
      word[4u * i + 3u] = words.w;
    }
  }
  HG_DEV void store(HG_GLOBAL hg_u32x4* p, HG_THREAD const hg_u32* word) {
    HG_UNROLL
    for (hg_u32 i = 0; i < bytes / 16u; ++i) {
      hg_u32x4 words;
      words.x = word[4u * i];
      words.y = word[4u * i + 1u];
      words.z = word[4u * i + 2u];
      words.w = word[4u * i + 3u];
      p[i] = words;
    }
  }
  typedef hg_u32x4 type;
};
template <>
struct hg_words_at<8> {
  HG_DEV void load(HG_THREAD hg_u32* word, HG_GLOBAL const hg_u32x2* p) {
    const hg_u32x2 words = *p;
    word[0] = words.x;
    word[1] = words.y;
  }
  HG_DEV void load_once(HG_THREAD hg_u32* word, HG_GLOBAL const hg_u32x2* p) {
    const hg_u32x2 words = hg_load_once(p);
    word[0] = words.x;
    word[1] = words.y;
  }
  HG_DEV void store(HG_GLOBAL hg_u32x2* p, HG_THREAD const hg_u32* word) {
    hg_u32x2 words;
    words.x = word[0];
    words.y = word[1];
    *p = words;
  }
  typedef hg_u32x2 type;
};
#define HG_NARROW(bytes, U)                                                               \
  template <>                                                                             \
  struct hg_words_at<bytes> {                                                             \
    HG_DEV void load(HG_THREAD hg_u32* word, HG_GLOBAL const U* p) { word[0] = *p; }      \
    HG_DEV void load_once(HG_THREAD hg_u32* word, HG_GLOBAL const U* p) { word[0] = *p; } \
    HG_DEV void store(HG_GLOBAL U* p, HG_THREAD const hg_u32* word) {                     \
      *p = static_cast<U>(word[0]);                                                       \
    }                                                                                     \
    typedef U type;                                                                       \
  };
HG_NARROW(4, hg_u32)
HG_NARROW(2, hg_u16)
#undef HG_NARROW

template <class T, hg_u32 n>
struct hg_few {
  hg_u32 word[(n * sizeof(T) + 3) / 4];
};
template <class T, hg_u32 n>
HG_DEV T hg_few_get(HG_THREAD const hg_few<T, n>& v, hg_u32 i) {
  return hg_place<T, sizeof(T)>::get(v.word, i);
}
template <class T, hg_u32 n>
HG_DEV void hg_few_set(HG_THREAD hg_few<T, n>& v, hg_u32 i, T x) {
  hg_place<T, sizeof(T)>::set(v.word, i, x);
}
// All at once, from an address that is a multiple of their bytes or of 16.
template <class T, hg_u32 n>
HG_DEV void hg_load_few(HG_THREAD hg_few<T, n>& v, HG_GLOBAL const T* p) {
  typedef hg_words_at<n * sizeof(T)> its;
  its::load(v.word, reinterpret_cast<HG_GLOBAL const typename its::type*>(p));
}
// The same, of what nobody reads again: memory that the kernel does not write before.
template <class T, hg_u32 n>
HG_DEV void hg_load_few_once(HG_THREAD hg_few<T, n>& v, HG_GLOBAL const T* p) {
  typedef hg_words_at<n * sizeof(T)> its;
  its::load_once(v.word, reinterpret_cast<HG_GLOBAL const typename its::type*>(p));
}
template <class T, hg_u32 n>
HG_DEV void hg_store_few(HG_GLOBAL T* p, HG_THREAD const hg_few<T, n>& v) {
  typedef hg_words_at<n * sizeof(T)> its;
  its::store(reinterpret_cast<HG_GLOBAL typename its::type*>(p), v.word);
}
// One after the other, or the first ones only; what else is loaded is the first one again.
template <class T, hg_u32 n>
HG_DEV void hg_load_part(HG_THREAD hg_few<T, n>& v, HG_GLOBAL const T* p, hg_u32 count) {
  HG_UNROLL
  for (hg_u32 i = 0; i < n; ++i) hg_few_set(v, i, p[i < count ? i : 0u]);
}
template <class T, hg_u32 n>
HG_DEV void hg_store_part(HG_GLOBAL T* p, HG_THREAD const hg_few<T, n>& v, hg_u32 count) {
  HG_UNROLL
  for (hg_u32 i = 0; i < n; ++i) {
    if (i < count) p[i] = hg_few_get(v, i);
  }
}
template <class T, hg_u32 n>
HG_DEV void hg_load_each(HG_THREAD hg_few<T, n>& v, HG_GLOBAL const T* p) {
  hg_load_part(v, p, n);
}
template <class T, hg_u32 n>
HG_DEV void hg_store_each(HG_GLOBAL T* p, HG_THREAD const hg_few<T, n>& v) {
  hg_store_part(p, v, n);
}

// An element in words of shared memory.
HG_DEV float hg_word_get(hg_tag<float>, HG_SHARED_PTR(const hg_u32) words, hg_u32 i) {
  return hg_as_f32(words[i]);
}
HG_DEV void hg_word_set(HG_SHARED_PTR(hg_u32) words, hg_u32 i, float x) {
  words[i] = hg_as_u32(x);
}
#define HG_SHARED_WORDS(T)                                                                 \
  HG_DEV T hg_word_get(hg_tag<T>, HG_SHARED_PTR(const hg_u32) words, hg_u32 i) {           \
    return hg_from_bits(hg_tag<T>(), static_cast<hg_u64>(words[2u * i]) |                  \
                                         (static_cast<hg_u64>(words[2u * i + 1u]) << 32)); \
  }                                                                                        \
  HG_DEV void hg_word_set(HG_SHARED_PTR(hg_u32) words, hg_u32 i, T x) {                    \
    const hg_u64 bits = hg_bits(x);                                                        \
    words[2u * i] = static_cast<hg_u32>(bits);                                             \
    words[2u * i + 1u] = static_cast<hg_u32>(bits >> 32);                                  \
  }
HG_SHARED_WORDS(hg_i64)
HG_SHARED_WORDS(hg_double)
#undef HG_SHARED_WORDS

#endif

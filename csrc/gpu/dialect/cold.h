// The cold kernels: they interpret a step's program (cold_program.h), so that any plan runs without
// waiting for a compiler, with the bits of the kernels that gpu/emit.h makes of the same step.
//
// Values are kept in slots, of a few elements each thread: what an instruction is, is found out
// once for all of these. One kernel per skeleton (gpu/steps.h) and compute type. Before this file
// the op table is to be rendered: hg_cold_apply(op, x, y, z) of each compute type, and of
// hg_double.
#ifndef HOLOGRAM_GPU_COLD_H
#define HOLOGRAM_GPU_COLD_H

#include "cold_program.h"

struct hg_cold_parameters {
  hg_u64 threads, columns, rows, parts, part_rows, joined;  // Parameter::Kind
  hg_u64 word[HG_COLD_WORDS];
};

// The place of an element: itself, its row of all planes, its column, that row in its plane, the
// plane.
struct hg_cold_spot {
  hg_u64 e, r, c, m, l;
};

typedef HG_GLOBAL hg_u8* hg_cold_buffer;

// Elements of a thread that are computed at once.
#define HG_COLD_ELEMENTS(T) (16u / static_cast<hg_u32>(sizeof(T)))

template <class T>
struct hg_cold_state {
  T elements[HG_COLD_SLOTS * (16 / sizeof(T))];
  T rows[HG_COLD_SLOTS];
  hg_cold_spot spot[16 / sizeof(T)];
};

// ---- numbers ----

HG_DEV float hg_cold_number(hg_tag<float>, hg_u64 bits) {
  return hg_as_f32(static_cast<hg_u32>(bits));
}
HG_DEV hg_i64 hg_cold_number(hg_tag<hg_i64>, hg_u64 bits) {
  return static_cast<hg_i64>(bits);
}
#if HG_HAS_F64
HG_DEV double hg_cold_number(hg_tag<double>, hg_u64 bits) {
  return hg_as_f64(bits);
}
#endif
// The numbers of DType.
#define HG_COLD_DTYPES(case_of)                                                               \
  case_of(0, hg_b8) case_of(1, hg_u8) case_of(2, hg_i8) case_of(3, hg_i16) case_of(4, hg_i32) \
      case_of(5, hg_i64) case_of(6, hg_f16) case_of(7, hg_bf16) case_of(8, hg_f32)            \
          case_of(9, hg_f64)

template <class T>
HG_FUNCTION T hg_cold_load(HG_GLOBAL const hg_u8* from, hg_u32 dtype, hg_u64 at) {
  switch (dtype) {
#define HG_CASE(number, D) \
  case number: return hg_convert<T>(reinterpret_cast<HG_GLOBAL const D*>(from)[at]);
    HG_COLD_DTYPES(HG_CASE)
#undef HG_CASE
    default: return T(0);
  }
}
template <class T>
HG_FUNCTION void hg_cold_store(hg_cold_buffer to, hg_u32 dtype, hg_u64 at, T x) {
  switch (dtype) {
#define HG_CASE(number, D) \
  case number: reinterpret_cast<HG_GLOBAL D*>(to)[at] = hg_convert<D>(x); break;
    HG_COLD_DTYPES(HG_CASE)
#undef HG_CASE
    default: break;
  }
}
// Rounded to what a dtype holds, or as it is (HG_COLD_NO_DTYPE).
template <class T>
HG_FUNCTION T hg_cold_rounded(hg_u32 dtype, T x) {
  switch (dtype) {
#define HG_CASE(number, D) \
  case number: return hg_convert<T>(hg_convert<D>(x));
    HG_COLD_DTYPES(HG_CASE)
#undef HG_CASE
    default: return x;
  }
}

// By the numbers of Draw; `digits` of a uniform one.
HG_FUNCTION float hg_cold_draw(hg_tag<float>, hg_u32 draw, hg_u64 seed, hg_u64 offset, hg_u64 range,
                               hg_u64 e, hg_u32 digits) {
  if (draw == 0u)
    return hg_uniform(hg_philox(seed, offset + e / 4u), static_cast<hg_u32>(e % 4u), digits);
  return hg_normal(hg_philox(seed, offset + e / 4u), static_cast<hg_u32>(e % 4u));
}
HG_FUNCTION hg_i64 hg_cold_draw(hg_tag<hg_i64>, hg_u32 draw, hg_u64 seed, hg_u64 offset,
                                hg_u64 range, hg_u64 e, hg_u32 digits) {
  if (draw == 2u)
    return hg_integer(hg_philox(seed, offset + e / 4u), static_cast<hg_u32>(e % 4u), range);
  return hg_long_integer(hg_philox(seed, offset + e / 2u), static_cast<hg_u32>(e % 2u), range);
}
#if HG_HAS_F64
HG_FUNCTION double hg_cold_draw(hg_tag<double>, hg_u32 draw, hg_u64 seed, hg_u64 offset,
                                hg_u64 range, hg_u64 e, hg_u32 digits) {
  if (draw == 0u)
    return hg_uniform_f64(hg_philox(seed, offset + e / 2u), static_cast<hg_u32>(e % 2u));
  return hg_normal_f64(hg_philox(seed, offset + e / 2u), static_cast<hg_u32>(e % 2u));
}
#endif

// ---- instructions ----

template <class T>
HG_DEV T hg_cold_value(HG_THREAD const hg_cold_state<T>& s, HG_CONSTANT const hg_cold_parameters& p,
                       hg_u32 value, hg_u32 k) {
  if ((value & HG_COLD_NUMBER) != 0u) {
    return hg_cold_number(hg_tag<T>(), p.word[value & HG_COLD_PLACE]);
  }
  if ((value & HG_COLD_ROW) != 0u) return s.rows[value & HG_COLD_PLACE];
  return s.elements[value * HG_COLD_ELEMENTS(T) + k];
}

// In elements of the operand that the last word of an instruction says.
HG_DEV hg_u64 hg_cold_place(HG_GLOBAL const hg_u32* program,
                            HG_CONSTANT const hg_cold_parameters& p, hg_u32 word,
                            HG_THREAD const hg_cold_spot& at) {
  switch ((word >> 8) & 0xffu) {
    case 1u: return at.l;
    case 2u: return at.m;
    case 3u: return at.r;
    case 4u: return at.c;
    case 5u: return at.l * p.columns + at.c;
    case 6u: return at.m * p.columns + at.c;
    case 7u: return at.e;
    case HG_COLD_STRIDED: {
      const hg_u32 sizes = program[4], strides = word >> 16;
      hg_u64 rest = at.e, place = 0;
      for (hg_u32 d = program[3]; d-- > 1u;) {
        place += rest % p.word[sizes + d] * p.word[strides + d];
        rest /= p.word[sizes + d];
      }
      return program[3] == 0u ? place : place + rest * p.word[strides];
    }
    default: return 0;
  }
}

// Instructions from `begin` to `end`, but picks, for some elements of the thread; `to_rows`: what
// they make are values of rows.
template <class T>
HG_FUNCTION void hg_cold_run(HG_THREAD hg_cold_state<T>& s, HG_THREAD const hg_cold_buffer* buffers,
                             HG_GLOBAL const hg_u32* program,
                             HG_CONSTANT const hg_cold_parameters& p, hg_u32 begin, hg_u32 end,
                             hg_u32 first, hg_u32 last, bool to_rows) {
  for (hg_u32 i = begin; i < end; i += HG_COLD_INSTRUCTION) {
    const hg_u32 what = program[i], slot = program[i + 1] & 0xffffu, x = program[i + 1] >> 16;
    const hg_u32 y = program[i + 2] & 0xffffu, z = program[i + 2] >> 16, word = program[i + 3];
    const hg_u32 code = (what >> 8) & 0xffu, dtype = (what >> 16) & 0xffu, of_operand = what >> 24;
    for (hg_u32 k = first; k < last; ++k) {
      T value = T(0);
      switch (what & 0xffu) {
        case HG_COLD_LOAD:
          value = hg_cold_load<T>(buffers[word & 0xffu], of_operand,
                                  hg_cold_place(program, p, word, s.spot[k]));
          break;
        case HG_COLD_COMPUTE:
          value = hg_cold_apply(code, hg_cold_value(s, p, x, k), hg_cold_value(s, p, y, k),
                                hg_cold_value(s, p, z, k));
          break;
        case HG_COLD_CAST: value = hg_cold_value(s, p, x, k); break;
        case HG_COLD_STORE:
          hg_cold_store<T>(buffers[word & 0xffu], of_operand,
                           hg_cold_place(program, p, word, s.spot[k]), hg_cold_value(s, p, x, k));
          continue;
        case HG_COLD_POSITION: value = T(code != 0u ? s.spot[k].c : s.spot[k].m); break;
        case HG_COLD_DRAW:
          value =
              hg_cold_draw(hg_tag<T>(), code, p.word[x], p.word[y], p.word[z], s.spot[k].e, word);
          break;
        default: break;
      }
      value = hg_cold_rounded(dtype, value);
      if (to_rows) {
        s.rows[slot] = value;
      } else {
        s.elements[slot * HG_COLD_ELEMENTS(T) + k] = value;
      }
    }
  }
}

// The same with picks: the value x of the row's element in column y. The code that makes it stands
// beside, and has slots of rows: values of elements are those of another column.
template <class T>
HG_FUNCTION void hg_cold_code(HG_THREAD hg_cold_state<T>& s,
                              HG_THREAD const hg_cold_buffer* buffers,
                              HG_GLOBAL const hg_u32* program,
                              HG_CONSTANT const hg_cold_parameters& p, hg_u32 begin, hg_u32 end,
                              hg_u32 last, bool to_rows) {
  for (hg_u32 i = begin; i < end;) {
    hg_u32 next = i;
    while (next < end && (program[next] & 0xffu) != HG_COLD_PICK) next += HG_COLD_INSTRUCTION;
    hg_cold_run(s, buffers, program, p, i, next, 0u, last, to_rows);
    i = next + HG_COLD_INSTRUCTION;
    if (next >= end) break;
    const hg_u32 slot = program[next + 1] & 0xffffu, x = program[next + 1] >> 16;
    const hg_u32 y = program[next + 2] & 0xffffu, word = program[next + 3];
    const hg_u32 own = word & 0xffffu;
    for (hg_u32 k = 0; k < last; ++k) {
      const T at = hg_cold_value(s, p, y, k);
      T value = T(0);
      if (at >= T(0) && at < T(p.columns)) {
        const hg_u64 c = static_cast<hg_u64>(at);
        if (T(c) == at) {
          const hg_cold_spot before = s.spot[k];
          s.spot[k].c = c;
          s.spot[k].e = before.r * p.columns + c;
          hg_cold_run(s, buffers, program, p, own, own + (word >> 16) * HG_COLD_INSTRUCTION, k,
                      k + 1u, true);
          s.spot[k] = before;
          const T found = hg_cold_value(s, p, x, k);
          // -0 of a row of several becomes +0.
          value = p.columns == 1 ? found : wrap_add(found, T(0));
        }
      }
      if (to_rows) {
        s.rows[slot] = value;
      } else {
        s.elements[slot * HG_COLD_ELEMENTS(T) + k] = value;
      }
    }
  }
}

// ---- neighbours that join ----

template <class T>
struct hg_cold_stack {
  T value[48];
  hg_u32 depth;
};
// x is number `at`: as the bits of a binary number, each stands for twice as many as the one below.
template <class T>
HG_DEV void hg_cold_push(HG_THREAD hg_cold_stack<T>& stack, hg_u32 op, T x, hg_u64 at) {
  for (hg_u64 q = at; (q & 1) != 0; q >>= 1) {
    --stack.depth;
    x = hg_cold_apply(op, stack.value[stack.depth], x, T(0));
  }
  stack.value[stack.depth] = x;
  ++stack.depth;
}
template <class T>
HG_DEV T hg_cold_pop_all(HG_THREAD hg_cold_stack<T>& stack, hg_u32 op) {
  T x = stack.value[--stack.depth];
  while (stack.depth != 0u) x = hg_cold_apply(op, stack.value[--stack.depth], x, T(0));
  return x;
}

// ---- programs ----

HG_DEV HG_GLOBAL const hg_u32* hg_cold_phase(HG_GLOBAL const hg_u32* program, hg_u32 i) {
  return program + program[2] + i * HG_COLD_PHASE;
}
// A fold or scan of a phase.
HG_DEV HG_GLOBAL const hg_u32* hg_cold_fold(HG_GLOBAL const hg_u32* program,
                                            HG_GLOBAL const hg_u32* phase, hg_u32 i) {
  return program + phase[4] + i * HG_COLD_INSTRUCTION;
}
template <class T>
HG_DEV T hg_cold_identity(HG_GLOBAL const hg_u32* fold) {
  return hg_cold_number(hg_tag<T>(),
                        static_cast<hg_u64>(fold[2]) | (static_cast<hg_u64>(fold[3]) << 32));
}

// Column c of row m of plane l.
HG_DEV void hg_cold_set_spot(HG_THREAD hg_cold_spot& spot, HG_CONSTANT const hg_cold_parameters& p,
                             hg_u64 l, hg_u64 m, hg_u64 c) {
  spot.r = l * p.rows + m;
  spot.e = spot.r * p.columns + c;
  spot.c = c;
  spot.m = m;
  spot.l = l;
}

// ---- skeletons ----

#define HG_COLD_ARGUMENTS                                                   \
  HG_THREAD const hg_cold_buffer *buffers, HG_GLOBAL const hg_u32 *program, \
      HG_CONSTANT const hg_cold_parameters &p, hg_u32 lid, hg_u32 block, hg_u32 block_size

template <class T>
HG_DEV void hg_cold_elements(HG_COLD_ARGUMENTS) {
  const hg_u32 n = HG_COLD_ELEMENTS(T), flags = program[0];
  hg_cold_state<T> s;
  const hg_u64 begin = static_cast<hg_u64>(block) * block_size * n + lid;
  hg_u32 count = 0;
  for (hg_u32 k = 0; k < n; ++k) {
    const hg_u64 e = begin + static_cast<hg_u64>(k) * block_size;
    if (e >= p.threads) break;
    s.spot[k].e = s.spot[k].r = e;
    s.spot[k].c = s.spot[k].m = s.spot[k].l = 0;
    if ((flags & HG_COLD_STRUCTURED) != 0u) {
      if ((flags & HG_COLD_COLUMNS) != 0u) {
        s.spot[k].c = e % p.columns;
        s.spot[k].r = e / p.columns;
      }
      s.spot[k].m = s.spot[k].r % p.rows;
      s.spot[k].l = s.spot[k].r / p.rows;
    }
    ++count;
  }
  HG_GLOBAL const hg_u32* const phase = hg_cold_phase(program, 0u);
  hg_cold_code(s, buffers, program, p, phase[2], phase[3], count, false);
}

// Elements of a row from `begin` to `end`: joined[f] of each fold, on all lanes.
template <class T>
HG_DEV void hg_cold_class(HG_THREAD hg_cold_state<T>& s, HG_THREAD const hg_cold_buffer* buffers,
                          HG_GLOBAL const hg_u32* program, HG_CONSTANT const hg_cold_parameters& p,
                          HG_GLOBAL const hg_u32* phase, hg_u64 begin, hg_u64 end, hg_u32 lane,
                          HG_THREAD T* joined) {
  const hg_u32 n = HG_COLD_ELEMENTS(T), folds = phase[5];
  T acc[HG_COLD_FOLDS * (16 / sizeof(T))];
  for (hg_u32 f = 0; f < folds; ++f) {
    const T identity = hg_cold_identity<T>(hg_cold_fold(program, phase, f));
    for (hg_u32 k = 0; k < n; ++k) acc[f * n + k] = identity;
  }
  const hg_u64 m = s.spot[0].m, l = s.spot[0].l;
  for (hg_u64 at = begin; at < end; at += n * HG_WARP) {
    hg_u32 count = 0;
    for (hg_u32 k = 0; k < n; ++k) {
      const hg_u64 c = at + k * HG_WARP + lane;
      if (c >= end) break;
      hg_cold_set_spot(s.spot[k], p, l, m, c);
      ++count;
    }
    hg_cold_code(s, buffers, program, p, phase[2], phase[3], count, false);
    for (hg_u32 f = 0; f < folds; ++f) {
      HG_GLOBAL const hg_u32* const fold = hg_cold_fold(program, phase, f);
      for (hg_u32 k = 0; k < count; ++k) {
        acc[f * n + k] = hg_cold_apply(fold[0] & 0xffu, acc[f * n + k],
                                       hg_cold_value(s, p, fold[1] >> 16, k), T(0));
      }
    }
  }
  hg_cold_set_spot(s.spot[0], p, l, m, 0);
  for (hg_u32 f = 0; f < folds; ++f) {
    const hg_u32 op = hg_cold_fold(program, phase, f)[0] & 0xffu;
    for (hg_u32 half_of = n / 2u; half_of > 0u; half_of /= 2u) {
      for (hg_u32 k = 0; k < half_of; ++k) {
        acc[f * n + k] = hg_cold_apply(op, acc[f * n + k], acc[f * n + k + half_of], T(0));
      }
    }
    T x = acc[f * n];
    for (hg_u32 k = HG_WARP / 2u; k > 0u; k >>= 1) {
      const T other = hg_shfl_xor(x, k);
      const bool is_low = (lane & k) == 0u;
      x = hg_cold_apply(op, is_low ? x : other, is_low ? other : x, T(0));
    }
    joined[f] = x;
  }
}

#define HG_COLD_CLASS(T) (12288u / static_cast<hg_u32>(sizeof(T)))

template <class T>
HG_DEV void hg_cold_rows(HG_COLD_ARGUMENTS) {
  const hg_u32 lane = lid % HG_WARP, of_class = HG_COLD_CLASS(T);
  const hg_u64 row = static_cast<hg_u64>(block) * (block_size / HG_WARP) + lid / HG_WARP;
  if (row >= p.threads) return;
  hg_cold_state<T> s;
  hg_cold_stack<T> stack[HG_COLD_FOLDS];
  T joined[HG_COLD_FOLDS];
  hg_cold_set_spot(s.spot[0], p, row / p.rows, row % p.rows, 0);
  for (hg_u32 i = 0; i < program[1]; ++i) {
    HG_GLOBAL const hg_u32* const phase = hg_cold_phase(program, i);
    // Where there are no elements' code and no folds, this is what is stored of rows.
    const bool is_last = phase[2] == phase[3] && phase[5] == 0u;
    if (!is_last || lane == 0u) {
      hg_cold_code(s, buffers, program, p, phase[0], phase[1], 1u, true);
    }
    if (is_last) continue;
    for (hg_u32 f = 0; f < phase[5]; ++f) stack[f].depth = 0u;
    for (hg_u64 first = 0; first * of_class < p.columns; ++first) {
      const hg_u64 begin = first * of_class;
      const hg_u64 end = begin + of_class < p.columns ? begin + of_class : p.columns;
      hg_cold_class(s, buffers, program, p, phase, begin, end, lane, joined);
      for (hg_u32 f = 0; f < phase[5]; ++f) {
        hg_cold_push(stack[f], hg_cold_fold(program, phase, f)[0] & 0xffu, joined[f], first);
      }
    }
    for (hg_u32 f = 0; f < phase[5]; ++f) {
      HG_GLOBAL const hg_u32* const fold = hg_cold_fold(program, phase, f);
      s.rows[fold[1] & 0xffffu] = hg_cold_pop_all(stack[f], fold[0] & 0xffu);
    }
  }
}

template <class T>
HG_DEV void hg_cold_classes(HG_COLD_ARGUMENTS) {
  const hg_u32 lane = lid % HG_WARP, of_class = HG_COLD_CLASS(T);
  const hg_u64 t = static_cast<hg_u64>(block) * (block_size / HG_WARP) + lid / HG_WARP;
  if (t >= p.threads) return;
  hg_cold_state<T> s;
  T joined[HG_COLD_FOLDS];
  const hg_u64 row = t / p.parts;
  hg_cold_set_spot(s.spot[0], p, row / p.rows, row % p.rows, 0);
  const hg_u64 begin = t % p.parts * of_class;
  const hg_u64 end = begin + of_class < p.columns ? begin + of_class : p.columns;
  for (hg_u32 i = 0; i < program[1]; ++i) {
    HG_GLOBAL const hg_u32* const phase = hg_cold_phase(program, i);
    hg_cold_code(s, buffers, program, p, phase[0], phase[1], 1u, true);
    hg_cold_class(s, buffers, program, p, phase, begin, end, lane, joined);
    if (lane != 0u) continue;
    for (hg_u32 f = 0; f < phase[5]; ++f) {
      const hg_u32 to = (hg_cold_fold(program, phase, f)[0] >> 16) & 0xffu;
      reinterpret_cast<HG_GLOBAL T*>(buffers[to])[t] = joined[f];
    }
  }
}

// What there is one of for each thread, in the order of the threads.
template <class T>
HG_DEV void hg_cold_store_results(HG_THREAD hg_cold_state<T>& s,
                                  HG_THREAD const hg_cold_buffer* buffers,
                                  HG_GLOBAL const hg_u32* program,
                                  HG_CONSTANT const hg_cold_parameters& p, hg_u64 t) {
  HG_GLOBAL const hg_u32* const phase = hg_cold_phase(program, program[1] - 1u);
  s.spot[0].e = t;
  hg_cold_run(s, buffers, program, p, phase[6], phase[7], 0u, 1u, true);
}

template <class T>
HG_DEV void hg_cold_fold_down(HG_COLD_ARGUMENTS) {
  const hg_u64 t = static_cast<hg_u64>(block) * block_size + lid;
  if (t >= p.threads) return;
  const bool has_parts = (program[0] & HG_COLD_PARTS) != 0u;
  const hg_u32 n = HG_COLD_ELEMENTS(T);
  hg_cold_state<T> s;
  hg_cold_stack<T> stack[HG_COLD_FOLDS];
  T x[HG_COLD_FOLDS];
  const hg_u64 c = t % p.columns, line = t / p.columns;
  const hg_u64 l = has_parts ? line / p.parts : line;
  const hg_u64 first = has_parts ? line % p.parts * p.part_rows : 0;
  const hg_u64 last = has_parts && first + p.part_rows < p.rows ? first + p.part_rows : p.rows;
  for (hg_u32 i = 0; i < program[1]; ++i) {
    HG_GLOBAL const hg_u32* const phase = hg_cold_phase(program, i);
    const hg_u32 folds = phase[5];
    for (hg_u32 f = 0; f < folds; ++f) stack[f].depth = 0u;
    hg_u64 number = 0;
    for (hg_u64 begin = first; begin < last; begin += 16u) {
      const hg_u64 end = begin + 16u < last ? begin + 16u : last;
      for (hg_u32 f = 0; f < folds; ++f) {
        x[f] = hg_cold_identity<T>(hg_cold_fold(program, phase, f));
      }
      for (hg_u64 m = begin; m < end; m += n) {
        hg_u32 count = 0;
        for (hg_u32 k = 0; k < n && m + k < end; ++k) {
          hg_cold_set_spot(s.spot[k], p, l, m + k, c);
          ++count;
        }
        hg_cold_code(s, buffers, program, p, phase[2], phase[3], count, false);
        for (hg_u32 f = 0; f < folds; ++f) {
          HG_GLOBAL const hg_u32* const fold = hg_cold_fold(program, phase, f);
          for (hg_u32 k = 0; k < count; ++k) {
            x[f] =
                hg_cold_apply(fold[0] & 0xffu, x[f], hg_cold_value(s, p, fold[1] >> 16, k), T(0));
          }
        }
      }
      for (hg_u32 f = 0; f < folds; ++f) {
        hg_cold_push(stack[f], hg_cold_fold(program, phase, f)[0] & 0xffu, x[f], number);
      }
      ++number;
    }
    for (hg_u32 f = 0; f < folds; ++f) {
      HG_GLOBAL const hg_u32* const fold = hg_cold_fold(program, phase, f);
      const T result = hg_cold_pop_all(stack[f], fold[0] & 0xffu);
      s.rows[fold[1] & 0xffffu] = result;
      if (has_parts) {
        reinterpret_cast<HG_GLOBAL T*>(buffers[(fold[0] >> 16) & 0xffu])[t] = result;
      }
    }
  }
  if (!has_parts) hg_cold_store_results(s, buffers, program, p, t);
}

// Partial results, all of each value or as many as make one.
template <class T>
HG_DEV void hg_cold_joins(HG_COLD_ARGUMENTS) {
  const hg_u64 t = static_cast<hg_u64>(block) * block_size + lid;
  if (t >= p.threads) return;
  const bool has_parts = (program[0] & HG_COLD_PARTS) != 0u;
  const hg_u64 columns = (program[0] & HG_COLD_DOWN) != 0u ? p.columns : 1;
  hg_cold_state<T> s;
  hg_cold_stack<T> stack;
  const hg_u64 c = t % columns, line = t / columns;
  const hg_u64 l = has_parts ? line / p.joined : line;
  const hg_u64 first = has_parts ? line % p.joined * p.part_rows : 0;
  const hg_u64 rest = p.parts - first;
  const hg_u64 count = has_parts && p.part_rows < rest ? p.part_rows : rest;
  for (hg_u32 i = 0; i < program[1]; ++i) {
    HG_GLOBAL const hg_u32* const phase = hg_cold_phase(program, i);
    for (hg_u32 f = 0; f < phase[5]; ++f) {
      HG_GLOBAL const hg_u32* const fold = hg_cold_fold(program, phase, f);
      HG_GLOBAL const T* const from =
          reinterpret_cast<HG_GLOBAL const T*>(buffers[(fold[0] >> 16) & 0xffu]);
      stack.depth = 0u;
      for (hg_u64 number = 0; number < count; ++number) {
        hg_cold_push(stack, fold[0] & 0xffu, from[(l * p.parts + first + number) * columns + c],
                     number);
      }
      const T result = hg_cold_pop_all(stack, fold[0] & 0xffu);
      s.rows[fold[1] & 0xffffu] = result;
      if (has_parts) reinterpret_cast<HG_GLOBAL T*>(buffers[fold[0] >> 24])[t] = result;
    }
  }
  if (!has_parts) hg_cold_store_results(s, buffers, program, p, t);
}

// The next element of a scan, R being the type of its running value.
template <class T, class R>
HG_DEV T hg_cold_next(HG_THREAD R& running, hg_u32 op, hg_u32 dtype, T x) {
  running = hg_cold_apply(op, running, hg_convert<R>(x), R(0));
  return hg_convert<T>(hg_cold_rounded(dtype, running));
}

template <class T>
struct hg_cold_running {  // of a half dtype; else in what is exact enough
  float of_half;
  hg_double other;
};
template <>
struct hg_cold_running<hg_i64> {
  hg_i64 other;
};
template <class T>
HG_DEV void hg_cold_start(HG_THREAD hg_cold_running<T>& running, T x) {
  running.of_half = hg_convert<float>(x);
  running.other = hg_convert<hg_double>(x);
}
HG_DEV void hg_cold_start(HG_THREAD hg_cold_running<hg_i64>& running, hg_i64 x) {
  running.other = x;
}
template <class T>
HG_DEV T hg_cold_scanned(HG_THREAD hg_cold_running<T>& running, hg_u32 op, hg_u32 dtype, T x) {
  const bool is_half = dtype == 6u || dtype == 7u;
  return is_half ? hg_cold_next(running.of_half, op, dtype, x)
                 : hg_cold_next(running.other, op, dtype, x);
}
HG_DEV hg_i64 hg_cold_scanned(HG_THREAD hg_cold_running<hg_i64>& running, hg_u32 op, hg_u32 dtype,
                              hg_i64 x) {
  return hg_cold_next(running.other, op, dtype, x);
}

template <class T>
HG_DEV void hg_cold_scan(HG_COLD_ARGUMENTS) {
  const hg_u64 t = static_cast<hg_u64>(block) * block_size + lid;
  if (t >= p.threads) return;
  const bool down = (program[0] & HG_COLD_DOWN) != 0u;
  hg_cold_state<T> s;
  hg_cold_running<T> running[HG_COLD_SCANS];
  HG_GLOBAL const hg_u32* const phase = hg_cold_phase(program, 0u);
  for (hg_u32 i = 0; i < phase[5]; ++i) {
    hg_cold_start(running[i], hg_cold_identity<T>(hg_cold_fold(program, phase, i)));
  }
  const hg_u64 length = down ? p.rows : p.columns;
  for (hg_u64 j = 0; j < length; ++j) {
    if (down) {
      hg_cold_set_spot(s.spot[0], p, t / p.columns, j, t % p.columns);
    } else {
      hg_cold_set_spot(s.spot[0], p, t / p.rows, t % p.rows, j);
    }
    hg_cold_code(s, buffers, program, p, phase[2], phase[3], 1u, false);
    for (hg_u32 i = 0; i < phase[5]; ++i) {
      HG_GLOBAL const hg_u32* const scan = hg_cold_fold(program, phase, i);
      s.elements[(scan[1] & 0xffffu) * HG_COLD_ELEMENTS(T)] =
          hg_cold_scanned(running[i], scan[0] & 0xffu, (scan[0] >> 8) & 0xffu,
                          hg_cold_value(s, p, scan[1] >> 16, 0u));
    }
    hg_cold_code(s, buffers, program, p, phase[6], phase[7], 1u, false);
  }
}

// ---- kernels ----

#define HG_COLD_BUFFER(i) HG_BUF(hg_u8, b##i, i)
#define HG_COLD_KERNEL(skeleton, type)                                                            \
  HG_KERNEL(hg_cold_##skeleton##_##type, HG_COLD_BUFFER(0), HG_COLD_BUFFER(1), HG_COLD_BUFFER(2), \
            HG_COLD_BUFFER(3), HG_COLD_BUFFER(4), HG_COLD_BUFFER(5), HG_COLD_BUFFER(6),           \
            HG_COLD_BUFFER(7), HG_COLD_BUFFER(8), HG_COLD_BUFFER(9), HG_COLD_BUFFER(10),          \
            HG_COLD_BUFFER(11), HG_COLD_BUFFER(12), HG_COLD_BUFFER(13), HG_COLD_BUFFER(14),       \
            HG_COLD_BUFFER(15), HG_COLD_BUFFER(16), HG_COLD_BUFFER(17), HG_COLD_BUFFER(18),       \
            HG_COLD_BUFFER(19), HG_COLD_BUFFER(20), HG_COLD_BUFFER(21), HG_COLD_BUFFER(22),       \
            HG_COLD_BUFFER(23), HG_COLD_BUFFER(24), HG_COLD_BUFFER(25), HG_COLD_BUFFER(26),       \
            HG_COLD_BUFFER(27), HG_COLD_BUFFER(28), HG_CBUF(hg_u32, program, 29),                 \
            HG_PARAM(hg_cold_parameters, p, 30)) {                                                \
    hg_cold_buffer buffers[HG_COLD_BUFFERS] = {b0,  b1,  b2,  b3,  b4,  b5,  b6,  b7,  b8,  b9,   \
                                               b10, b11, b12, b13, b14, b15, b16, b17, b18, b19,  \
                                               b20, b21, b22, b23, b24, b25, b26, b27, b28};      \
    hg_cold_##skeleton<hg_##type>(buffers, program, p, HG_LID, HG_BID, HG_BDIM);                  \
  }
#define HG_COLD_KERNELS(type)     \
  HG_COLD_KERNEL(elements, type)  \
  HG_COLD_KERNEL(rows, type)      \
  HG_COLD_KERNEL(classes, type)   \
  HG_COLD_KERNEL(fold_down, type) \
  HG_COLD_KERNEL(scan, type)      \
  HG_COLD_KERNEL(joins, type)
HG_COLD_KERNELS(f32)
HG_COLD_KERNELS(i64)
#if HG_HAS_F64
HG_COLD_KERNELS(f64)
#endif

#endif

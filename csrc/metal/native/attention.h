// Attention of Metal and the gradients of its operands (atlas/attention.h), with the matrices of
// simdgroups, sums in float. Text for Metal's compiler alone; metal/attention.cpp has the
// parameters and the size of blocks too.
//
// A block of four simdgroups owns rows of one head: queries, of which it makes the results or the
// gradients, or keys with their values, of which it makes the gradients. These lie in threadgroup
// memory as floats, with zeros beyond the ends, while those of the other side are brought part by
// part. No two blocks write the same, and sums are added in one order: results are the same in
// every run.
//
// Of half types what is multiplied is of the type, as in torch's kernels for CPUs: probabilities
// and their gradients are rounded to it.
#ifndef HOLOGRAM_METAL_ATTENTION_H
#define HOLOGRAM_METAL_ATTENTION_H

#include "hologram_gpu.h"

#include <metal_simdgroup_matrix>

// From batch to batch, head to head and row to row, in elements.
struct hg_attention_strides {
  hg_u64 batch, head, row;
};
struct hg_attention_parameters {
  hg_attention_strides query, key, value, out, sums, mask;
  hg_u64 mask_column, of_out_column;
  hg_attention_strides of_out, of_query, of_key, of_value;
  hg_u32 heads, group;  // of queries; those of a group in a row share the keys of one
  hg_u32 queries, keys, head_size;
  hg_u32 flags;
  float scale;
};
#define HG_ATTENTION_CAUSAL 1u
#define HG_ATTENTION_HAS_MASK 2u

#define HG_ATTENTION_THREADS 128u
#define HG_ATTENTION_GROUPS 4u
// Queries of a block, 8 of each simdgroup.
#define HG_ATTENTION_ROWS 32u
// Elements of what a block owns of one matrix in the backward kernels, and of a part of the other
// side: rows times the room for a head.
#define HG_ATTENTION_OWNED 2048u
#define HG_ATTENTION_PART 1024u

typedef metal::simdgroup_matrix<float, 8, 8> hg_matrix;

HG_DEV hg_matrix hg_no_matrix() {
  return metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
}
// Of the transposed memory.
HG_DEV void hg_load_transposed(HG_THREAD hg_matrix& matrix, HG_SHARED_PTR(float) from,
                               hg_u32 leading) {
  metal::simdgroup_load(matrix, from, leading, 0, true);
}
// What the lanes of a simdgroup have written to threadgroup memory, all of them see.
HG_DEV void hg_simdgroup_sync() {
  metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
}

// A NaN is the greatest.
HG_DEV float hg_attention_max(float x, float y) {
  return x > y || x != x ? x : y;
}
// Of the four lanes that have a row.
HG_DEV float hg_max_of_row(float x) {
  x = hg_attention_max(x, metal::simd_shuffle_xor(x, static_cast<hg_u16>(1)));
  return hg_attention_max(x, metal::simd_shuffle_xor(x, static_cast<hg_u16>(2)));
}
HG_DEV float hg_sum_of_row(float x) {
  x += metal::simd_shuffle_xor(x, static_cast<hg_u16>(1));
  return x + metal::simd_shuffle_xor(x, static_cast<hg_u16>(2));
}

HG_DEV float hg_minus_infinity() {
  return hg_as_f32(0xff800000u);
}

// Rounded to the dtype of the operands.
template <class T>
HG_DEV float hg_attention_rounded(float x) {
  return hg_convert<float>(hg_convert<T>(x));
}

// `count` rows from `first` on of a matrix of `rows`, `room` apart, from where they are `leading`
// apart and their elements `step`; `width`: of a head, in whole matrices of 8.
template <class T, hg_u32 room>
HG_DEV void hg_attention_bring(HG_SHARED_PTR(float) to, HG_GLOBAL const T* from, hg_u64 leading,
                               hg_u64 step, hg_u32 first, hg_u32 count, hg_u32 rows,
                               hg_u32 head_size, hg_u32 width, hg_u32 lid) {
  // Neighbouring threads read neighbouring elements.
  for (hg_u32 i = lid; i < count * room; i += HG_ATTENTION_THREADS) {
    const hg_u32 row = first + i / room, column = i % room;
    if (column >= width) continue;
    to[i] = row < rows && column < head_size
                ? hg_convert<float>(from[row * leading + column * step])
                : 0.0f;
  }
}

HG_DEV bool hg_attention_hides(HG_CONSTANT const hg_attention_parameters& p, hg_u32 query,
                               hg_u32 key) {
  return query >= p.queries || key >= p.keys ||
         ((p.flags & HG_ATTENTION_CAUSAL) != 0u && key > query);
}
// Of a query and a key that it is not hidden from; `mask` is that of the head.
template <class T>
HG_DEV float hg_attention_score(float product, HG_GLOBAL const T* mask,
                                HG_CONSTANT const hg_attention_parameters& p, hg_u32 query,
                                hg_u32 key) {
  float score = product * p.scale;
  if ((p.flags & HG_ATTENTION_HAS_MASK) != 0u) {
    score += hg_convert<float>(mask[query * p.mask.row + key * p.mask_column]);
  }
  return score;
}

// One over another so many elements are multiplied: sum += left * right^T, of 8 rows each.
HG_DEV void hg_multiply_rows(HG_THREAD hg_matrix& sum, HG_SHARED_PTR(float) left,
                             HG_SHARED_PTR(float) right, hg_u32 leading, hg_u32 width) {
  hg_matrix a, b;
  for (hg_u32 i = 0; i < width; i += 8u) {
    metal::simdgroup_load(a, left + i, leading);
    hg_load_transposed(b, right + i, leading);
    metal::simdgroup_multiply_accumulate(sum, a, b, sum);
  }
}

// ---- forward ----

// A simdgroup has 8 queries, a row of scores is that of four lanes. A row's highest score so far is
// taken from all of them; where a part of the keys has a higher one, what there is of the result
// shrinks.
template <class T, hg_u32 room>
HG_DEV void hg_attention(HG_GLOBAL const T* query, HG_GLOBAL const T* key, HG_GLOBAL const T* value,
                         HG_GLOBAL const T* mask, HG_GLOBAL T* out, HG_GLOBAL float* sums,
                         HG_CONSTANT const hg_attention_parameters& p, HG_SHARED_PTR(float) owned,
                         HG_SHARED_PTR(float) keys, HG_SHARED_PTR(float) values,
                         HG_SHARED_PTR(float) scores, HG_SHARED_PTR(float) tiles, hg_u32 lid,
                         hg_u32 block) {
  const hg_u32 part = HG_ATTENTION_PART / room;  // keys at a time
  const hg_u32 blocks = (p.queries + HG_ATTENTION_ROWS - 1u) / HG_ATTENTION_ROWS;
  const hg_u32 first = block % blocks * HG_ATTENTION_ROWS;
  const hg_u64 head = block / blocks % p.heads, batch = block / blocks / p.heads;
  query += batch * p.query.batch + head * p.query.head;
  key += batch * p.key.batch + head / p.group * p.key.head;
  value += batch * p.value.batch + head / p.group * p.value.head;
  mask += batch * p.mask.batch + head * p.mask.head;
  out += batch * p.out.batch + head * p.out.head;
  sums += batch * p.sums.batch + head * p.sums.head;
  const hg_u32 width = (p.head_size + 7u) / 8u * 8u;

  const hg_u32 group = lid / HG_WARP, lane = lid % HG_WARP;
  HG_SHARED_PTR(float) own = owned + group * 8u * room;
  HG_SHARED_PTR(float) own_scores = scores + group * 8u * part;
  HG_SHARED_PTR(float) own_tiles = tiles + group * 128u;
  const hg_u32 row = lane / 4u, quarter = lane % 4u;
  const hg_u32 own_query = first + group * 8u + row;

  hg_attention_bring<T, room>(owned, query, p.query.row, 1u, first, HG_ATTENTION_ROWS, p.queries,
                              p.head_size, width, lid);
  hg_matrix result[room / 8u];
  for (hg_u32 c = 0; c < room / 8u; ++c) result[c] = hg_no_matrix();
  float highest = hg_minus_infinity(), total = 0.0f;

  const bool causal = (p.flags & HG_ATTENTION_CAUSAL) != 0u;
  const hg_u32 behind = first + HG_ATTENTION_ROWS;
  const hg_u32 end = causal && behind < p.keys ? behind : p.keys;
  for (hg_u32 begin = 0; begin < end; begin += part) {
    hg_attention_bring<T, room>(keys, key, p.key.row, 1u, begin, part, p.keys, p.head_size, width,
                                lid);
    hg_attention_bring<T, room>(values, value, p.value.row, 1u, begin, part, p.keys, p.head_size,
                                width, lid);
    HG_SYNC();
    for (hg_u32 n = 0; n < part; n += 8u) {
      hg_matrix product = hg_no_matrix();
      hg_multiply_rows(product, own, keys + n * room, room, width);
      metal::simdgroup_store(product, own_scores + n, part);
    }
    hg_simdgroup_sync();

    float its[HG_ATTENTION_PART / room / 4u];
    float highest_here = hg_minus_infinity();
    for (hg_u32 i = 0; i < part / 4u; ++i) {
      const hg_u32 n = quarter + 4u * i;
      its[i] = hg_attention_hides(p, own_query, begin + n)
                   ? hg_minus_infinity()
                   : hg_attention_score(own_scores[row * part + n], mask, p, own_query, begin + n);
      highest_here = hg_attention_max(highest_here, its[i]);
    }
    highest_here = hg_attention_max(highest, hg_max_of_row(highest_here));
    // Of a row that has been hidden so far there is nothing.
    const bool nothing = highest_here == hg_minus_infinity();
    float here = 0.0f;
    for (hg_u32 i = 0; i < part / 4u; ++i) {
      const float e = nothing ? 0.0f : math_exp(its[i] - highest_here);
      here += e;
      own_scores[row * part + quarter + 4u * i] = hg_attention_rounded<T>(e);
    }
    const float shrunk =
        nothing || highest == highest_here ? 1.0f : math_exp(highest - highest_here);
    total = total * shrunk + hg_sum_of_row(here);
    highest = highest_here;
    hg_simdgroup_sync();

    // Two tiles in turn: when a lane writes the first one again, all have read it.
    if (begin != 0u && metal::simd_max(shrunk != 1.0f ? 1u : 0u) != 0u) {
      for (hg_u32 c = 0; c < room / 8u; ++c) {
        if (8u * c >= width) continue;
        HG_SHARED_PTR(float) tile = own_tiles + c % 2u * 64u;
        metal::simdgroup_store(result[c], tile, 8u);
        hg_simdgroup_sync();
        tile[2u * lane] *= shrunk;
        tile[2u * lane + 1u] *= shrunk;
        hg_simdgroup_sync();
        metal::simdgroup_load(result[c], tile, 8u);
      }
    }
    for (hg_u32 n = 0; n < part; n += 8u) {
      hg_matrix left, right;
      metal::simdgroup_load(left, own_scores + n, part);
      for (hg_u32 c = 0; c < room / 8u; ++c) {
        if (8u * c >= width) continue;
        metal::simdgroup_load(right, values + n * room + 8u * c, room);
        metal::simdgroup_multiply_accumulate(result[c], left, right, result[c]);
      }
    }
    HG_SYNC();
  }

  // The queries are needed no more. A row that is hidden whole has zeros, and 0 for the logarithm.
  for (hg_u32 c = 0; c < room / 8u; ++c) {
    if (8u * c < width) metal::simdgroup_store(result[c], own + 8u * c, room);
  }
  hg_simdgroup_sync();
  if (total == 0.0f) total = 1.0f;
  if (quarter == 0u && own_query < p.queries) {
    sums[own_query * p.sums.row] =
        (highest == hg_minus_infinity() ? 0.0f : highest) + math_log(total);
  }
  const float inverse = 1.0f / total;
  for (hg_u32 r = 0; r < 8u; ++r) {
    const float factor = metal::simd_shuffle(inverse, static_cast<hg_u16>(4u * r));
    const hg_u32 to = first + group * 8u + r;
    for (hg_u32 c = lane; c < p.head_size && to < p.queries; c += HG_WARP) {
      out[to * p.out.row + c] = hg_convert<T>(own[r * room + c] * factor);
    }
  }
}

// ---- backward ----

// P of queries and keys is made again from the sums, and of its gradients dP = dout * value^T those
// of the scores, dS = P * (dP - delta), where delta is what a row of out * dout sums to. Then
//   dquery = scale * dS * key,  dkey = scale * dS^T * query,  dvalue = P^T * dout.
// A block owns queries, with the rows of dout, or keys, with the values: `x` and `y`, of which the
// other side has `u` and `w`. What it owns has the rows of P here.
template <class T, hg_u32 room, bool of_keys>
HG_DEV void hg_attention_gradients(
    HG_GLOBAL const T* query, HG_GLOBAL const T* key, HG_GLOBAL const T* value,
    HG_GLOBAL const T* mask, HG_GLOBAL const T* out, HG_GLOBAL const float* sums,
    HG_GLOBAL const T* of_out, HG_GLOBAL float* deltas, HG_GLOBAL T* of_query, HG_GLOBAL T* of_key,
    HG_GLOBAL T* of_value, HG_CONSTANT const hg_attention_parameters& p, HG_SHARED_PTR(float) x,
    HG_SHARED_PTR(float) y, HG_SHARED_PTR(float) u, HG_SHARED_PTR(float) w,
    HG_SHARED_PTR(float) chances, HG_SHARED_PTR(float) of_scores, HG_SHARED_PTR(float) row_sums,
    HG_SHARED_PTR(float) row_deltas, hg_u32 lid, hg_u32 block) {
  const hg_u32 owned = HG_ATTENTION_OWNED / room, part = HG_ATTENTION_PART / room;
  const hg_u32 rows = of_keys ? p.keys : p.queries, others = of_keys ? p.queries : p.keys;
  const hg_u32 blocks = (rows + owned - 1u) / owned;
  const hg_u32 first = block % blocks * owned;
  // Of keys all heads of queries that share them, one after the other, beginning with `head`.
  const hg_u32 turns = of_keys ? p.group : 1u;
  const hg_u64 heads = p.heads / turns;
  const hg_u64 head = block / blocks % heads * turns, batch = block / blocks / heads;
  const hg_u64 key_head = head / p.group;
  query += batch * p.query.batch + head * p.query.head;
  key += batch * p.key.batch + key_head * p.key.head;
  value += batch * p.value.batch + key_head * p.value.head;
  mask += batch * p.mask.batch + head * p.mask.head;
  out += batch * p.out.batch + head * p.out.head;
  sums += batch * p.sums.batch + head * p.sums.head;
  of_out += batch * p.of_out.batch + head * p.of_out.head;
  deltas += (batch * p.heads + head) * p.queries;
  const hg_u32 width = (p.head_size + 7u) / 8u * 8u;
  const hg_u32 group = lid / HG_WARP, lane = lid % HG_WARP;

  hg_attention_bring<T, room>(x, of_keys ? key : query, of_keys ? p.key.row : p.query.row, 1u,
                              first, owned, rows, p.head_size, width, lid);
  hg_attention_bring<T, room>(y, of_keys ? value : of_out, of_keys ? p.value.row : p.of_out.row,
                              of_keys ? 1u : p.of_out_column, first, owned, rows, p.head_size,
                              width, lid);
  HG_SYNC();
  if (!of_keys) {
    for (hg_u32 r = group; r < owned; r += HG_ATTENTION_GROUPS) {
      float delta = 0.0f;
      for (hg_u32 c = lane; c < p.head_size && first + r < rows; c += HG_WARP) {
        delta += y[r * room + c] * hg_convert<float>(out[(first + r) * p.out.row + c]);
      }
      for (hg_u16 step = 16; step != 0; step /= 2) {
        delta += metal::simd_shuffle_xor(delta, step);
      }
      if (lane == 0u && first + r < rows) {
        row_sums[r] = sums[(first + r) * p.sums.row];
        row_deltas[r] = deltas[first + r] = delta;
      }
    }
  }

  // Of the gradients a simdgroup has 8 rows, and 8 matrices of them.
  const hg_u32 down = owned / 8u;
  const hg_u32 own_row = group % down * 8u, own_column = group / down * 64u;
  hg_matrix of_x[8], of_y[8];
  for (hg_u32 c = 0; c < 8u; ++c) of_x[c] = of_y[c] = hg_no_matrix();

  const bool causal = (p.flags & HG_ATTENTION_CAUSAL) != 0u;
  const hg_u32 behind = first + owned;
  const hg_u32 end = causal && !of_keys && behind < others ? behind : others;
  for (hg_u32 turn = 0; turn < turns; ++turn) {
    for (hg_u32 begin = causal && of_keys ? first : 0u; begin < end; begin += part) {
      hg_attention_bring<T, room>(u, of_keys ? query : key, of_keys ? p.query.row : p.key.row, 1u,
                                  begin, part, others, p.head_size, width, lid);
      hg_attention_bring<T, room>(w, of_keys ? of_out : value, of_keys ? p.of_out.row : p.value.row,
                                  of_keys ? p.of_out_column : 1u, begin, part, others, p.head_size,
                                  width, lid);
      if (of_keys && lid < part && begin + lid < others) {
        row_sums[lid] = sums[(begin + lid) * p.sums.row];
        row_deltas[lid] = deltas[begin + lid];
      }
      HG_SYNC();
      // Scores, and gradients of P, in turn.
      for (hg_u32 i = group; i < 2u * down * (part / 8u); i += HG_ATTENTION_GROUPS) {
        const bool is_gradient = i % 2u != 0u;
        const hg_u32 r = i / 2u % down * 8u, n = i / 2u / down * 8u;
        hg_matrix product = hg_no_matrix();
        hg_multiply_rows(product, (is_gradient ? y : x) + r * room,
                         (is_gradient ? w : u) + n * room, room, width);
        metal::simdgroup_store(product, (is_gradient ? of_scores : chances) + r * part + n, part);
      }
      HG_SYNC();
      for (hg_u32 i = lid; i < owned * part; i += HG_ATTENTION_THREADS) {
        const hg_u32 r = i / part, n = i % part;
        const hg_u32 its_query = of_keys ? begin + n : first + r;
        const hg_u32 its_key = of_keys ? first + r : begin + n;
        const hg_u32 stat = of_keys ? n : r;
        float chance = 0.0f, of_score = 0.0f;
        if (!hg_attention_hides(p, its_query, its_key)) {
          const float score = hg_attention_score(chances[i], mask, p, its_query, its_key);
          chance = math_exp(score - row_sums[stat]);
          of_score = chance * (of_scores[i] - row_deltas[stat]);
        }
        chances[i] = hg_attention_rounded<T>(chance);
        of_scores[i] = hg_attention_rounded<T>(of_score);
      }
      HG_SYNC();
      for (hg_u32 n = 0; n < part; n += 8u) {
        hg_matrix left, chance, right;
        metal::simdgroup_load(left, of_scores + own_row * part + n, part);
        if (of_keys) metal::simdgroup_load(chance, chances + own_row * part + n, part);
        for (hg_u32 c = 0; c < 8u; ++c) {
          const hg_u32 column = own_column + 8u * c;
          if (column >= width) continue;
          metal::simdgroup_load(right, u + n * room + column, room);
          metal::simdgroup_multiply_accumulate(of_x[c], left, right, of_x[c]);
          if (!of_keys) continue;
          metal::simdgroup_load(right, w + n * room + column, room);
          metal::simdgroup_multiply_accumulate(of_y[c], chance, right, of_y[c]);
        }
      }
      HG_SYNC();
    }
    query += p.query.head;
    mask += p.mask.head;
    sums += p.sums.head;
    of_out += p.of_out.head;
    deltas += p.queries;
  }

  // What it owns is needed no more.
  for (hg_u32 c = 0; c < 8u; ++c) {
    const hg_u32 column = own_column + 8u * c;
    if (column >= width) continue;
    metal::simdgroup_store(of_x[c], x + own_row * room + column, room);
    if (of_keys) metal::simdgroup_store(of_y[c], y + own_row * room + column, room);
  }
  HG_SYNC();
  HG_GLOBAL T* to_x = of_keys ? of_key + batch * p.of_key.batch + key_head * p.of_key.head
                              : of_query + batch * p.of_query.batch + head * p.of_query.head;
  HG_GLOBAL T* to_y = of_value + batch * p.of_value.batch + key_head * p.of_value.head;
  for (hg_u32 i = lid; i < owned * room; i += HG_ATTENTION_THREADS) {
    const hg_u32 row = first + i / room, column = i % room;
    if (row >= rows || column >= p.head_size) continue;
    to_x[row * (of_keys ? p.of_key.row : p.of_query.row) + column] = hg_convert<T>(p.scale * x[i]);
    if (of_keys) to_y[row * p.of_value.row + column] = hg_convert<T>(y[i]);
  }
}

// Of a dtype, and heads of so many elements at most: 64 or 128.
#define HG_ATTENTION_BACKWARD(name, type, room, of_keys)                                           \
  HG_KERNEL(name, HG_CBUF(hg_##type, query, 0), HG_CBUF(hg_##type, key, 1),                        \
            HG_CBUF(hg_##type, value, 2), HG_CBUF(hg_##type, mask, 3), HG_CBUF(hg_##type, out, 4), \
            HG_CBUF(hg_f32, sums, 5), HG_CBUF(hg_##type, of_out, 6), HG_BUF(hg_f32, deltas, 7),    \
            HG_BUF(hg_##type, of_query, 8), HG_BUF(hg_##type, of_key, 9),                          \
            HG_BUF(hg_##type, of_value, 10), HG_PARAM(hg_attention_parameters, p, 11)) {           \
    HG_SHARED(float, x, HG_ATTENTION_OWNED)                                                        \
    HG_SHARED(float, y, HG_ATTENTION_OWNED)                                                        \
    HG_SHARED(float, u, HG_ATTENTION_PART)                                                         \
    HG_SHARED(float, w, HG_ATTENTION_PART)                                                         \
    HG_SHARED(float, chances, HG_ATTENTION_OWNED / room * (HG_ATTENTION_PART / room))              \
    HG_SHARED(float, of_scores, HG_ATTENTION_OWNED / room * (HG_ATTENTION_PART / room))            \
    HG_SHARED(float, row_sums, HG_ATTENTION_OWNED / room)                                          \
    HG_SHARED(float, row_deltas, HG_ATTENTION_OWNED / room)                                        \
    hg_attention_gradients<hg_##type, room, of_keys>(                                              \
        query, key, value, mask, out, sums, of_out, deltas, of_query, of_key, of_value, p, x, y,   \
        u, w, chances, of_scores, row_sums, row_deltas, HG_LID, HG_BID);                           \
  }
#define HG_ATTENTION_KERNELS(type, room)                                                           \
  HG_KERNEL(hg_attention_##type##_##room, HG_CBUF(hg_##type, query, 0),                            \
            HG_CBUF(hg_##type, key, 1), HG_CBUF(hg_##type, value, 2), HG_CBUF(hg_##type, mask, 3), \
            HG_BUF(hg_##type, out, 4), HG_BUF(hg_f32, sums, 5),                                    \
            HG_PARAM(hg_attention_parameters, p, 6)) {                                             \
    HG_SHARED(float, owned, HG_ATTENTION_ROWS* room)                                               \
    HG_SHARED(float, keys, HG_ATTENTION_PART)                                                      \
    HG_SHARED(float, values, HG_ATTENTION_PART)                                                    \
    HG_SHARED(float, scores, HG_ATTENTION_ROWS*(HG_ATTENTION_PART / room))                         \
    HG_SHARED(float, tiles, HG_ATTENTION_GROUPS * 128u)                                            \
    hg_attention<hg_##type, room>(query, key, value, mask, out, sums, p, owned, keys, values,      \
                                  scores, tiles, HG_LID, HG_BID);                                  \
  }                                                                                                \
  HG_ATTENTION_BACKWARD(hg_attention_of_queries_##type##_##room, type, room, false)                \
  HG_ATTENTION_BACKWARD(hg_attention_of_keys_##type##_##room, type, room, true)

#endif

// Kernels that move elements as they are, of any dtype of 1, 2, 4, 8 or 16 bytes, and those that
// add elements up where indices say. gpu/move_launches.cpp has a row for each.
//
// A thread is there for a point of a space of up to HG_MOVE_RANK dimensions, or for HG_MOVE_EACH of
// them; an operand has a stride along each dimension, in its elements. I is the type of numbers of
// elements: hg_i32 or, in kernels whose names end in _wide, hg_i64. All fields of parameters have
// it, but a pattern, which comes first: the host writes one after another.
#ifndef HOLOGRAM_GPU_MOVES_H
#define HOLOGRAM_GPU_MOVES_H

#include "moves_limits.h"

typedef hg_u32x4 hg_u128;

// ---- points ----

template <class I>
struct hg_space {
  I count;  // of points
  I rank;   // from 1
  I size[HG_MOVE_RANK];
};

// Of what is not negative.
HG_DEV hg_i32 hg_divided(hg_i32 x, hg_i32 y) {
  return static_cast<hg_i32>(static_cast<hg_u32>(x) / static_cast<hg_u32>(y));
}
HG_DEV hg_i64 hg_divided(hg_i64 x, hg_i64 y) {
  return static_cast<hg_i64>(static_cast<hg_u64>(x) / static_cast<hg_u64>(y));
}

// The coordinates of point e of dimensions from `first` up to `last`, the last one running fastest.
template <class I>
HG_DEV void hg_coordinates(HG_CONSTANT const hg_space<I>& space, I e, I first, I last,
                           HG_THREAD I* c) {
  HG_UNROLL
  for (hg_u32 i = 0; i < HG_MOVE_RANK; ++i) {
    const hg_u32 d = HG_MOVE_RANK - 1u - i;
    const I dimension = static_cast<I>(d);
    if (dimension < first || dimension >= last) continue;
    c[d] = e;
    if (dimension != first) {
      e = hg_divided(e, space.size[d]);
      c[d] -= e * space.size[d];
    }
  }
}
template <class I>
HG_DEV void hg_all_coordinates(HG_CONSTANT const hg_space<I>& space, I e, HG_THREAD I* c) {
  HG_UNROLL
  for (hg_u32 d = 0; d < HG_MOVE_RANK; ++d) c[d] = 0;
  hg_coordinates(space, e, I(0), space.rank, c);
}
template <class I>
HG_DEV I hg_offset(HG_CONSTANT const I* stride, HG_THREAD const I* c) {
  I at = 0;
  HG_UNROLL
  for (hg_u32 d = 0; d < HG_MOVE_RANK; ++d) at += c[d] * stride[d];
  return at;
}

#define HG_THREADS hg_u32 lid, hg_u32 block, hg_u32 block_size

// The first of the points of a thread; the others follow at distances of a block's threads.
template <class I>
HG_DEV I hg_first_point(HG_THREADS) {
  return static_cast<I>(block) * static_cast<I>(block_size * HG_MOVE_EACH) + static_cast<I>(lid);
}

// ---- copies ----

template <class T>
HG_DEV T hg_moved(hg_tag<T>, T x) {
  return x;
}
#define HG_MOVED(To, From)                 \
  HG_DEV To hg_moved(hg_tag<To>, From x) { \
    return hg_convert<To>(x);              \
  }
HG_MOVED(hg_f32, hg_f16)
HG_MOVED(hg_f32, hg_bf16)
HG_MOVED(hg_f16, hg_f32)
HG_MOVED(hg_bf16, hg_f32)
#undef HG_MOVED

template <class I>
struct hg_copy_parameters {
  hg_space<I> space;
  I to[HG_MOVE_RANK], from[HG_MOVE_RANK];
};

// All elements of a thread are read before one is written, so that it waits once.
template <class I, class To, class From>
HG_DEV void hg_copy(HG_GLOBAL To* to, HG_GLOBAL const From* from,
                    HG_CONSTANT const hg_copy_parameters<I>& p, HG_THREADS) {
  const I first = hg_first_point<I>(lid, block, block_size);
  From x[HG_MOVE_EACH];
  I at[HG_MOVE_EACH];
  HG_UNROLL
  for (hg_u32 k = 0; k < HG_MOVE_EACH; ++k) {
    const I e = first + static_cast<I>(k * block_size);
    if (e >= p.space.count) continue;
    I c[HG_MOVE_RANK];
    hg_all_coordinates(p.space, e, c);
    at[k] = hg_offset(p.to, c);
    x[k] = from[hg_offset(p.from, c)];
  }
  HG_UNROLL
  for (hg_u32 k = 0; k < HG_MOVE_EACH; ++k) {
    if (first + static_cast<I>(k * block_size) < p.space.count) {
      to[at[k]] = hg_moved(hg_tag<To>(), x[k]);
    }
  }
}

// The last dimension runs along `to`, the one before it along `from`. A block has a tile of both,
// of N rows and columns, and N * HG_MOVE_TILE_ROWS threads; `tile` has a column more, so that
// neither way through it meets the same bank of memory all the time.
template <hg_u32 N, class I, class W>
HG_DEV void hg_transpose(HG_GLOBAL W* to, HG_GLOBAL const W* from, HG_SHARED_PTR(W) tile,
                         HG_CONSTANT const hg_copy_parameters<I>& p, HG_THREADS) {
  const I n = static_cast<I>(N), last = p.space.rank - 1, before = last - 1;
  const I rows = p.space.size[before], columns = p.space.size[last];
  const I tiles = hg_divided(columns + n - 1, n), rows_of_tiles = hg_divided(rows + n - 1, n);
  const I line = hg_divided(static_cast<I>(block), tiles);
  const I plane = hg_divided(line, rows_of_tiles);
  const I row = (line - plane * rows_of_tiles) * n;
  const I column = (static_cast<I>(block) - line * tiles) * n;
  I c[HG_MOVE_RANK];
  HG_UNROLL
  for (hg_u32 d = 0; d < HG_MOVE_RANK; ++d) c[d] = 0;
  hg_coordinates(p.space, plane, I(0), before, c);
  const I from_plane = hg_offset(p.from, c), to_plane = hg_offset(p.to, c);
  const hg_u32 x = lid % N, y = lid / N;
  // All of a thread's are read before one is written, so that it waits once.
  W read[N / HG_MOVE_TILE_ROWS];
  HG_UNROLL
  for (hg_u32 j = 0; j < N / HG_MOVE_TILE_ROWS; ++j) {
    const hg_u32 k = y + j * HG_MOVE_TILE_ROWS;
    const I r = row + static_cast<I>(x), i = column + static_cast<I>(k);
    if (r < rows && i < columns) {
      read[j] = from[from_plane + r * p.from[before] + i * p.from[last]];
    }
  }
  HG_UNROLL
  for (hg_u32 j = 0; j < N / HG_MOVE_TILE_ROWS; ++j) {
    const hg_u32 k = y + j * HG_MOVE_TILE_ROWS;
    if (row + static_cast<I>(x) < rows && column + static_cast<I>(k) < columns) {
      tile[k * (N + 1u) + x] = read[j];
    }
  }
  HG_SYNC();
  HG_UNROLL
  for (hg_u32 j = 0; j < N / HG_MOVE_TILE_ROWS; ++j) {
    const hg_u32 k = y + j * HG_MOVE_TILE_ROWS;
    const I r = row + static_cast<I>(k), i = column + static_cast<I>(x);
    if (r < rows && i < columns) {
      to[to_plane + r * p.to[before] + i * p.to[last]] = tile[x * (N + 1u) + k];
    }
  }
}

// ---- fills ----

// An element of 16 bytes, or the first bytes of them.
HG_DEV hg_u8 hg_of_pattern(hg_tag<hg_u8>, HG_CONSTANT const hg_u32* word) {
  return static_cast<hg_u8>(word[0]);
}
HG_DEV hg_u16 hg_of_pattern(hg_tag<hg_u16>, HG_CONSTANT const hg_u32* word) {
  return static_cast<hg_u16>(word[0]);
}
HG_DEV hg_u32 hg_of_pattern(hg_tag<hg_u32>, HG_CONSTANT const hg_u32* word) {
  return word[0];
}
HG_DEV hg_u64 hg_of_pattern(hg_tag<hg_u64>, HG_CONSTANT const hg_u32* word) {
  return static_cast<hg_u64>(word[0]) | (static_cast<hg_u64>(word[1]) << 32);
}
HG_DEV hg_u128 hg_of_pattern(hg_tag<hg_u128>, HG_CONSTANT const hg_u32* word) {
  hg_u128 x;
  x.x = word[0];
  x.y = word[1];
  x.z = word[2];
  x.w = word[3];
  return x;
}

template <class I>
struct hg_fill_parameters {
  hg_u32 pattern[4];
  hg_space<I> space;
  I to[HG_MOVE_RANK], mask[HG_MOVE_RANK];
};

template <class I, class W>
HG_DEV void hg_fill(HG_GLOBAL W* to, HG_CONSTANT const hg_fill_parameters<I>& p, HG_THREADS) {
  const I first = hg_first_point<I>(lid, block, block_size);
  const W x = hg_of_pattern(hg_tag<W>(), p.pattern);
  for (hg_u32 k = 0; k < HG_MOVE_EACH; ++k) {
    const I e = first + static_cast<I>(k * block_size);
    if (e >= p.space.count) return;
    I c[HG_MOVE_RANK];
    hg_all_coordinates(p.space, e, c);
    to[hg_offset(p.to, c)] = x;
  }
}
// Where the mask is true.
template <class I, class W>
HG_DEV void hg_masked_fill(HG_GLOBAL W* to, HG_GLOBAL const hg_u8* mask,
                           HG_CONSTANT const hg_fill_parameters<I>& p, HG_THREADS) {
  const I first = hg_first_point<I>(lid, block, block_size);
  const W x = hg_of_pattern(hg_tag<W>(), p.pattern);
  for (hg_u32 k = 0; k < HG_MOVE_EACH; ++k) {
    const I e = first + static_cast<I>(k * block_size);
    if (e >= p.space.count) return;
    I c[HG_MOVE_RANK];
    hg_all_coordinates(p.space, e, c);
    if (mask[hg_offset(p.mask, c)] != 0) to[hg_offset(p.to, c)] = x;
  }
}

// ---- pads ----

template <class I>
struct hg_pad_parameters {
  hg_u32 pattern[4];
  hg_space<I> space;  // of what is written
  I to[HG_MOVE_RANK], from[HG_MOVE_RANK];
  I before[HG_MOVE_RANK];  // elements there; negative: so many are left out
  I inside[HG_MOVE_RANK];  // elements of what is read
  I mode;
};

template <class I, class W>
HG_DEV void hg_pad(HG_GLOBAL W* to, HG_GLOBAL const W* from,
                   HG_CONSTANT const hg_pad_parameters<I>& p, HG_THREADS) {
  const I first = hg_first_point<I>(lid, block, block_size);
  for (hg_u32 k = 0; k < HG_MOVE_EACH; ++k) {
    const I e = first + static_cast<I>(k * block_size);
    if (e >= p.space.count) return;
    I c[HG_MOVE_RANK];
    hg_all_coordinates(p.space, e, c);
    const I at = hg_offset(p.to, c);
    bool is_inside = true;
    HG_UNROLL
    for (hg_u32 d = 0; d < HG_MOVE_RANK; ++d) {
      if (static_cast<I>(d) >= p.space.rank) continue;
      const I n = p.inside[d];
      I i = c[d] - p.before[d];
      if (i < 0 || i >= n) {
        switch (static_cast<hg_u32>(p.mode)) {
          case HG_PAD_REFLECT: i = i < 0 ? -i : 2 * (n - 1) - i; break;
          case HG_PAD_REPLICATE: i = i < 0 ? 0 : n - 1; break;
          case HG_PAD_CIRCULAR: i = i < 0 ? i + n : i - n; break;
          default:
            is_inside = false;
            i = 0;
            break;
        }
      }
      c[d] = i;
    }
    to[at] = is_inside ? from[hg_offset(p.from, c)] : hg_of_pattern(hg_tag<W>(), p.pattern);
  }
}

// ---- several tensors beside each other ----

// Input i has rows of length[i] elements, pitch[i] apart, that go to columns from begin[i]; it has
// the blocks from first_block[i].
template <class I>
struct hg_cat_parameters {
  I inputs, rows, to_pitch;
  I first_block[HG_MOVE_INPUTS], begin[HG_MOVE_INPUTS], length[HG_MOVE_INPUTS],
      pitch[HG_MOVE_INPUTS];
};

template <class W>
struct hg_input {
  HG_GLOBAL const W* first;
};

template <class I, class W>
HG_DEV void hg_cat(HG_GLOBAL W* to, HG_THREAD const hg_input<W>* inputs,
                   HG_CONSTANT const hg_cat_parameters<I>& p, HG_THREADS) {
  I i = 0;
  while (i + 1 < p.inputs && static_cast<I>(block) >= p.first_block[i + 1]) ++i;
  HG_GLOBAL const W* const from = inputs[i].first;
  const I length = p.length[i];
  const hg_u32 own = block - static_cast<hg_u32>(p.first_block[i]);
  const I first = hg_first_point<I>(lid, own, block_size);
  W x[HG_MOVE_EACH];
  I at[HG_MOVE_EACH];
  HG_UNROLL
  for (hg_u32 k = 0; k < HG_MOVE_EACH; ++k) {
    const I e = first + static_cast<I>(k * block_size);
    if (e >= p.rows * length) continue;
    const I row = hg_divided(e, length), column = e - row * length;
    at[k] = row * p.to_pitch + p.begin[i] + column;
    x[k] = from[row * p.pitch[i] + column];
  }
  HG_UNROLL
  for (hg_u32 k = 0; k < HG_MOVE_EACH; ++k) {
    if (first + static_cast<I>(k * block_size) < p.rows * length) to[at[k]] = x[k];
  }
}

// ---- indices ----

template <class I>
struct hg_index {
  I stride[HG_MOVE_RANK];
  I size;      // of the dimension that it is of
  I to, from;  // strides along that dimension
  I flags;     // HG_INDEX_
};

template <class I>
struct hg_index_parameters {
  hg_space<I> space;
  I to[HG_MOVE_RANK], from[HG_MOVE_RANK];
  I position[HG_MOVE_RANK];  // strides of the number of an index in its tensor, counted row by row
  I claim[HG_MOVE_RANK];     // strides of the number of a place, but for what indices say of it
  I indices;
  // Of what writes where indices say: dimensions before those that are walked, threads that walk
  // for a line, and with `leaves` 1 an index, the first one's, that is left out.
  I outer, lines, owners, walk, leaves, left_out;
  hg_index<I> index[HG_MOVE_INDICES];
};

typedef HG_GLOBAL const hg_u8* hg_index_buffer;

template <class I>
HG_DEV hg_i64 hg_index_at(HG_CONSTANT const hg_index<I>& index, hg_index_buffer buffer,
                          HG_THREAD const I* c) {
  const I at = hg_offset(index.stride, c);
  if ((static_cast<hg_u32>(index.flags) & HG_INDEX_LONG) != 0u) {
    return reinterpret_cast<HG_GLOBAL const hg_i64*>(buffer)[at];
  }
  return reinterpret_cast<HG_GLOBAL const hg_i32*>(buffer)[at];
}
// In range, or not even after it has wrapped.
template <class I>
HG_DEV hg_i64 hg_index_wrapped(HG_CONSTANT const hg_index<I>& index, hg_i64 value) {
  const bool wraps = (static_cast<hg_u32>(index.flags) & HG_INDEX_WRAPS) != 0u;
  return wraps && value < 0 ? value + index.size : value;
}
template <class I>
HG_DEV bool hg_index_is_good(HG_CONSTANT const hg_index<I>& index, hg_i64 value) {
  return value >= 0 && value < index.size;
}

// Puts an index that is out of range at a position in the record, unless there is one before it.
// Two threads cannot exchange a position and a value at once. So a thread that has written a value
// looks at the position again, and where it is not its own any more, it writes the value of that
// one, which it reads by itself: whatever order they run in, the value is in the end the first's.
template <class I>
HG_DEV void hg_report_index(HG_GLOBAL hg_atomic_u32* record,
                            HG_CONSTANT const hg_index_parameters<I>& p,
                            HG_THREAD const hg_index_buffer* buffers, hg_u64 position) {
  const hg_u32 mine =
      0xffffffffu - static_cast<hg_u32>(position < 0xfffffffeu ? position : 0xfffffffeu);
  hg_u32 first = mine;
  if (hg_atomic_max(record, mine) >= mine) return;
  for (bool is_last = false; !is_last;) {
    const hg_u64 at = 0xffffffffu - first;
    I c[HG_MOVE_RANK];
    HG_UNROLL
    for (hg_u32 d = 0; d < HG_MOVE_RANK; ++d) {
      c[d] = 0;
      if (static_cast<I>(d) < p.space.rank && p.position[d] != 0) {
        const hg_u64 line = at / static_cast<hg_u64>(p.position[d]);
        c[d] = static_cast<I>(line % static_cast<hg_u64>(p.space.size[d]));
      }
    }
    bool is_found = false;
    HG_UNROLL
    for (hg_u32 k = 0; k < HG_MOVE_INDICES; ++k) {
      if (static_cast<I>(k) >= p.indices || is_found) continue;
      const hg_i64 value = hg_index_at(p.index[k], buffers[k], c);
      if (hg_index_is_good(p.index[k], hg_index_wrapped(p.index[k], value))) continue;
      is_found = true;
      const hg_u64 bits = static_cast<hg_u64>(value);
      hg_atomic_exchange(record + 1, static_cast<hg_u32>(bits));
      hg_atomic_exchange(record + 2, static_cast<hg_u32>(bits >> 32));
      hg_atomic_exchange(record + 3, k);
    }
    hg_device_fence();
    const hg_u32 seen = hg_atomic_max(record, 0u);
    is_last = seen == first;
    first = seen;
  }
}

// Where indices at some coordinates are: to[0] and from[0] are moved there, key[0] is the number of
// the place. False where one is out of range.
template <class I>
HG_DEV bool hg_look_up(HG_CONSTANT const hg_index_parameters<I>& p,
                       HG_THREAD const hg_index_buffer* buffers, HG_THREAD const I* c,
                       HG_THREAD I* to, HG_THREAD I* from, HG_THREAD hg_u32* key) {
  bool is_good = true;
  HG_UNROLL
  for (hg_u32 k = 0; k < HG_MOVE_INDICES; ++k) {
    if (static_cast<I>(k) >= p.indices) continue;
    const hg_i64 value = hg_index_wrapped(p.index[k], hg_index_at(p.index[k], buffers[k], c));
    is_good = is_good && hg_index_is_good(p.index[k], value);
    const I i = is_good ? static_cast<I>(value) : I(0);
    to[0] += i * p.index[k].to;
    from[0] += i * p.index[k].from;
    key[0] = key[0] * static_cast<hg_u32>(p.index[k].size) + static_cast<hg_u32>(i);
  }
  return is_good;
}

// Reads where indices say; what an index out of range is for stays as it is.
template <class I, class W>
HG_DEV void hg_take(HG_GLOBAL W* to, HG_GLOBAL const W* from, HG_GLOBAL hg_atomic_u32* record,
                    HG_THREAD const hg_index_buffer* buffers,
                    HG_CONSTANT const hg_index_parameters<I>& p, HG_THREADS) {
  const I first = hg_first_point<I>(lid, block, block_size);
  W x[HG_MOVE_EACH];
  I at[HG_MOVE_EACH];
  bool is_good[HG_MOVE_EACH];
  bool is_bad = false;
  hg_u64 bad = 0;  // the first position of this thread's
  HG_UNROLL
  for (hg_u32 k = 0; k < HG_MOVE_EACH; ++k) {
    const I e = first + static_cast<I>(k * block_size);
    is_good[k] = false;
    if (e >= p.space.count) continue;
    I c[HG_MOVE_RANK];
    hg_all_coordinates(p.space, e, c);
    I source = hg_offset(p.from, c);
    hg_u32 key = 0;
    at[k] = hg_offset(p.to, c);
    is_good[k] = hg_look_up(p, buffers, c, &at[k], &source, &key);
    if (is_good[k]) {
      x[k] = from[source];
      continue;
    }
    const hg_u64 position = static_cast<hg_u64>(hg_offset(p.position, c));
    bad = is_bad && bad < position ? bad : position;
    is_bad = true;
  }
  HG_UNROLL
  for (hg_u32 k = 0; k < HG_MOVE_EACH; ++k) {
    if (is_good[k]) to[at[k]] = x[k];
  }
  if (is_bad) hg_report_index(record, p, buffers, bad);
}

struct hg_put {
  template <class W>
  HG_DEV void apply(HG_GLOBAL W* to, W x) {
    *to = x;
  }
};

// Several positions may be for one place, of which the last one is to write: each claims it first,
// in a number for each place, which is 0 before.
template <class I>
HG_DEV void hg_claim_places(HG_GLOBAL hg_atomic_u32* claims, HG_GLOBAL hg_atomic_u32* record,
                            HG_THREAD const hg_index_buffer* buffers,
                            HG_CONSTANT const hg_index_parameters<I>& p, HG_THREADS) {
  const I first = hg_first_point<I>(lid, block, block_size);
  bool is_bad = false;
  hg_u64 bad = 0;
  for (hg_u32 k = 0; k < HG_MOVE_EACH; ++k) {
    const I e = first + static_cast<I>(k * block_size);
    if (e >= p.space.count) break;
    I c[HG_MOVE_RANK];
    hg_all_coordinates(p.space, e, c);
    const hg_u64 position = static_cast<hg_u64>(hg_offset(p.position, c));
    I to = 0, from = 0;
    hg_u32 key = 0;
    if (hg_look_up(p, buffers, c, &to, &from, &key)) {
      hg_atomic_max(claims + hg_offset(p.claim, c) + key, static_cast<hg_u32>(position) + 1u);
      continue;
    }
    bad = is_bad && bad < position ? bad : position;
    is_bad = true;
  }
  if (is_bad) hg_report_index(record, p, buffers, bad);
}
template <class I, class W>
HG_DEV void hg_put_claimed(HG_GLOBAL W* to, HG_GLOBAL const W* from, HG_GLOBAL const hg_u32* claims,
                           HG_THREAD const hg_index_buffer* buffers,
                           HG_CONSTANT const hg_index_parameters<I>& p, HG_THREADS) {
  const I first = hg_first_point<I>(lid, block, block_size);
  for (hg_u32 k = 0; k < HG_MOVE_EACH; ++k) {
    const I e = first + static_cast<I>(k * block_size);
    if (e >= p.space.count) return;
    I c[HG_MOVE_RANK];
    hg_all_coordinates(p.space, e, c);
    I at = hg_offset(p.to, c), source = hg_offset(p.from, c);
    hg_u32 key = 0;
    if (!hg_look_up(p, buffers, c, &at, &source, &key)) continue;
    const hg_u32 position = static_cast<hg_u32>(hg_offset(p.position, c));
    if (claims[hg_offset(p.claim, c) + key] == position + 1u) to[at] = from[source];
  }
}

HG_DEV hg_u8 hg_sum(hg_u8 x, hg_u8 y) {
  return static_cast<hg_u8>(x + y);
}
HG_DEV hg_u16 hg_sum(hg_u16 x, hg_u16 y) {
  return static_cast<hg_u16>(x + y);
}
HG_DEV hg_u32 hg_sum(hg_u32 x, hg_u32 y) {
  return x + y;
}
HG_DEV hg_u64 hg_sum(hg_u64 x, hg_u64 y) {
  return x + y;
}
HG_DEV hg_b8 hg_sum(hg_b8 x, hg_b8 y) {
  return static_cast<hg_b8>(static_cast<hg_u8>((hg_bits(x) | hg_bits(y)) != 0 ? 1 : 0));
}
HG_DEV hg_f16 hg_sum(hg_f16 x, hg_f16 y) {
  return hg_convert<hg_f16>(hg_convert<float>(x) + hg_convert<float>(y));
}
HG_DEV hg_bf16 hg_sum(hg_bf16 x, hg_bf16 y) {
  return hg_convert<hg_bf16>(hg_convert<float>(x) + hg_convert<float>(y));
}
HG_DEV float hg_sum(float x, float y) {
  return x + y;
}
HG_DEV float hg_sum(float x, hg_f16 y) {
  return x + hg_convert<float>(y);
}
HG_DEV float hg_sum(float x, hg_bf16 y) {
  return x + hg_convert<float>(y);
}
HG_DEV hg_f64 hg_sum(hg_f64 x, hg_f64 y) {
  return hg_convert<hg_f64>(hg_convert<hg_double>(x) + hg_convert<hg_double>(y));
}

struct hg_add {
  template <class A, class W>
  HG_DEV void apply(HG_GLOBAL A* to, W x) {
    *to = hg_sum(*to, x);
  }
};

// Writes where indices say, in the order of their positions, as one thread would. A line has all
// points whose places differ by indices alone, and `owners` threads walk it; a thread sees to the
// places that are its own. So no two threads write to one place.
template <class How, class I, class A, class W>
HG_DEV void hg_walk(HG_GLOBAL A* to, HG_GLOBAL const W* from, HG_GLOBAL hg_atomic_u32* record,
                    HG_THREAD const hg_index_buffer* buffers,
                    HG_CONSTANT const hg_index_parameters<I>& p, HG_THREADS) {
  const I t = static_cast<I>(block) * static_cast<I>(block_size) + static_cast<I>(lid);
  if (t >= p.lines * p.owners) return;
  const I own = hg_divided(t, p.lines), line = t - own * p.lines;
  I c[HG_MOVE_RANK];
  HG_UNROLL
  for (hg_u32 d = 0; d < HG_MOVE_RANK; ++d) c[d] = 0;
  hg_coordinates(p.space, line, I(0), p.outer, c);
  for (I w = 0; w < p.walk; ++w) {
    hg_coordinates(p.space, w, p.outer, p.space.rank, c);
    I at = hg_offset(p.to, c), source = hg_offset(p.from, c);
    hg_u32 key = 0;
    if (p.leaves != 0 && hg_index_at(p.index[0], buffers[0], c) == p.left_out) continue;
    if (!hg_look_up(p, buffers, c, &at, &source, &key)) {
      if (own == 0) {
        hg_report_index(record, p, buffers, static_cast<hg_u64>(hg_offset(p.position, c)));
      }
    } else if (key % static_cast<hg_u32>(p.owners) == static_cast<hg_u32>(own)) {
      How::apply(to + at, from[source]);
    }
  }
}

// ---- kernels ----

#define HG_MOVE_THREADS HG_LID, HG_BID, HG_BDIM
#define HG_MOVE_CAST(name, To, From, I)                      \
  HG_KERNEL(name, HG_BUF(To, to, 0), HG_CBUF(From, from, 1), \
            HG_PARAM(hg_copy_parameters<I>, p, 2)) {         \
    hg_copy(to, from, p, HG_MOVE_THREADS);                   \
  }
#define HG_MOVE_COPY(name, W, I) HG_MOVE_CAST(name, W, W, I)
#define HG_MOVE_TRANSPOSE(name, W, I)                                                             \
  HG_KERNEL(name, HG_BUF(W, to, 0), HG_CBUF(W, from, 1), HG_PARAM(hg_copy_parameters<I>, p, 2)) { \
    HG_SHARED(W, tile, HG_MOVE_TILE(sizeof(W)) * (HG_MOVE_TILE(sizeof(W)) + 1u))                  \
    hg_transpose<HG_MOVE_TILE(sizeof(W))>(to, from, tile, p, HG_MOVE_THREADS);                    \
  }
#define HG_MOVE_FILL(name, W, I)                                             \
  HG_KERNEL(name, HG_BUF(W, to, 0), HG_PARAM(hg_fill_parameters<I>, p, 1)) { \
    hg_fill(to, p, HG_MOVE_THREADS);                                         \
  }
#define HG_MOVE_MASKED_FILL(name, W, I)                      \
  HG_KERNEL(name, HG_BUF(W, to, 0), HG_CBUF(hg_u8, mask, 1), \
            HG_PARAM(hg_fill_parameters<I>, p, 2)) {         \
    hg_masked_fill(to, mask, p, HG_MOVE_THREADS);            \
  }
#define HG_MOVE_PAD(name, W, I)                                                                  \
  HG_KERNEL(name, HG_BUF(W, to, 0), HG_CBUF(W, from, 1), HG_PARAM(hg_pad_parameters<I>, p, 2)) { \
    hg_pad(to, from, p, HG_MOVE_THREADS);                                                        \
  }
#define HG_MOVE_CAT(name, W, I)                                                                 \
  HG_KERNEL(name, HG_BUF(W, to, 0), HG_CBUF(W, a0, 1), HG_CBUF(W, a1, 2), HG_CBUF(W, a2, 3),    \
            HG_CBUF(W, a3, 4), HG_CBUF(W, a4, 5), HG_CBUF(W, a5, 6), HG_CBUF(W, a6, 7),         \
            HG_CBUF(W, a7, 8), HG_CBUF(W, a8, 9), HG_CBUF(W, a9, 10), HG_CBUF(W, a10, 11),      \
            HG_CBUF(W, a11, 12), HG_CBUF(W, a12, 13), HG_CBUF(W, a13, 14), HG_CBUF(W, a14, 15), \
            HG_CBUF(W, a15, 16), HG_CBUF(W, a16, 17), HG_CBUF(W, a17, 18), HG_CBUF(W, a18, 19), \
            HG_CBUF(W, a19, 20), HG_CBUF(W, a20, 21), HG_CBUF(W, a21, 22), HG_CBUF(W, a22, 23), \
            HG_CBUF(W, a23, 24), HG_PARAM(hg_cat_parameters<I>, p, 25)) {                       \
    const hg_input<W> inputs[HG_MOVE_INPUTS] = {                                                \
        {a0},  {a1},  {a2},  {a3},  {a4},  {a5},  {a6},  {a7},  {a8},  {a9},  {a10}, {a11},     \
        {a12}, {a13}, {a14}, {a15}, {a16}, {a17}, {a18}, {a19}, {a20}, {a21}, {a22}, {a23}};    \
    hg_cat(to, inputs, p, HG_MOVE_THREADS);                                                     \
  }
#define HG_MOVE_INDEXED(name, function, A, W, I)                                           \
  HG_KERNEL(name, HG_BUF(A, to, 0), HG_CBUF(W, from, 1), HG_BUF(hg_atomic_u32, record, 2), \
            HG_CBUF(hg_u8, i0, 3), HG_CBUF(hg_u8, i1, 4), HG_CBUF(hg_u8, i2, 5),           \
            HG_CBUF(hg_u8, i3, 6), HG_CBUF(hg_u8, i4, 7), HG_CBUF(hg_u8, i5, 8),           \
            HG_CBUF(hg_u8, i6, 9), HG_CBUF(hg_u8, i7, 10),                                 \
            HG_PARAM(hg_index_parameters<I>, p, 11)) {                                     \
    const hg_index_buffer buffers[HG_MOVE_INDICES] = {i0, i1, i2, i3, i4, i5, i6, i7};     \
    function(to, from, record, buffers, p, HG_MOVE_THREADS);                               \
  }
#define HG_MOVE_CLAIM(name, I)                                                         \
  HG_KERNEL(name, HG_BUF(hg_atomic_u32, claims, 0), HG_BUF(hg_atomic_u32, record, 1),  \
            HG_CBUF(hg_u8, i0, 2), HG_CBUF(hg_u8, i1, 3), HG_CBUF(hg_u8, i2, 4),       \
            HG_CBUF(hg_u8, i3, 5), HG_CBUF(hg_u8, i4, 6), HG_CBUF(hg_u8, i5, 7),       \
            HG_CBUF(hg_u8, i6, 8), HG_CBUF(hg_u8, i7, 9),                              \
            HG_PARAM(hg_index_parameters<I>, p, 10)) {                                 \
    const hg_index_buffer buffers[HG_MOVE_INDICES] = {i0, i1, i2, i3, i4, i5, i6, i7}; \
    hg_claim_places(claims, record, buffers, p, HG_MOVE_THREADS);                      \
  }
#define HG_MOVE_PUT_CLAIMED(name, W, I)                                                \
  HG_KERNEL(name, HG_BUF(W, to, 0), HG_CBUF(W, from, 1), HG_CBUF(hg_u32, claims, 2),   \
            HG_CBUF(hg_u8, i0, 3), HG_CBUF(hg_u8, i1, 4), HG_CBUF(hg_u8, i2, 5),       \
            HG_CBUF(hg_u8, i3, 6), HG_CBUF(hg_u8, i4, 7), HG_CBUF(hg_u8, i5, 8),       \
            HG_CBUF(hg_u8, i6, 9), HG_CBUF(hg_u8, i7, 10),                             \
            HG_PARAM(hg_index_parameters<I>, p, 11)) {                                 \
    const hg_index_buffer buffers[HG_MOVE_INDICES] = {i0, i1, i2, i3, i4, i5, i6, i7}; \
    hg_put_claimed(to, from, claims, buffers, p, HG_MOVE_THREADS);                     \
  }
#define HG_MOVE_TAKE(name, W, I) HG_MOVE_INDEXED(name, hg_take, W, W, I)
#define HG_MOVE_PUT(name, W, I) HG_MOVE_INDEXED(name, hg_walk<hg_put>, W, W, I)
#define HG_MOVE_ADD(name, A, W, I) HG_MOVE_INDEXED(name, hg_walk<hg_add>, A, W, I)

#endif

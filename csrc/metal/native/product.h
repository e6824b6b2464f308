// Matrix products of Metal: out = alpha * a * b + beta * c + bias (atlas/product.h), with the
// matrices of simdgroups, sums in float. Text for Metal's compiler alone; metal/products.cpp has
// the parameters and the size of blocks too.
//
// A block of four simdgroups computes 32 x 32 elements, of which each simdgroup has 16 x 16 in
// matrices of 8 x 8; parts of a and b, 16 deep, are brought to threadgroup memory as floats, zeros
// beyond their ends.
#ifndef HOLOGRAM_METAL_PRODUCT_H
#define HOLOGRAM_METAL_PRODUCT_H

#include "hologram_gpu.h"

#include <metal_simdgroup_matrix>

struct hg_product_parameters {
  hg_u64 a_stride, b_stride, c_stride, out_stride;  // from matrix to matrix, in elements
  hg_u64 a_leading, b_leading, c_leading, out_leading;
  hg_u32 rows, columns, inner;
  hg_u32 flags;
  float alpha, beta;
};
#define HG_PRODUCT_A_BY_COLUMNS 1u
#define HG_PRODUCT_B_BY_COLUMNS 2u
#define HG_PRODUCT_HAS_BIAS 4u

#define HG_PRODUCT_TILE 32u
#define HG_PRODUCT_DEPTH 16u
#define HG_PRODUCT_THREADS 128u
#define HG_PRODUCT_PART 512u  // TILE * DEPTH

template <class T>
HG_DEV float hg_product_element(HG_GLOBAL const T* from, hg_u64 leading, bool by_columns,
                                hg_u32 row, hg_u32 column, hg_u32 rows, hg_u32 columns) {
  if (row >= rows || column >= columns) return 0.0f;
  const hg_u64 at = by_columns ? column * leading + row : row * leading + column;
  return hg_convert<float>(from[at]);
}

template <class T>
HG_DEV void hg_product(HG_GLOBAL const T* a, HG_GLOBAL const T* b, HG_GLOBAL const T* c,
                       HG_GLOBAL T* out, HG_GLOBAL const T* bias,
                       HG_CONSTANT const hg_product_parameters& p, HG_SHARED_PTR(float) part_a,
                       HG_SHARED_PTR(float) part_b, HG_SHARED_PTR(float) sums, hg_u32 lid,
                       hg_u32 block) {
  const hg_u32 across = (p.columns + HG_PRODUCT_TILE - 1u) / HG_PRODUCT_TILE;
  const hg_u32 down = (p.rows + HG_PRODUCT_TILE - 1u) / HG_PRODUCT_TILE;
  const hg_u32 tile = block % (across * down);
  const hg_u64 number = block / (across * down);
  const hg_u32 row = tile / across * HG_PRODUCT_TILE, column = tile % across * HG_PRODUCT_TILE;
  const bool a_by_columns = (p.flags & HG_PRODUCT_A_BY_COLUMNS) != 0u;
  const bool b_by_columns = (p.flags & HG_PRODUCT_B_BY_COLUMNS) != 0u;
  a += number * p.a_stride;
  b += number * p.b_stride;

  // Of the simdgroup.
  const hg_u32 group = lid / HG_WARP;
  const hg_u32 own_row = group / 2u * 16u, own_column = group % 2u * 16u;
  metal::simdgroup_matrix<float, 8, 8> sum[2][2], left[2], right[2];
  for (hg_u32 i = 0; i < 2u; ++i) {
    for (hg_u32 j = 0; j < 2u; ++j) {
      sum[i][j] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }
  for (hg_u32 begin = 0; begin < p.inner; begin += HG_PRODUCT_DEPTH) {
    // Neighbouring threads read neighbouring elements.
    for (hg_u32 i = lid; i < HG_PRODUCT_PART; i += HG_PRODUCT_THREADS) {
      const hg_u32 r = a_by_columns ? i % HG_PRODUCT_TILE : i / HG_PRODUCT_DEPTH;
      const hg_u32 k = a_by_columns ? i / HG_PRODUCT_TILE : i % HG_PRODUCT_DEPTH;
      part_a[r * HG_PRODUCT_DEPTH + k] =
          hg_product_element(a, p.a_leading, a_by_columns, row + r, begin + k, p.rows, p.inner);
    }
    for (hg_u32 i = lid; i < HG_PRODUCT_PART; i += HG_PRODUCT_THREADS) {
      const hg_u32 k = b_by_columns ? i % HG_PRODUCT_DEPTH : i / HG_PRODUCT_TILE;
      const hg_u32 n = b_by_columns ? i / HG_PRODUCT_DEPTH : i % HG_PRODUCT_TILE;
      part_b[k * HG_PRODUCT_TILE + n] = hg_product_element(b, p.b_leading, b_by_columns, begin + k,
                                                           column + n, p.inner, p.columns);
    }
    HG_SYNC();
    for (hg_u32 k = 0; k < HG_PRODUCT_DEPTH; k += 8u) {
      for (hg_u32 i = 0; i < 2u; ++i) {
        metal::simdgroup_load(left[i], part_a + (own_row + 8u * i) * HG_PRODUCT_DEPTH + k,
                              HG_PRODUCT_DEPTH);
        metal::simdgroup_load(right[i], part_b + k * HG_PRODUCT_TILE + own_column + 8u * i,
                              HG_PRODUCT_TILE);
      }
      for (hg_u32 i = 0; i < 2u; ++i) {
        for (hg_u32 j = 0; j < 2u; ++j) {
          metal::simdgroup_multiply_accumulate(sum[i][j], left[i], right[j], sum[i][j]);
        }
      }
    }
    HG_SYNC();
  }
  for (hg_u32 i = 0; i < 2u; ++i) {
    for (hg_u32 j = 0; j < 2u; ++j) {
      metal::simdgroup_store(sum[i][j],
                             sums + (own_row + 8u * i) * HG_PRODUCT_TILE + own_column + 8u * j,
                             HG_PRODUCT_TILE);
    }
  }
  HG_SYNC();
  for (hg_u32 i = lid; i < HG_PRODUCT_TILE * HG_PRODUCT_TILE; i += HG_PRODUCT_THREADS) {
    const hg_u32 m = row + i / HG_PRODUCT_TILE, n = column + i % HG_PRODUCT_TILE;
    if (m >= p.rows || n >= p.columns) continue;
    float value = p.alpha * sums[i];
    if (p.beta != 0.0f) {
      value += p.beta * hg_convert<float>(c[number * p.c_stride + m * p.c_leading + n]);
    }
    if ((p.flags & HG_PRODUCT_HAS_BIAS) != 0u) value += hg_convert<float>(bias[n]);
    out[number * p.out_stride + m * p.out_leading + n] = hg_convert<T>(value);
  }
}

#define HG_PRODUCT_KERNEL(type)                                                               \
  HG_KERNEL(hg_product_##type, HG_CBUF(hg_##type, a, 0), HG_CBUF(hg_##type, b, 1),            \
            HG_CBUF(hg_##type, c, 2), HG_BUF(hg_##type, out, 3), HG_CBUF(hg_##type, bias, 4), \
            HG_PARAM(hg_product_parameters, p, 5)) {                                          \
    HG_SHARED(float, part_a, HG_PRODUCT_PART)                                                 \
    HG_SHARED(float, part_b, HG_PRODUCT_PART)                                                 \
    HG_SHARED(float, sums, HG_PRODUCT_TILE* HG_PRODUCT_TILE)                                  \
    hg_product<hg_##type>(a, b, c, out, bias, p, part_a, part_b, sums, HG_LID, HG_BID);       \
  }
HG_PRODUCT_KERNEL(f32)
HG_PRODUCT_KERNEL(f16)
HG_PRODUCT_KERNEL(bf16)

#endif

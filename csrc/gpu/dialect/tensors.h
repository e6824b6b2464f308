// Of a kernel that runs one program over many tensors: the row of a table in which a block finds
// addresses, numbers, and in `block` the first block that is the row's.
#ifndef HOLOGRAM_GPU_TENSORS_H
#define HOLOGRAM_GPU_TENSORS_H

template <class Row>
HG_DEV HG_GLOBAL const Row* hg_row_of_block(HG_GLOBAL const Row* rows, hg_u32 count, hg_u32 block) {
  hg_u32 low = 0, high = count;
  while (high - low > 1u) {
    const hg_u32 middle = low + (high - low) / 2u;
    if (rows[middle].block <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return rows + low;
}

#endif

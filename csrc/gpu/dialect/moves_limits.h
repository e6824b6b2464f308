// What the kernels of moves.h and their host (gpu/moves.cpp, indices.cpp, move_launches.h) agree
// upon. Macros, for both know them.
#ifndef HOLOGRAM_GPU_MOVES_LIMITS_H
#define HOLOGRAM_GPU_MOVES_LIMITS_H

#define HG_MOVE_RANK 8u       // dimensions of a space
#define HG_MOVE_EACH 4u       // points of a thread
#define HG_MOVE_TILE_ROWS 4u  // of a tile that a block, which transposes it, reads at once
#define HG_MOVE_INDICES 8u    // of one launch
#define HG_MOVE_INPUTS 24u    // that one launch of `cat` joins

// Of an index.
#define HG_INDEX_LONG 1u   // it has 64 bits, else 32
#define HG_INDEX_WRAPS 2u  // a negative one counts from the end

// Rows and columns of a tile of elements of some bytes. It is in shared memory, of which a group of
// Metal's has 32 KiB. The larger it is, the more elements has a thread, most of whose instructions
// say where its tile is.
#define HG_MOVE_TILE(bytes) ((bytes) <= 4u ? 64u : 32u)

// What lies around the elements that are padded.
#define HG_PAD_CONSTANT 0u
#define HG_PAD_REFLECT 1u
#define HG_PAD_REPLICATE 2u
#define HG_PAD_CIRCULAR 3u

// The record of a launch with indices, of 32-bit words, all zero before it.
//   0: 0, or 2^32 - 1 - the first position at which an index is out of range, those from 2^32 - 2
//      on being that one   1, 2: the index, its lower half first   3: which of the launch's indices
#define HG_INDEX_RECORD 4u

#endif

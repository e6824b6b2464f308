// What a program of the cold kernels (cold.h) consists of: the host, which writes it
// (gpu/cold.cpp), includes this file too. Macros, for both know them.
//
// A program is an array of 32-bit words. First a header of HG_COLD_HEADER words:
//   0: flags   1: phases   2: of them the first one's place   3: dimensions of a strided space
//   4: the sizes' place in the parameters' words
// A phase is HG_COLD_PHASE words: three ranges of places, and of folds or scans their number. Rows'
// code makes one value of each instruction, elements' code one for each element of a thread; the
// last range is of code of elements that comes after scans.
//   0, 1: rows' code   2, 3: elements' code   4, 5: folds or scans, and how many   6, 7: later code
// An instruction is four words:
//   0: kind | what it does << 8 | dtype of the value << 16 | dtype of the operand << 24
//   1: slot of the value, or what is stored | x << 16
//   2: y | z << 16
//   3: of an operand its number | where its elements lie << 8 | the strides' place << 16;
//      of a pick the place of the elements' code that it has of its own | instructions << 16
// A value is HG_COLD_ROW + its slot, or HG_COLD_NUMBER + its place in the parameters' words, or the
// slot of elements. A fold, or a scan, is four words:
//   0: operation | dtype of a scan << 8 | partial results' buffer << 16 | the joined ones' << 24
//   1: slot of the result | value << 16   2, 3: the identity's bits, the lower half first
#ifndef HOLOGRAM_GPU_COLD_PROGRAM_H
#define HOLOGRAM_GPU_COLD_PROGRAM_H

#define HG_COLD_HEADER 8u
#define HG_COLD_PHASE 8u
#define HG_COLD_INSTRUCTION 4u

// Flags.
#define HG_COLD_STRUCTURED 1u
#define HG_COLD_COLUMNS 2u  // elements differ from column to column
#define HG_COLD_DOWN 4u     // folds, or scans, are down the rows
#define HG_COLD_PARTS 8u    // partial results are made

// Kinds.
#define HG_COLD_LOAD 0u
#define HG_COLD_COMPUTE 1u
#define HG_COLD_CAST 2u
#define HG_COLD_STORE 3u
#define HG_COLD_POSITION 4u  // what it does: 1 of columns, 0 of rows
#define HG_COLD_DRAW 5u
#define HG_COLD_PICK 6u

#define HG_COLD_ROW 0x4000u
#define HG_COLD_NUMBER 0x8000u
#define HG_COLD_PLACE 0x3fffu  // of the number, or the slot

// Where elements lie: a Spread (atlas/group.h), or
#define HG_COLD_STRIDED 8u
#define HG_COLD_SCALAR 9u

#define HG_COLD_NO_DTYPE 255u  // of a value that is not rounded

// Limits.
#define HG_COLD_BUFFERS 29  // with the program and the parameters they are Metal's 31
#define HG_COLD_SLOTS 128
#define HG_COLD_FOLDS 4  // of a phase
#define HG_COLD_SCANS 29
#define HG_COLD_WORDS 506  // with the counts before them they are Metal's 4 KB

#endif

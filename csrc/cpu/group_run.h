// A run of a compiled group, for group_run.cpp and group_run_strided.cpp only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "atlas/float_mode.h"
#include "cpu/compiled_group.h"
#include "cpu/kernel_table.h"
#include "cpu/strided_space.h"

namespace hologram::cpu {

constexpr int64_t kChunkBytes = 12'288;  // of elements of the compute type: the unit of work
constexpr int kMostPrefetches = 16;

class GroupRun {
 public:
  GroupRun(const CompiledGroup& group, std::span<const Binding> bindings)
      : group_(group),
        bindings_(bindings),
        kernels_(*group.kernels_),
        size_(static_cast<long>(dtype_size(kernels_.own))),
        chunk_elements_(kChunkBytes / size_) {}

  void run(Parallel& parallel);

 private:
  struct Free {
    void operator()(char* p) const { operator delete (p, std::align_val_t{64}); }
  };
  static char* allocate(size_t bytes);
  // Where the pointer of a frame that says which elements these are has to be at the first of them.
  char* place_of(int64_t element) const { return moved(nullptr, element * size_); }

  // A binding on its way through one thread.
  struct Member {
    Member(const Binding& what, const StridedSpace* where, char* memory)
        : binding(what), space(where), frame(memory) {}
    char** pointers() const { return reinterpret_cast<char**>(frame); }

    const Binding& binding;
    const StridedSpace* space;  // null where no operand is strided
    char* frame;
    int prefetch_count = 0;
    Prefetch prefetches[kMostPrefetches];  // only so many have a value
  };

  bool streams(int64_t elements) const;
  int64_t chunks_of(const Binding& binding) const;
  void whole(char* frame) const;
  // A thread's part of all chunks. Each begins with its own, the same in every run over as many:
  // what it has touched last is near. Then it helps the others.
  struct alignas(64) Part {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  void work(int thread);
  void share(int thread, char* frame);
  void finish(Part& part, char* frame);

  Member set_up(size_t index, char* frame) const;
  void range(const Member& member, int64_t begin, int64_t end) const;
  char** tile_pointers(char* frame) const;
  void tail(char* frame, int64_t at, int64_t n) const;

  // ---- strided operands: tile by tile (group_run_strided.cpp) ----

  void strided_range(const Member& member, int64_t begin, int64_t end) const;
  bool has_long_rows(const StridedSpace& space) const;
  void rows_range(const Member& member, int64_t begin, int64_t end) const;
  void tiles_range(const Member& member, int64_t begin, int64_t end) const;
  char* place_tile(const Member& member, size_t u, int64_t at, int64_t n, const int64_t* position,
                   const char** held) const;
  void choose_prefetches(Member& member) const;
  void aim_prefetches(Member& member, int64_t at, const Binding& next) const;
  // Uses of which an element that fills a tile is remembered.
  static constexpr size_t kHeld = 16;

  const CompiledGroup& group_;
  const std::span<const Binding> bindings_;
  const TypeKernels& kernels_;
  const long size_;  // of the compute type's elements
  const int64_t chunk_elements_;
  bool streams_ = false;
  FloatMode mode_ = 0;  // of the calling thread
  int64_t chunks_ = 0;  // of all members
  int64_t claim_ = 1;   // chunks that a thread takes at a time
  StridedSpace space_, *spaces_ = &space_;
  std::vector<StridedSpace> more_spaces_;  // of members, where operands are strided
  char* frames_ = nullptr;                 // one per thread, if they do not fit the stack
  std::unique_ptr<Part[]> parts_;          // where several threads run
  int part_count_ = 0;
  std::atomic<int> next_frame_{0};
};

}  // namespace hologram::cpu

// Sequences of micro-operations as one loop each.
//
// Included by one source file per instruction set, which includes the headers of others first and
// then selects the target: no code shared with other files may be compiled for the wider set.
#pragma once

#include "cpu/micro_ops.h"

namespace hologram::cpu {

template <class T, int W>
struct Loops {
  using Ops = MicroOps<T, W>;
  using Vec = typename Ops::Vec;
  using V = typename Ops::V;
  static constexpr DType kOwn = Ops::kOwn;
  template <DType dtype>
  using Load = typename Ops::template Load<dtype>;
  template <DType dtype>
  using Store = typename Ops::template Store<dtype>;
  template <DType dtype>
  using FromMemory = typename Ops::template FromMemory<dtype>;
  using Memory = typename Ops::Memory;
  using LoadSplat = typename Ops::LoadSplat;
  using StoreClean = typename Ops::StoreClean;
  using StoreExact = typename Ops::StoreExact;
  using FromSplat = typename Ops::FromSplat;
  using FromSelf = typename Ops::FromSelf;
  template <class Row, int place, class Y, class Z>
  using Operate = typename Ops::template Operate<Row, place, Y, Z>;
  template <class Row, class X, class Y>
  using Start = typename Ops::template Start<Row, X, Y>;

  // Steps that follow one another, on four vectors.
  template <class... Steps>
  struct Chain {
    HOLOGRAM_INLINE Chain(const MicroOp*, char* const*, long) {}
    HOLOGRAM_INLINE void at(long, V (&)[4]) const {}
    HOLOGRAM_INLINE void one(long, V&) const {}
    HOLOGRAM_INLINE void advance(const CodeStep*) {}
  };
  template <class First, class... Rest>
  struct Chain<First, Rest...> {
    HOLOGRAM_INLINE Chain(const MicroOp* code, char* const* bases, long off)
        : first(*code, bases, off), rest(code + 1, bases, off) {}
    HOLOGRAM_INLINE void at(long k, V (&a)[4]) const {
      if constexpr (requires { &First::pair; }) {
        first.pair(k, a[0], a[1]);
        first.pair(k + 2, a[2], a[3]);
      } else {
        a[0] = first.at(k, a[0]), a[1] = first.at(k + 1, a[1]);
        a[2] = first.at(k + 2, a[2]), a[3] = first.at(k + 3, a[3]);
      }
      rest.at(k, a);
    }
    HOLOGRAM_INLINE void one(long k, V& a) const {
      a = first.at(k, a);
      rest.one(k, a);
    }
    HOLOGRAM_INLINE void advance(const CodeStep* steps) {
      first.advance(steps->x, steps->y);
      rest.advance(steps + 1);
    }
    First first;
    Chain<Rest...> rest;
  };

  // The pointers at the last row. Loops go from row to row with addresses in registers: what they
  // store might be in the frame.
  HOLOGRAM_INLINE static void point_at_last_row(char** bases, const Extent& extent) {
    for (int i = 0; i < extent.step_count; ++i) {
      bases[extent.steps[i].pointer] += (extent.rows - 1) * extent.steps[i].bytes;
    }
  }

  // Vectors that a loop works on at a time. A row has at least as many.
  static constexpr long kStep = kLoopVectors;
  // Of an operand's elements in a row.
  template <class E>
  HOLOGRAM_INLINE static long bytes_of(const Extent& extent) {
    return (extent.end - extent.begin) / static_cast<long>(sizeof(T)) *
           static_cast<long>(sizeof(E));
  }
  // The elements of a row, and of the next ones. Where the row does not end with what it works on
  // at a time, some are computed again: of a register if single ones can be stored.
  template <class... Steps>
  struct RowLoop {
    static constexpr bool kSingly = !(requires { &Steps::pair; } || ...);
    static constexpr long kAgain = kSingly ? 1 : kStep;
    HOLOGRAM_INLINE RowLoop(const MicroOp* code, char* const* bases, const Extent& extent)
        : count((extent.end - extent.begin) / W),
          has_tail(extent.begin + count / kAgain * kAgain * W != extent.end),
          chain(code, bases, extent.begin),
          last(code, bases, extent.end - kAgain * W) {}
    HOLOGRAM_INLINE void run() const {
      long k = 0;
      for (; k + kStep <= count; k += kStep) {
        V a[kStep] = {};
        chain.at(k, a);
      }
      if constexpr (kSingly) {
        for (; k < count; ++k) {
          V a{};
          chain.one(k, a);
        }
        if (has_tail) {
          V a{};
          last.one(0, a);
        }
      } else if (has_tail) {
        V a[kStep] = {};
        last.at(0, a);
      }
    }
    HOLOGRAM_INLINE void advance(const CodeStep* steps) {
      chain.advance(steps);
      if (has_tail) last.advance(steps);
    }
    const long count;
    const bool has_tail;
    Chain<Steps...> chain, last;
  };
  template <class... Steps>
  static void loop(const MicroOp* code, char** bases, const Extent& extent) {
    RowLoop<Steps...> elements(code, bases, extent);
    for (long row = 0;;) {
      elements.run();
      if (++row == extent.rows) break;
      elements.advance(extent.code_steps);
    }
    point_at_last_row(bases, extent);
  }
  // A splat, stored: what the first vector has become is the pattern of the rest.
  template <DType dtype>
  static void fill(const MicroOp* code, char** bases, const Extent& extent) {
    const long count = bytes_of<Element<dtype>>(extent);
    Ops::each_row(bases, extent, [&]() HOLOGRAM_INLINED {
      const LoadSplat splat(code[0], bases, extent.begin);
      const Store<dtype> store(code[1], bases, extent.begin);
      char tile[8 * W * sizeof(Element<dtype>) / sizeof(T)];
      for (long k = 0; k < 8; ++k) Lanes<T, dtype, W>::store(tile, k, splat.from.v);
      const auto pattern = load_lanes<uint8_t, W>(tile);
      long i = 0;
      for (; i + 4 * W <= count; i += 4 * W) {
        // Nothing is read here that would make the processor fetch lines before they are written.
        for (int at = 0; at < 4 * W; at += 64) __builtin_prefetch(store.p + i + 2048 + at, 1);
        store_lanes(store.p + i, pattern);
        store_lanes(store.p + i + W, pattern);
        store_lanes(store.p + i + 2 * W, pattern);
        store_lanes(store.p + i + 3 * W, pattern);
      }
      for (; i + W <= count; i += W) store_lanes(store.p + i, pattern);
      if (i < count) __builtin_memcpy(store.p + i, tile, static_cast<size_t>(count - i));
    });
  }
  // Operations on the bits of half types: what is kept of them, and what is turned over.
  // `stored`: the place of the store in the code.
  template <uint16_t kept, uint16_t turned, int stored>
  static void change_bits(const MicroOp* code, char** bases, const Extent& extent) {
    using Words = Simd<uint16_t, W>;
    const long count = bytes_of<Bf16>(extent);
    Ops::each_row(bases, extent, [&]() HOLOGRAM_INLINED {
      const char* from = Ops::template address<Bf16>(code[0].x, bases, extent.begin);
      char* to = Ops::template address<Bf16>(code[stored].x, bases, extent.begin);
      const auto change = [&](long i) {
        const auto words = load_lanes<uint16_t, W>(from + i);
        store_lanes(to + i, (words & Words(kept)) ^ Words(turned));
      };
      long i = 0;
#pragma GCC unroll 4
      for (; i + W <= count; i += W) change(i);
      if (i < count) change(count - W);
    });
  }

  // ---- what is folded ----

  template <class Row>
  HOLOGRAM_INLINE static void join(V& sum, V x) {
    sum = Row::template apply<Vec>(Vec(sum), Vec(x), Vec(x)).v;
  }
  // Of a row, so many registers.
  template <class Row, class Steps>
  HOLOGRAM_INLINE static T fold_row(const Steps& chain, long registers) {
    constexpr long count = kFoldBytes / W;
    V all[count];
    for (long first = 0; first < count; first += 8) {
      V sums[8];
#pragma GCC unroll 8
      for (V& sum : sums) sum = Vec(Ops::template identity_of<Row>()).v;
      long k = first;
      for (; k + 8 <= registers; k += count) {
        V a[4] = {}, b[4] = {};
        chain.at(k, a);
        chain.at(k + 4, b);
#pragma GCC unroll 4
        for (long i = 0; i < 4; ++i) join<Row>(sums[i], a[i]), join<Row>(sums[4 + i], b[i]);
      }
      const auto one = [&](long i) HOLOGRAM_INLINED {
        if (k + i >= registers) return false;
        V a{};
        chain.one(k + i, a);
        join<Row>(sums[i], a);
        return true;
      };
      if (k + 4 <= registers) {
        V a[4] = {};
        chain.at(k, a);
#pragma GCC unroll 4
        for (long i = 0; i < 4; ++i) join<Row>(sums[i], a[i]);
        (void)(one(4) && one(5) && one(6) && one(7));
      } else {
        (void)(one(0) && one(1) && one(2));
      }
#pragma GCC unroll 8
      for (long i = 0; i < 8; ++i) all[first + i] = sums[i];
    }
    return Ops::template fold_registers<Row>(all);
  }
  template <class Row, class... Steps>
  static void fold_columns(const MicroOp* code, char** bases, const Extent& extent, void* to,
                           bool) {
    const long registers = (extent.end - extent.begin) / W;
    T* out = static_cast<T*>(to);
    Chain<Steps...> chain(code, bases, extent.begin);
    for (long row = 0;;) {
      *out++ = fold_row<Row>(chain, registers);
      if (++row == extent.rows) break;
      chain.advance(extent.code_steps);
    }
    point_at_last_row(bases, extent);
  }
  template <class... Steps>
  struct Sequence {};
  template <class Row, class... Folded, class... Then>
  static void add_pair(TypeKernels& kernels, Sequence<Folded...>, Sequence<Then...>) {
    if (kernels.pair_count == TypeKernels::kMostPairs) __builtin_trap();
    kernels.pairs[kernels.pair_count++] = {
        fold_columns<Row, Folded...>, loop<Then...>,
        [](const Placed& fold, void* to, const Placed& then) {
          const Extent& extent = *fold.extent;
          const long registers = (extent.end - extent.begin) / W;
          T* out = static_cast<T*>(to);
          Chain<Folded...> chain(fold.code, fold.bases, extent.begin);
          *out++ = fold_row<Row>(chain, registers);
          // It reads the first fold.
          RowLoop<Then...> elements(then.code, then.bases, *then.extent);
          elements.run();
          for (long row = 1; row < extent.rows; ++row) {
            chain.advance(extent.code_steps);
            *out++ = fold_row<Row>(chain, registers);
            elements.advance(then.extent->code_steps);
            elements.run();
          }
          point_at_last_row(fold.bases, extent);
          point_at_last_row(then.bases, *then.extent);
        }};
  }
  // Of so few columns that the sums stay in registers.
  template <long registers, class Row, class... Steps>
  static void fold_narrow_rows(const MicroOp* code, char** bases, const Extent& extent, char* to,
                               bool continues) {
    Chain<Steps...> chain(code, bases, extent.begin);
    V sums[registers];
    for (long k = 0; k < registers && continues; ++k) sums[k] = load_lanes<T, W>(to + k * W).v;
    for (long row = 0;;) {
#pragma GCC unroll 2
      for (long k = 0; k < registers; k += kStep) {
        V a[kStep] = {};
        chain.at(k, a);
#pragma GCC unroll 4
        for (long i = 0; i < kStep; ++i) {
          if (continues) {
            join<Row>(sums[k + i], a[i]);
          } else {
            sums[k + i] = a[i];
          }
        }
      }
      continues = true;
      if (++row == extent.rows) break;
      chain.advance(extent.code_steps);
    }
    for (long k = 0; k < registers; ++k) store_lanes<T, W>(to + k * W, Vec(sums[k]));
    point_at_last_row(bases, extent);
  }
  template <class Row, class... Steps>
  static void fold_rows(const MicroOp* code, char** bases, const Extent& extent, void* to,
                        bool continues) {
    const long registers = (extent.end - extent.begin) / W;
    char* const sums = static_cast<char*>(to);
    if (registers == kStep) {
      return fold_narrow_rows<kStep, Row, Steps...>(code, bases, extent, sums, continues);
    }
    if (registers == 2 * kStep) {
      return fold_narrow_rows<2 * kStep, Row, Steps...>(code, bases, extent, sums, continues);
    }
    Chain<Steps...> chain(code, bases, extent.begin);
    for (long row = 0;;) {
      const auto add = [&](long k, V x) HOLOGRAM_INLINED {
        if (continues) {
          V sum = load_lanes<T, W>(sums + k * W).v;
          join<Row>(sum, x);
          x = sum;
        }
        store_lanes<T, W>(sums + k * W, Vec(x));
      };
      long k = 0;
      for (; k + kStep <= registers; k += kStep) {
        V a[kStep] = {};
        chain.at(k, a);
#pragma GCC unroll 4
        for (long i = 0; i < kStep; ++i) add(k + i, a[i]);
      }
      for (; k < registers; ++k) {
        V a{};
        chain.one(k, a);
        add(k, a);
      }
      continues = true;
      if (++row == extent.rows) break;
      chain.advance(extent.code_steps);
    }
    point_at_last_row(bases, extent);
  }
  template <bool over_rows, class Row, class... Steps>
  static void add_fold_loop(TypeKernels& kernels) {
    static_assert(sizeof...(Steps) <= Loop::kMost);
    if constexpr (!(Steps::kRolled || ...)) {
      if (kernels.fold_loop_count == TypeKernels::kMostFoldLoops) __builtin_trap();
      FoldLoop& added = kernels.fold_loops[kernels.fold_loop_count++];
      ((added.code[added.length++] = Ops::template code_of<Steps>()), ...);
      added.op = Row::kOp;
      added.over_rows = over_rows;
      if constexpr (over_rows) {
        added.run = fold_rows<Row, Steps...>;
      } else {
        added.run = fold_columns<Row, Steps...>;
      }
    }
  }
  template <class Row, class... Steps>
  static void add_fold_loops(TypeKernels& kernels) {
    add_fold_loop<false, Row, Steps...>(kernels);
    add_fold_loop<true, Row, Steps...>(kernels);
  }
  // What norms and softmax are made of, of memory M. A splat belongs to a row.
  template <DType dtype, class M, class Stored>
  static void add_row_programs(TypeKernels& kernels) {
    using S = FromSplat;
    using Self = FromSelf;
    using Distance = Start<group_row_sub, M, S>;
    using DistanceToColumn = Start<group_row_sub, M, M>;
    using Product = Start<group_row_mul, M, M>;
    using Scaled = Start<group_row_mul, M, S>;
    using Square = Operate<group_row_mul, 0, Self, Self>;
    using Scale = Operate<group_row_mul, 0, S, Self>;
    using Times = Operate<group_row_mul, 0, M, Self>;
    using Shift = Operate<group_row_add, 0, S, Self>;
    using Plus = Operate<group_row_add, 0, M, Self>;
    using Minus = Operate<group_row_sub, 0, S, Self>;
    using From = Operate<group_row_sub, 1, M, Self>;
    using Exp = Operate<group_row_exp, 0, Self, Self>;
    using PlusProduct = Operate<group_row_fma, 2, M, M>;
    using PlusScaled = Operate<group_row_fma, 2, M, S>;
    // squares of distances, products with values and with what is normalized
    add_fold_loops<group_row_add, Product>(kernels);
    add_fold_loops<group_row_add, Distance, Square>(kernels);
    add_fold_loops<group_row_add, Distance, Times>(kernels);
    add_fold_loops<group_row_add, Distance, Scale, Times>(kernels);
    add_fold_loops<group_row_add, DistanceToColumn, Square>(kernels);
    add_fold_loops<group_row_add, DistanceToColumn, Times>(kernels);
    add_fold_loop<false, group_row_add, Distance, Scale, Times, Times>(kernels);
    add_fold_loops<group_row_add, Scaled, Times>(kernels);
    add_fold_loop<false, group_row_add, Scaled, Times, Times>(kernels);
    // softmax and its logarithm
    add_fold_loop<false, group_row_add, Distance, Exp>(kernels);
    add_loop<Distance, Exp, Store<kOwn>>(kernels);
    add_loop<Distance, Minus, Stored>(kernels);
    add_loop<Distance, Minus, Exp, Stored>(kernels);
    // their derivatives
    add_loop<Distance, Times, Stored>(kernels);
    add_pair<group_row_add>(kernels, Sequence<Product>(), Sequence<Distance, Times, Stored>());
    add_loop<Load<dtype>, Exp, Scale, From, Stored>(kernels);
    // layer norm, batch norm and RMS norm
    add_loop<Distance, Scale, Stored>(kernels);
    add_loop<Distance, Scale, Shift, Stored>(kernels);
    add_loop<Distance, Scale, Times, Stored>(kernels);
    add_loop<Distance, Scale, Times, Plus, Stored>(kernels);
    add_loop<Scaled, Shift, Stored>(kernels);
    add_loop<Scaled, Times, Stored>(kernels);
    if constexpr (dtype == kOwn) {
      // the same with columns; what is made of bf16 alone is clean, and stored by another step
      add_loop<DistanceToColumn, Times, Stored>(kernels);
      add_loop<DistanceToColumn, Times, Plus, Stored>(kernels);
      add_loop<DistanceToColumn, Times, Times, Plus, Stored>(kernels);
      // their derivatives; a product with half types in memory is not a step of its own
      using FromProduct = typename Ops::template MultiplyThen<group_row_sub, 1, kOwn, M, M>;
      using LessScaled = typename Ops::template MultiplyThen<group_row_sub, 0, kOwn, M, S>;
      using LessProduct = typename Ops::template MultiplyThen<group_row_sub, 0, kOwn, M, M>;
      using AndScaled = typename Ops::template MultiplyThen<group_row_add, 0, kOwn, M, S>;
      add_loop<Distance, Scale, Scale, Shift, FromProduct, Scale, Stored>(kernels);
      add_loop<Scaled, LessScaled, Shift, Stored>(kernels);
      add_loop<Product, LessProduct, Plus, Stored>(kernels);
      add_loop<Scaled, AndScaled, Shift, Stored>(kernels);
      add_loop<Product, LessScaled, Scale, Stored>(kernels);
      // the derivative of the cross entropy
      add_loop<typename Ops::Position, Operate<group_row_eq, 0, S, Self>,
               Operate<group_row_where, 0, S, S>, LessScaled, Stored>(kernels);
    } else {
      add_loop<Distance, Scale, Scale, Shift, PlusProduct, Scale, Stored>(kernels);
      add_loop<Product, PlusScaled, Scale, Stored>(kernels);
    }
  }

  template <class... Steps>
  static void add_run(TypeKernels& kernels, RunCode run) {
    static_assert(sizeof...(Steps) <= Loop::kMost);
    if (kernels.loop_count == TypeKernels::kMostLoops) __builtin_trap();
    Loop& added = kernels.loops[kernels.loop_count++];
    ((added.code[added.length++] = Ops::template code_of<Steps>()), ...);
    added.run = run;
  }
  template <class... Steps>
  static void add_loop(TypeKernels& kernels) {
    if constexpr (!(Steps::kRolled || ...)) add_run<Steps...>(kernels, loop<Steps...>);
  }
  // A row on memory of `dtype`, which is M to an operation.
  template <class Row, DType dtype, class M, class Stored>
  static void add_unary_or_pair(TypeKernels& kernels) {
    if constexpr (Row::kInfo.arity == 1) {
      add_loop<Load<dtype>, Operate<Row, 0, FromSelf, FromSelf>, Stored>(kernels);
    } else if constexpr (Row::kInfo.cost == Cost::arithmetic) {
      add_loop<Start<Row, M, M>, Stored>(kernels);
    } else if constexpr (Row::kInfo.arity == 2) {
      add_loop<Load<dtype>, Operate<Row, 0, M, FromSelf>, Stored>(kernels);
    }
  }
  // The same beside numbers.
  template <class Row, DType dtype, class M, class Stored>
  static void add_with_splat(TypeKernels& kernels) {
    if constexpr (Row::kInfo.cost == Cost::arithmetic) {
      add_loop<Start<Row, M, FromSplat>, Stored>(kernels);
      add_loop<Start<Row, FromSplat, M>, Stored>(kernels);
    } else if constexpr (Row::kInfo.arity == 2) {
      add_loop<Load<dtype>, Operate<Row, 0, FromSplat, FromSelf>, Stored>(kernels);
    } else if constexpr (Row::kInfo.arity == 3 && Row::kInfo.exact == Exact::always &&
                         !Row::kInfo.has(kCondition)) {
      add_loop<Load<dtype>, Operate<Row, 0, FromSplat, FromSplat>, Stored>(kernels);
    }
  }
  template <class Row>
  static void add_loops(TypeKernels& kernels) {
    using F32 = Store<DType::f32>;
    using B8 = Store<DType::b8>;
    using Bf16Memory = FromMemory<DType::bf16>;
    constexpr bool exact = Row::kInfo.exact == Exact::always;
    if constexpr (std::is_same_v<T, float> && (Row::kInfo.dtypes & dtype_bit(kOwn)) != 0 &&
                  !is_heavy<T, W>(Row::kOp)) {
      add_unary_or_pair<Row, DType::f32, Memory, F32>(kernels);
      add_with_splat<Row, DType::f32, Memory, F32>(kernels);
      add_unary_or_pair<Row, DType::bf16, Bf16Memory,
                        std::conditional_t<exact, StoreExact, StoreClean>>(kernels);
      add_with_splat<Row, DType::bf16, Bf16Memory, StoreClean>(kernels);
      if constexpr (exact) {  // numbers that bf16 has
        add_with_splat<Row, DType::bf16, Bf16Memory, StoreExact>(kernels);
      }
      if constexpr (Row::kInfo.has(kPredicate)) {
        add_unary_or_pair<Row, DType::f32, Memory, B8>(kernels);
        add_with_splat<Row, DType::f32, Memory, B8>(kernels);
        add_unary_or_pair<Row, DType::bf16, Bf16Memory, B8>(kernels);
        add_with_splat<Row, DType::bf16, Bf16Memory, B8>(kernels);
      }
    } else if constexpr (std::is_same_v<T, uint8_t> && Row::kInfo.has(kPredicate)) {
      add_unary_or_pair<Row, DType::b8, Memory, B8>(kernels);
    }
  }
  // What torch has as one operation, as its composite (aten/composites.cpp) comes out compiled.
  template <DType dtype, class M, class Stored>
  static void add_composites(TypeKernels& kernels) {
    using S = FromSplat;
    using Self = FromSelf;
    using Loaded = Load<dtype>;
    // a + b * c, a + value * b, a + (value * b) * c, a + b / c, a + value * b / c
    add_loop<Loaded, Operate<group_row_fma, 0, M, M>, Stored>(kernels);
    add_loop<Loaded, Operate<group_row_fma, 2, S, M>, Stored>(kernels);
    add_loop<Start<group_row_mul, M, S>, Operate<group_row_fma, 0, M, M>, Stored>(kernels);
    add_loop<Start<group_row_div, M, M>, Operate<group_row_add, 0, M, Self>, Stored>(kernels);
    add_loop<Start<group_row_mul, M, S>, Operate<group_row_div, 0, M, Self>,
             Operate<group_row_add, 0, M, Self>, Stored>(kernels);
    // lerp
    add_loop<Start<group_row_sub, M, M>, Operate<group_row_fma, 1, S, M>, Stored>(kernels);
    // hardswish
    add_loop<Start<group_row_add, M, S>, Operate<group_row_clamp, 0, S, S>,
             Operate<group_row_mul, 1, M, Self>, Operate<group_row_div, 0, S, Self>, Stored>(
        kernels);
    // the derivatives of threshold, tanh and sigmoid
    add_loop<Loaded, Operate<group_row_le, 0, S, Self>, Operate<group_row_where, 0, S, M>, Stored>(
        kernels);
    add_loop<Loaded, Operate<group_row_neg, 0, Self, Self>, Operate<group_row_fma, 0, M, S>,
             Operate<group_row_mul, 0, M, Self>, Stored>(kernels);
    add_loop<Start<group_row_sub, S, M>, Operate<group_row_mul, 0, M, Self>,
             Operate<group_row_mul, 1, M, Self>, Stored>(kernels);
  }
  // Copies, and what changes bits only.
  static void add_moves(TypeKernels& kernels) {
    add_loop<Load<kOwn>, Store<kOwn>>(kernels);
    if constexpr (std::is_same_v<T, float>) {
      using Neg = Operate<group_row_neg, 0, FromSelf, FromSelf>;
      using Abs = Operate<group_row_abs, 0, FromSelf, FromSelf>;
      constexpr uint16_t kSign = 0x8000, kRest = 0x7fff, kAll = 0xffff;
      using Bf16Memory = FromMemory<DType::bf16>;
      using WhereBf16 = Operate<group_row_where, 0, Bf16Memory, Bf16Memory>;
      add_loop<Load<DType::b8>, Operate<group_row_where, 0, Memory, Memory>, Store<DType::f32>>(
          kernels);
      add_loop<Load<DType::b8>, WhereBf16, StoreExact>(kernels);
      add_composites<DType::f32, Memory, Store<DType::f32>>(kernels);
      add_composites<DType::bf16, Bf16Memory, StoreClean>(kernels);
      add_run<LoadSplat, Store<DType::f32>>(kernels, fill<DType::f32>);
      add_run<LoadSplat, Store<DType::bf16>>(kernels, fill<DType::bf16>);
      add_run<LoadSplat, StoreClean>(kernels, fill<DType::bf16>);
      add_run<LoadSplat, StoreExact>(kernels, fill<DType::bf16>);
      add_run<LoadSplat, Store<DType::f16>>(kernels, fill<DType::f16>);
      add_run<LoadSplat, Store<DType::b8>>(kernels, fill<DType::b8>);
      add_run<Load<DType::bf16>, StoreExact>(kernels, change_bits<kAll, 0, 1>);
      add_run<Load<DType::f16>, Store<DType::f16>>(kernels, change_bits<kAll, 0, 1>);
      add_run<Load<DType::bf16>, Neg, StoreExact>(kernels, change_bits<kAll, kSign, 2>);
      add_run<Load<DType::bf16>, Abs, StoreExact>(kernels, change_bits<kRest, 0, 2>);
      add_run<Load<DType::f16>, Neg, Store<DType::f16>>(kernels, change_bits<kAll, kSign, 2>);
      add_run<Load<DType::f16>, Abs, Store<DType::f16>>(kernels, change_bits<kRest, 0, 2>);
    }
  }

  static void add(TypeKernels& kernels) {
    add_moves(kernels);
    if constexpr (std::is_same_v<T, float>) {
      add_row_programs<DType::f32, Memory, Store<DType::f32>>(kernels);
      add_row_programs<DType::bf16, FromMemory<DType::bf16>, Store<DType::bf16>>(kernels);
    }
#define HOLOGRAM_X(name, ...) add_loops<group_row_##name>(kernels);
    HOLOGRAM_OPS(HOLOGRAM_X)
#undef HOLOGRAM_X
  }
};

}  // namespace hologram::cpu

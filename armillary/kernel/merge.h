// merge.h: attention over some of the keys, and how two such results become one.
//
//   clear ---> (0, -inf) --attend, merge, in any order, each key once--> all keys --finish-->
//   result
//
// Letters of shapes: B batch, L local tokens, H query heads, E value dim. A tensor may be any
// strided view, such as a range of heads of a slot; a view with fewer leading dims is merged just
// as well.
#pragma once

#include <ATen/core/Tensor.h>

namespace armillary::kernel {

/// What queries have seen so far. Both tensors are accumulators: fp32, or fp64 for fp64 inputs.
/// A row that saw no key is (0, -inf).
struct Partial {
  at::Tensor out_BLHE;  ///< Softmax-weighted mean of the values of the keys seen so far.
  at::Tensor lse_BLH;   ///< Log of the sum of exp(score) over those keys; natural log, not base 2.
  /// If defined, attend() raises it to the largest score it sees of each query head of the view;
  /// accumulators, -inf at first. Left alone by everything else in this header.
  at::Tensor max_logit_H = {};
  /// As if it had been cleared, whatever is in its memory: attend() then writes every row of out
  /// and lse, and makes this false.
  bool fresh = false;
};

/// Sets every row to (0, -inf): no key seen yet.
void clear(Partial& partial);

/// Merges two partials over disjoint keys, in place into `acc`.
///
///   lse = log(exp(acc.lse) + exp(other.lse))
///   out = acc.out exp(acc.lse - lse) + other.out exp(other.lse - lse)
///
/// (1) The order of sides and of several merges matters up to rounding only; (2) a side that saw no
/// key changes nothing, to the bit; (3) two such sides give (0, -inf), never NaN; (4) a NaN or Inf
/// stays in its row. merge_test.cpp has one test for each.
/// `other.out_BLHE` may be bf16 or fp16 where `acc` is fp32: a part that travelled in the input
/// dtype. Paper: Milakov & Gimelshein 2018, arXiv:1805.02867, section 3.1. Cost: 4 B L H E flops.
/// fp32 rows on a CPU: reads both sides once, writes `acc` once, at the speed of memory, without an
/// allocation; else `acc` is written twice. Threads: ATen's intra-op threads. @throws
/// InvalidArgument if shapes differ, or dtypes do otherwise.
void merge(Partial& acc, const Partial& other);

/// Adds a part of a gradient to its sum. Dtypes, cost, threads and errors as `merge`.
void add(const at::Tensor& sum, const at::Tensor& part);

/// Writes a partial over all keys as the result: `out_BLHE` in the input dtype (one rounding),
/// `lse_BLH` in the accumulator dtype.
///
/// Attention sinks: with `sinks_H`, one logit per query head of the view in the accumulator dtype,
/// a row is as if it also saw a key of that score whose value is 0 (gpt-oss; Xiao et al. 2023,
/// arXiv:2309.17453):
///
///   lse' = log(exp(lse) + exp(sink))        out' = out exp(lse - lse')
///
/// so a row that saw no key is (0, sink). Here, or in attend_all in place of it, and nowhere else,
/// so that a sink counts once however many partials there were. The memory of the result may be
/// that of `partial`, which is else left alone. @throws InvalidArgument if shapes or dtypes differ.
void finish(const Partial& partial, at::Tensor& out_BLHE, at::Tensor& lse_BLH,
            const at::Tensor& sinks_H = {});

}  // namespace armillary::kernel

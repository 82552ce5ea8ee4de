// merge.h: partial results of attention, and the functions that merge and finish them.
//
//   clear --> (0, -inf) --attend, merge: any order, each key once--> all keys --finish--> result
//
// Letters of shapes: B batch, L local tokens, H query heads, E value dim. A tensor may be any
// strided view, such as a range of heads of a slot, and may have fewer leading dims.
#pragma once

#include <ATen/core/Tensor.h>

namespace armillary::kernel {

/// Partial result: attention of queries over the keys seen so far. Both tensors are accumulators:
/// fp32, or fp64 for fp64 inputs. A row that saw no key is (0, -inf).
struct Partial {
  at::Tensor out_BLHE;  ///< softmax-weighted mean of the values seen so far
  at::Tensor lse_BLH;   ///< log of the sum of exp(score) over those keys; natural logarithm
  /// If defined, attend() raises it to the largest visible score of each query head of the view.
  /// Accumulator dtype; the caller sets it to -inf first. No function of this header touches it.
  at::Tensor max_logit_H = {};
  /// True: the partial counts as cleared, whatever its memory holds. attend() then writes every row
  /// of out and lse, and sets the flag to false.
  bool init = false;
};

/// Sets every row to (0, -inf), the result over no keys.
void clear(Partial& partial);

/// Merges the partial `other` into `acc`, in place. Their keys must be disjoint.
///
///   lse = log(exp(acc.lse) + exp(other.lse))
///   out = acc.out exp(acc.lse - lse) + other.out exp(other.lse - lse)
///
/// (1) Merge is commutative and associative up to rounding; (2) a side that saw no key changes no
/// bit; (3) two such sides give (0, -inf), never NaN; (4) a NaN or Inf stays in its row.
/// merge_test.cpp has one test for each.
///
/// `other.out_BLHE` may be bf16 or fp16 if `acc` is fp32: a partial that travelled in the input
/// dtype. Cost: 4 B L H E flops. If `acc` is fp32 on a CPU with contiguous rows, each side is read
/// once and `acc` is written once, without an allocation; other tensors take several ATen ops.
/// Threads: ATen's intra-op threads.
/// Paper: Milakov & Gimelshein 2018, arXiv:1805.02867, section 3.1.
/// @throws InvalidArgument if shapes differ, or for any other pair of different dtypes.
void merge(Partial& acc, const Partial& other);

/// Adds a part of a gradient to its accumulator: sum += part. Dtypes, threads and errors as
/// `merge`.
void add(const at::Tensor& sum, const at::Tensor& part);

/// Writes the final result from a partial over all keys: `out_BLHE` in the input dtype, rounded
/// once, and `lse_BLH` in the accumulator dtype. The result may have the memory of `partial`;
/// otherwise `partial` does not change.
///
/// Attention sinks: `sinks_H` has one logit per query head of the view, in the accumulator dtype. A
/// row is treated as if it also saw a key of that score whose value is 0 (gpt-oss; Xiao et al.
/// 2023, arXiv:2309.17453):
///
///   lse' = log(exp(lse) + exp(sink))        out' = out exp(lse - lse')
///
/// So a row that saw no key becomes (0, sink). Sinks join only here, or in attend_all() in place of
/// this call, so they count once however many partials there were.
/// @throws InvalidArgument if shapes differ, or the sinks do not have the dtype of lse.
void finish(const Partial& partial, at::Tensor& out_BLHE, at::Tensor& lse_BLH,
            const at::Tensor& sinks_H = {});

}  // namespace armillary::kernel

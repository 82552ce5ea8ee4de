// block_attention.h: attention of some queries over some keys, merged into a partial result.
//
// The interface of every kernel. A kernel knows nothing of ranks, strategies and layouts: it gets
// rows, the global positions they stand for, and a mask over positions.
//
//   q_BLHD, k_BLGD, v_BLGE --attend--> Partial (out_BLHE, lse_BLH)     once per block of keys
//                                         | finish (merge.h)
//   dout_BLHE, out_BLHE -----delta---> delta_BLH, lse_BLH of all keys
//                                         |
//   q, k, v, dout --------attend_grad-----+--> adds to dq_BLHD, dk_BLGD, dv_BLGE
//
// Where one call sees all keys of its queries, attend_all makes the result at once, and where one
// call has all of a gradient, attend_grad_all: nothing is cleared before or rounded after.
//
// Letters of shapes: B batch, L local tokens (queries and keys have their own count), H query
// heads, G KV heads, D head dim of Q and K, E value dim. Any of them but D and E may be 0, and
// tensors may be strided views, such as a range of heads of a slot. dtypes of q, k, v, dout: fp64,
// fp32, bf16 or fp16, all the same. Every product and sum, and every tensor a call updates, is in
// `accumulator(dtype)`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "armillary/kernel/merge.h"
#include "armillary/kernel/score.h"
#include "armillary/plan/mask.h"
#include "armillary/plan/runs.h"

namespace armillary::kernel {

/// fp64 for fp64, else fp32. @throws InvalidArgument for a dtype that no kernel takes.
at::ScalarType accumulator(at::ScalarType dtype);

/// Which KV head a query head of a view reads: global query head h reads KV head h / group_size.
/// Views may hold any ranges, so a group may be cut:
///   6 query heads, 3 KV heads, 2 ranks: rank 0 has q heads 0-2, KV heads 0-1; q head 2 reads KV 1.
struct HeadMap {
  std::int64_t first_q_head = 0;   ///< Global number of the view's query head 0.
  std::int64_t first_kv_head = 0;  ///< Global number of the view's KV head 0.
  std::int64_t group_size = 1;     ///< Query heads that share a KV head, over all ranks.

  /// Query heads of a view of `heads` that read KV head `kv_head` of the view; may be empty.
  plan::Interval q_heads_of(std::int64_t kv_head, std::int64_t heads) const;
};

/// What a kernel makes of pairs before it sees a tensor; only that kernel can read it.
class Prepared {
 public:
  virtual ~Prepared() = default;
};

/// The (query, key) pairs of a call: fixed by the plan, the same in every layer and every step.
/// What a score needs of positions and heads it finds here.
struct Pairs {
  plan::Runs q_runs;                 ///< Global positions of the query rows, in memory order.
  plan::Runs k_runs;                 ///< The same for the rows of K and V.
  const plan::Mask* mask = nullptr;  ///< Over all positions; required, outlives the call.
  HeadMap heads;
  /// Of `Kernel::prepare` for the same runs and mask, or null: then each call prepares for itself.
  std::shared_ptr<const Prepared> prepared = nullptr;
};

struct Inputs {
  at::Tensor q_BLHD;
  at::Tensor k_BLGD;
  at::Tensor v_BLGE;
  Score score;
};

/// What the gradient needs of the finished forward pass and of the layers above.
struct OutputGrads {
  at::Tensor dout_BLHE;  ///< Input dtype.
  at::Tensor lse_BLH;    ///< Of ALL keys, as `finish` wrote it, not of the keys of this call.
  at::Tensor delta_BLH;  ///< From `delta`.
};

/// What `finish` makes of a partial over all keys.
struct Result {
  at::Tensor out_BLHE;          ///< Input dtype.
  at::Tensor lse_BLH;           ///< Accumulators.
  at::Tensor max_logit_H = {};  ///< As of Partial.
};

/// Gradients: of attend_grad accumulators that calls add to, of attend_grad_all in the input dtype.
struct InputGrads {
  at::Tensor dq_BLHD;
  at::Tensor dk_BLGD;
  at::Tensor dv_BLGE;
  /// As if they had been cleared: attend_grad() then writes all of dq, or of dk and dv, and makes
  /// this false.
  bool dq_fresh = false;
  bool dkv_fresh = false;
};

/// For kernels: clears what is fresh, which is it no more.
void clear_fresh(Partial& partial);
void clear_fresh(InputGrads& grads);

/// A way to compute attention. Rules for every kernel, one test each in reference_test.cpp:
///
///   (1) keys split over any number of calls in any order give what one call gives, up to rounding;
///   (2) a row that sees no key is left alone: it stays (0, -inf), its gradient 0, never NaN;
///   (3) NaN and Inf of an input reach what can see them, nothing else, also not as 0 * NaN; a
///       dropped key is still seen;
///   (4) exp never overflows; a large score costs what rounding it or the lse costs:
///       |score| 2^-24 in fp32;
///   (5) parts without a visible pair cost nothing, wholly visible ones no mask work;
///   (6) the same call gives the same bits.
///
/// All of them hold with every feature of Score (score.h) on; features_test.cpp repeats them so.
///
/// Threads: calls from several threads at once are fine if they update different tensors; a call
/// uses ATen's intra-op threads of its thread. No autograd is recorded.
class Kernel {
 public:
  virtual ~Kernel() = default;

  /// False for a kernel that computes every Score and max_logit_H. Others get plain scores only:
  /// a feature they do not know is refused, never left out.
  virtual bool plain_only() const { return true; }

  /// What calls with these runs and this mask share, for `Pairs::prepared`; null if nothing. Heads
  /// do not matter; the mask must outlive the result.
  /// @throws InvalidArgument if there is no mask or positions lie outside of it.
  std::shared_ptr<const Prepared> prepare(const Pairs& pairs) const;

  /// Merges attention over these keys into `carry`, which holds the keys of earlier calls, and the
  /// largest visible score of each head into `carry.max_logit_H`, if there is one.
  /// No key may come twice. Cost: 2 (D + E) flops a visible pair and query head.
  /// @throws InvalidArgument on shapes, dtypes, devices, heads or positions that do not fit
  /// together, on a score that check_score() refuses, or one that this kernel does not compute.
  void attend(const Pairs& pairs, const Inputs& inputs, Partial& carry) const;

  /// Adds the gradients that flow through these pairs to `grads`.
  /// Paper: Dao et al. 2022, arXiv:2205.14135, algorithm 4. Cost: 2 (3 D + 2 E) flops a visible
  /// pair and query head. @throws InvalidArgument as `attend`.
  void attend_grad(const Pairs& pairs, const Inputs& inputs, const OutputGrads& upstream,
                   InputGrads& grads) const;

  /// clear, `attend` and `finish` (merge.h) in one, for queries of which no other call sees a key:
  /// writes every row of the result, rounded once. `sinks_H` as of `finish`; may be undefined.
  /// The result must not share memory with the inputs. @throws InvalidArgument as they do, by their
  /// names.
  void attend_all(const Pairs& pairs, const Inputs& inputs, const at::Tensor& sinks_H,
                  Result& result) const;

  /// The same of gradients to which no other call adds: writes all of `grads`, in the input dtype,
  /// rounded once. @throws InvalidArgument as `attend_grad`.
  void attend_grad_all(const Pairs& pairs, const Inputs& inputs, const OutputGrads& upstream,
                       InputGrads& grads) const;

 protected:
  // By the calls above, with sums of their own, unless a kernel knows better.
  virtual void run_attend_all(const Pairs& pairs, const Inputs& inputs, const at::Tensor& sinks_H,
                              Result& result) const;
  virtual void run_attend_grad_all(const Pairs& pairs, const Inputs& inputs,
                                   const OutputGrads& upstream, InputGrads& grads) const;

 private:
  virtual std::shared_ptr<const Prepared> run_prepare(const Pairs&) const { return nullptr; }
  virtual void run_attend(const Pairs& pairs, const Inputs& inputs, Partial& carry) const = 0;
  virtual void run_attend_grad(const Pairs& pairs, const Inputs& inputs,
                               const OutputGrads& upstream, InputGrads& grads) const = 0;
};

/// delta = rowsum(dout * out) over E, in the dtype of `delta_BLH` (the accumulator). `out_BLHE` is
/// the finished output, so sinks and dropout are in it. @throws InvalidArgument if shapes differ.
void delta(const at::Tensor& dout_BLHE, const at::Tensor& out_BLHE, at::Tensor& delta_BLH);

/// Adds to `dsinks_H` (fp64, cleared by the caller) what these rows contribute to the gradient of
/// the sinks that `finish` was given:  dsink -= exp(sink - lse) delta,  summed over B and L. Every
/// row must come once. `lse_BLH` as `finish` wrote it; a row that saw no key adds 0.
/// Cost: 3 B L H flops. @throws InvalidArgument if shapes differ.
void sinks_grad(const at::Tensor& sinks_H, const at::Tensor& lse_BLH, const at::Tensor& delta_BLH,
                at::Tensor& dsinks_H);

}  // namespace armillary::kernel

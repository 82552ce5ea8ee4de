// block_attention.h: the interface of every kernel: attention of some queries over some keys,
// merged into a partial result.
//
// A kernel knows nothing of ranks, strategies and layouts. It gets rows, the global positions of
// these rows, and a mask over global positions.
//
//   q_BLHD, k_BLGD, v_BLGE --attend--> Partial (out_BLHE, lse_BLH)     once per block of keys
//                                         | finish (merge.h)
//   dout_BLHE, out_BLHE -----delta---> delta_BLH, lse_BLH of all keys
//                                         |
//   q, k, v, dout --------attend_grad-----+--> adds to dq_BLHD, dk_BLGD, dv_BLGE
//
// If one call sees all keys of its queries, attend_all writes the final result in one call; if one
// call makes whole gradients, attend_grad_all does the same. Then nothing is cleared before and
// nothing rounded after.
//
// Letters of shapes: B batch, L local tokens (queries and keys have their own count), H query
// heads, G KV heads, D head dim of Q and K, E value dim. All but D and E may be 0. Tensors may be
// strided views, such as a range of heads of a slot. q, k, v and dout have one dtype: fp64, fp32,
// bf16 or fp16. Products, sums and the tensors that a call updates are in `accumulator(dtype)`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "armillary/kernel/merge.h"
#include "armillary/kernel/score.h"
#include "armillary/plan/mask/mask.h"
#include "armillary/plan/runs.h"

namespace armillary::kernel {

/// Accumulator dtype: fp64 for fp64, else fp32. @throws InvalidArgument for a dtype that no kernel
/// takes.
at::ScalarType accumulator(at::ScalarType dtype);

/// Maps the query heads of a view to its KV heads: global query head h reads global KV head
/// h / group_size. A view may have any range of heads, so it may cut a group:
///
///   6 query heads, 3 KV heads, 2 ranks: rank 0 has q heads 0-2, KV heads 0-1; q head 2 reads KV 1.
struct HeadMap {
  std::int64_t first_q_head = 0;   ///< global number of query head 0 of the view
  std::int64_t first_kv_head = 0;  ///< global number of KV head 0 of the view
  std::int64_t group_size = 1;     ///< query heads per KV head, counted over all ranks

  /// Query heads that read KV head `kv_head`, in a view of `heads` query heads; may be empty. All
  /// numbers are local to the view.
  plan::Interval q_heads_of(std::int64_t kv_head, std::int64_t heads) const;
};

/// State that a kernel derives from Pairs alone, before it sees a tensor, such as the block mask of
/// the CPU kernel. Only the kernel that made it can read it.
class Prepared {
 public:
  virtual ~Prepared() = default;
};

/// The (query, key) pairs of a call, by global positions and heads. The plan fixes them, so they
/// are the same in every layer and step.
struct Pairs {
  plan::Runs q_runs;                 ///< global positions of the query rows, in memory order
  plan::Runs k_runs;                 ///< the same for the rows of K and V
  const plan::Mask* mask = nullptr;  ///< over all positions; required, outlives the call
  HeadMap heads;
  /// Result of Kernel::prepare() for the same runs and mask. If it is null, the call prepares anew.
  std::shared_ptr<const Prepared> prepared = nullptr;
};

/// Inputs of forward and backward, in one dtype.
struct Inputs {
  at::Tensor q_BLHD;
  at::Tensor k_BLGD;
  at::Tensor v_BLGE;
  Score score;
};

/// Inputs of backward beside q, k and v: the gradient of the output, and two numbers per row that
/// the finished forward pass left.
struct OutputGrads {
  at::Tensor dout_BLHE;  ///< input dtype
  at::Tensor lse_BLH;    ///< over ALL keys of the row, as `finish` wrote it; accumulator
  at::Tensor delta_BLH;  ///< rowsum(dout * out), from delta() below; accumulator
};

/// Final result over all keys, as `finish` (merge.h) writes it.
struct AttentionOutput {
  at::Tensor out_BLHE;          ///< input dtype
  at::Tensor lse_BLH;           ///< accumulator
  at::Tensor max_logit_H = {};  ///< as in Partial
};

/// Gradients of the inputs. For attend_grad(), accumulators that calls add to; for
/// attend_grad_all(), results in the input dtype.
struct InputGrads {
  at::Tensor dq_BLHD;
  at::Tensor dk_BLGD;
  at::Tensor dv_BLGE;
  /// True: the memory counts as zero, whatever it holds. attend_grad() then writes every element of
  /// dq (or of dk and dv) and sets the flag to false.
  bool dq_init = false;
  bool dkv_init = false;
};

/// Helpers of kernels: if an `init` flag is true, these clear its accumulators and set it to false.
void clear_init(Partial& partial);
void clear_init(InputGrads& grads);

/// Everything of a call that a kernel may refuse, apart from its tensors.
struct CallShape {
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;
  bool plain = true;       ///< No feature of Score is on.
  bool max_logit = false;  ///< The largest logit is asked for.
};

/// An implementation of attention. Rules for every kernel, with one test each in
/// reference_test.cpp:
///
///   (1) keys may be split over any number of calls in any order: the result is that of one call,
///       up to rounding;
///   (2) a row that sees no key stays (0, -inf) and has gradient 0, never NaN;
///   (3) a NaN or Inf of an input reaches the rows that see it and no other, not even as 0 * NaN; a
///       key that dropout drops is still seen;
///   (4) exp never overflows; the error from a large score is that of rounding the score or the
///       log-sum-exp: |score| 2^-24 in fp32;
///   (5) parts without a visible pair cost nothing, wholly visible parts cost no mask work;
///   (6) the same call gives the same bits.
///
/// All rules hold with every feature of Score (score.h); features_test.cpp repeats the tests.
///
/// Threads: several threads may call at once if they update different tensors. A call uses ATen's
/// intra-op threads of the calling thread. Autograd records nothing.
class Kernel {
 public:
  virtual ~Kernel() = default;

  /// True: the kernel computes plain scores (Score::plain) and no max_logit_H. A call that asks for
  /// more is refused; a feature is never left out silently.
  virtual bool plain_only() const { return true; }

  /// Refuses calls that this kernel cannot compute, by everything that is known before there is a
  /// tensor. A plan is checked so before its first message, and the calls check it again.
  /// @throws InvalidArgument if a dim is out of range, or if the score has a feature or
  /// `max_logit` is asked for and the kernel is `plain_only`. `where` begins the text.
  void check(const char* where, const CallShape& shape) const;

  /// Prepares calls with these runs and this mask, for `Pairs::prepared`; null if this kernel has
  /// nothing to prepare. Heads do not matter. The mask must outlive the result.
  /// @throws InvalidArgument if there is no mask, or a position lies outside of it.
  std::shared_ptr<const Prepared> prepare(const Pairs& pairs) const;

  /// Merges attention over these keys into `carry`, the result over the keys of earlier calls. No
  /// key may come twice. If `carry.max_logit_H` is defined, raises it to the largest visible score
  /// of each head. Cost: 2 (D + E) flops per visible pair and query head.
  /// @throws InvalidArgument if shapes, dtypes, devices, heads or positions do not fit together, if
  /// check_score() refuses the score, or if this kernel does not compute it.
  void attend(const Pairs& pairs, const Inputs& inputs, Partial& carry) const;

  /// Adds the gradients that flow through these pairs to `grads`. `upstream` belongs to all keys of
  /// a row, so the pairs may be split over calls as in forward.
  /// Paper: Dao et al. 2022, arXiv:2205.14135, algorithm 4. Cost: 2 (3 D + 2 E) flops per visible
  /// pair and query head. @throws InvalidArgument as `attend`.
  void attend_grad(const Pairs& pairs, const Inputs& inputs, const OutputGrads& upstream,
                   InputGrads& grads) const;

  /// `clear`, `attend` and `finish` (merge.h) in one call, for queries that see all their keys in
  /// this call. Writes every row of the result, rounded once. `sinks_H` as in `finish`; may be
  /// undefined. The result must not share memory with the inputs. @throws InvalidArgument as those
  /// functions, with their names in the text.
  void attend_all(const Pairs& pairs, const Inputs& inputs, const at::Tensor& sinks_H,
                  AttentionOutput& result) const;

  /// `attend_grad` for gradients to which no other call adds. Writes every element of `grads`, in
  /// the input dtype, rounded once. @throws InvalidArgument as `attend_grad`.
  void attend_grad_all(const Pairs& pairs, const Inputs& inputs, const OutputGrads& upstream,
                       InputGrads& grads) const;

 protected:
  // The default computes in temporary accumulators with run_attend or run_attend_grad, then rounds.
  virtual void run_attend_all(const Pairs& pairs, const Inputs& inputs, const at::Tensor& sinks_H,
                              AttentionOutput& result) const;
  virtual void run_attend_grad_all(const Pairs& pairs, const Inputs& inputs,
                                   const OutputGrads& upstream, InputGrads& grads) const;

 private:
  /// The largest head and value dim; 0: any.
  virtual std::int64_t max_dim() const { return 0; }

  // Called with checked arguments. run_attend and run_attend_grad must honour the `init` flags; the
  // caller resets them.
  virtual std::shared_ptr<const Prepared> run_prepare(const Pairs&) const { return nullptr; }
  virtual void run_attend(const Pairs& pairs, const Inputs& inputs, Partial& carry) const = 0;
  virtual void run_attend_grad(const Pairs& pairs, const Inputs& inputs,
                               const OutputGrads& upstream, InputGrads& grads) const = 0;
};

/// delta = rowsum(dout * out) over E, in the dtype of `delta_BLH` (the accumulator). `out_BLHE` is
/// the finished output, which includes sinks and dropout. Cost: 2 B L H E flops.
/// @throws InvalidArgument if shapes or dtypes differ.
void delta(const at::Tensor& dout_BLHE, const at::Tensor& out_BLHE, at::Tensor& delta_BLH);

/// Adds the gradient of the sinks through these rows to `dsinks_H` (fp64, cleared by the caller):
///
///   dsink -= exp(sink - lse) delta      summed over B and L
///
/// Over all calls every row must come once. `lse_BLH` is as `finish` wrote it with the same sinks.
/// A row that saw no key adds 0. Cost: 3 B L H flops. @throws InvalidArgument if shapes differ.
void sinks_grad(const at::Tensor& sinks_H, const at::Tensor& lse_BLH, const at::Tensor& delta_BLH,
                at::Tensor& dsinks_H);

}  // namespace armillary::kernel

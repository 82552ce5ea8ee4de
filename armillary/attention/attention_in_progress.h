// attention_in_progress.h: a call of sequence_parallel_attention that takes its inputs one by one,
// so that their messages leave while the next input is still being projected.
//
//   shape --begin--> feed_k(k) --> feed_v(v) --> finish(q, k, v) --> out_BLHE, differentiable
//                          \           \ sends that need V too leave
//                           \ all ranks agree; sends that need K alone leave
//
// Calls that are given all inputs at once begin and finish alone. Shape letters are those of
// sequence_parallel_attention.h. Source: StarTrail (arXiv:2407.00611) hides its gather of Q, K, V
// like this.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/comm/communicator.h"

namespace armillary::attention {

/// Shape of a call on one rank, known before its tensors are made: q_BLHD is [batch, q_tokens,
/// heads, head_dim], k_BLGD [batch, kv_tokens, kv_heads, head_dim], v_BLGE [batch, kv_tokens,
/// kv_heads, value_dim]; all on the device of the rank.
struct AttentionShape {
  std::int64_t batch = 1;
  std::int64_t q_tokens = 0;  ///< Tokens of this rank, as kv_tokens are.
  std::int64_t kv_tokens = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;
  at::ScalarType dtype = at::kFloat;  ///< kDouble, kFloat, kBFloat16 or kHalf.

  bool operator==(const AttentionShape&) const = default;
};

/// The shape that these three have. @throws InvalidArgument if they do not fit each other.
AttentionShape attention_shape_of(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                  const at::Tensor& v_BLGE);

/// The kinds of calls, by their results besides the output, which is the same bits for all.
enum class CallKind : std::uint8_t {
  Attention,
  AttentionLse,  ///< The log-sum-exp, and the largest logits if they are asked for.
  /// KeptAttention, for a layer whose activations are not kept (DistFlashAttn, arXiv:2310.03294;
  /// StarTrail, arXiv:2407.00611). No graph.
  Keep,
  /// The output of a Keep with the same inputs and options again, now differentiable. It attends to
  /// nothing, and sends only if the strategy trades heads for tokens.
  Replay,
  /// The tensors that Attention::backward needs, and the largest logits if they are asked for. No
  /// graph: for callers that have an autograd of their own, such as the dispatcher of PyTorch.
  Functional,
  Backward,  ///< A backward of its own, for records of calls alone.
};

/// Output and log-sum-exp that a recomputed layer keeps for backward, in the form in which the
/// strategy's backward finds them: by head group, if heads are traded for tokens. No graph.
struct KeptAttention {
  at::Tensor out;
  at::Tensor lse;
};

/// The tensors that forward leaves for backward. Strategies that trade heads for tokens keep all
/// but the log-sum-exp in another form than that of the caller.
struct SavedAttention {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  at::Tensor out;
  at::Tensor lse;  ///< Accumulator dtype.
};

/// For each of SavedAttention, in its order: false if the saved tensor is the caller's own input or
/// output.
using IsOwn = std::array<bool, 5>;

/// Results of a call; those that its kind does not have are undefined. Only the output is
/// differentiable.
struct AttentionResults {
  at::Tensor out_BLHE;
  /// For AttentionLse, of every query row: natural log, accumulator dtype, -inf for a row that sees
  /// no key; of undropped scores, a sink included.
  at::Tensor lse_BLH = {};
  /// For AttentionLse and Functional with return_max_logit: the largest visible score of each query
  /// head over the whole sequence and batch, sinks not counted, in the accumulator dtype; the same
  /// bits on every rank; -inf if there is none.
  at::Tensor max_logit_H = {};
  KeptAttention kept_output = {};  ///< For Keep.
  SavedAttention saved = {};       ///< For Functional.
  IsOwn is_own = {};               ///< For Functional.
};

struct AttentionCall;

/// One call of attention on one rank, which Attention::begin has begun. Every rank of the group
/// begins it with the same options, in the same order.
///
///   auto call = Attention(comm, options).begin(CallKind::Attention, shape);
///   call.feed_k(k_BLGD);  // travels while V is projected
///   call.feed_v(v_BLGE);  // travels while Q is projected
///   at::Tensor out_BLHE = call.finish(q_BLHD, k_BLGD, v_BLGE).out_BLHE;
///
/// (1) Output, gradients and errors are those of a call that is given all at once, bit for bit; (2)
/// messages start as soon as all inputs of their batch are fed: K alone if it travels alone
/// (StarTrail, Ulysses), K with V if the two travel together (a ring); (3) a call that throws, or
/// is dropped or destroyed before it has finished, aborts the group, so no peer waits for it; (4)
/// between begin and finish the communicator takes no other call of attention, nor a backward pass.
///
/// Threads: that of the rank. `comm` must outlive the call and its backward pass; the tensors that
/// were fed must not change before the end.
class AttentionInProgress {
 public:
  AttentionInProgress(AttentionInProgress&& other) noexcept;
  AttentionInProgress& operator=(AttentionInProgress&&) = delete;
  ~AttentionInProgress();

  /// Takes the values of k or v ahead of the rest, once each, with or without a graph, and starts
  /// the messages that they complete. The first of the two waits until all ranks agree, so ranks
  /// that were asked for different things, and a wrong plan, are refused here.
  /// @throws as sequence_parallel_attention; InvalidArgument if the shape or dtype is not that of
  /// `begin`.
  void feed_k(const at::Tensor& k_BLGD);
  void feed_v(const at::Tensor& v_BLGE);

  /// Takes q, and k and v unless they were fed, and runs to the end; once. Gradients reach the
  /// three tensors that are given here; k and v must lie in the memory that was fed. If nothing was
  /// fed, ops that need no message are computed while the ranks agree.
  /// @throws InvalidArgument if k or v is not the tensor that was fed, or it, or a tensor whose
  /// view it is, was written to since, or the shape of q is not that of `begin`; CommError as the
  /// communicator.
  AttentionResults finish(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                          const at::Tensor& v_BLGE);

  /// Gives up a call that is in progress: aborts the group for this reason, with which feed and
  /// finish throw CommError from now on, and needs `comm` no more. Does nothing to one that is
  /// over.
  void drop(const std::string& reason);

  /// Whether it takes nothing more: it has finished, or was dropped.
  bool is_over() const;

  /// @throws CommError, with the reason, if the call was dropped; InvalidArgument if it has
  /// finished.
  void check_in_progress() const;

 private:
  friend class Attention;
  static AttentionInProgress begin(CallKind kind, const AttentionShape& shape,
                                   comm::Communicator& comm, const AttentionOptions& options,
                                   const KeptAttention& kept_output);
  explicit AttentionInProgress(std::shared_ptr<AttentionCall> call);
  std::shared_ptr<AttentionCall> call_;  ///< The graph of the call holds it too.
};

}  // namespace armillary::attention

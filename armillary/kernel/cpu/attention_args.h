// attention_args.h: arguments of attention over row blocks on a CPU, without tensors: pointers,
// strides and a BlockMask.
//
// The contract is that of kernel::Kernel (block_attention.h); kernel::cpu_kernel() is the adapter
// from tensors to these structs.
//
//   BlockMask (mask, positions) --.
//   IsaKernels (instruction set) -+--> attend, attend_grad
//   Team (threads) ---------------'
//
// Strides are in elements; the elements of a row are neighbours. Results have the same bits for any
// number of threads: a query row block (forward) or key row block (backward) is one task, and where
// several tasks add to the same rows they do so in the order of the row blocks.
//
// Memory beyond the arguments is thread-local, kept for the next call. The calling thread holds
// packed keys (forward) or packed queries (backward): at most kPackedFloats floats, or one row
// block if that is more. Each working thread holds scratch below 3 MiB. Rounded results (attend_all
// and attend_grad_all of bf16 and fp16) also need fp32 accumulators on the calling thread:
//
//   - dq of all query heads that are packed together (backward);
//   - if the packed rows of one KV head exceed kPackedFloats: about kRestingFloats for out, or for
//     dk and dv, and at least one row block.
#pragma once

#include <cstdint>

#include "armillary/kernel/cpu/block_mask.h"
#include "armillary/kernel/cpu/isa_kernels.h"
#include "armillary/kernel/dropout.h"

namespace armillary::kernel::cpu {

/// Floats that are packed at once: 8 MiB, a share of the last cache level.
inline constexpr std::int64_t kPackedFloats = std::int64_t{1} << 21;

/// Floats of accumulators that are kept between the stages of a KV head: 4 MiB.
inline constexpr std::int64_t kRestingFloats = std::int64_t{1} << 20;

/// A tensor [batch, rows, heads, width] that is only read; its dtype is given by the call.
struct Input {
  const void* data = nullptr;
  std::int64_t batch = 0;
  std::int64_t row = 0;
  std::int64_t head = 0;
};
/// An fp32 tensor [batch, rows, heads, width] that a call reads and writes: an accumulator.
struct Output {
  float* data = nullptr;
  std::int64_t batch = 0;
  std::int64_t row = 0;
  std::int64_t head = 0;
};

/// A tensor [batch, rows, heads, width] that is only written: each element once, rounded once to
/// the dtype of the tensor.
struct RoundedOutput {
  void* data = nullptr;
  Element element = Element::Float32;
  std::int64_t batch = 0;
  std::int64_t row = 0;
  std::int64_t head = 0;
};

/// Threads that work on a call. `run(threads, work, context)` calls work(context) `threads` times,
/// on any threads and in any order, and returns when all of them have returned. Drivers call `run`
/// only for two threads or more, so one thread needs no `run`.
struct Team {
  int threads = 1;
  void (*run)(int threads, void (*work)(void*), void* context) = nullptr;
};

/// Arguments that forward and backward share: the shape, the features of the score (score.h), and
/// q, k, v. All pointers must stay valid during the call.
struct AttentionArgs {
  /// Functions of one instruction set; required.
  const IsaKernels* isa = nullptr;
  /// Visible pairs of row blocks, cut to the limits of the pass and of its GemmOps (forward_limits,
  /// backward_limits); required.
  const BlockMask* block_mask = nullptr;
  Team team;
  Element element = Element::Float32;  ///< dtype of q, k, v and dout
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  /// Widths of rows: D of q and k, E of v and out.
  int head_dim = 0;   ///< 1 to kMaxDim
  int value_dim = 0;  ///< 1 to kMaxDim
  /// Head numbers are local to the view; these three map them to global heads as kernel::HeadMap
  /// does. Global query head h reads global KV head h / group_size.
  std::int64_t first_q_head = 0;
  std::int64_t first_kv_head = 0;
  std::int64_t group_size = 1;
  double scale = 1;
  double softcap = 0;               ///< 0: no softcap
  const float* slopes_H = nullptr;  ///< ALiBi slopes by GLOBAL query head; null: none
  Dropout dropout;
  Input q;
  Input k;
  Input v;
};

inline constexpr int kMaxDim = 256;

/// Result over the keys of earlier calls, into which attend() merges the keys of this one
/// (kernel::Partial). A row that saw no key is (0, -inf).
struct Carry {
  Output out;
  Output lse;                    ///< rows of one element
  float* max_logit_H = nullptr;  ///< raised to the largest visible score of each head; may be null
  bool init = false;             ///< true: out and lse are written as if they had been (0, -inf)
};

/// Results of attend_all(), in which every query sees all its keys in one call. Every row is
/// written.
struct AllKeys {
  RoundedOutput out;
  Output lse;                      ///< only written
  const float* sinks_H = nullptr;  ///< attention sink logits by head of the call; may be null
  float* max_logit_H = nullptr;    ///< as in Carry
};

/// Inputs of backward beside q, k and v. lse is that of all keys of the row; delta is rowsum(dout *
/// out). Both are only read.
struct RowUpstream {
  Input dout;
  Output lse;
  Output delta;
};

/// fp32 gradients that attend_grad() adds to.
struct Grads {
  Output dq;
  Output dk;
  Output dv;
  bool dq_init = false;   ///< true: dq is initialised, not added to
  bool dkv_init = false;  ///< the same for dk and dv
};

/// Gradients of attend_grad_all(), to which no other call adds. Every row is written.
struct AllGrads {
  RoundedOutput dq;
  RoundedOutput dk;
  RoundedOutput dv;
};

/// Merges the visible keys of `call` into the carry, as kernel::Kernel::attend.
///
/// (1) The block mask was made for forward_limits(forward_gemm_ops(call)) and has at least one
/// visible pair. (2) Query row blocks without a visible pair are left alone, or written as (0,
/// -inf) if the carry is `init`. (3) The call returns when all threads of the team are done.
/// Arguments are not checked: the adapter did that.
void attend(const AttentionArgs& call, const Carry& carry);
/// Writes attention over all keys, with sinks and rounded once. Rules as for attend().
void attend_all(const AttentionArgs& call, const AllKeys& results);
/// Adds the gradients of the visible pairs. The block mask was made for
/// backward_limits(backward_gemm_ops(call)); other rules as for attend().
void attend_grad(const AttentionArgs& call, const RowUpstream& upstream, const Grads& grads);
/// Writes the gradients, rounded once. Rules as for attend_grad().
void attend_grad_all(const AttentionArgs& call, const RowUpstream& upstream,
                     const AllGrads& results);

/// GEMM functions that a pass of `call` uses, chosen by its dtype and the alignment of its keys.
/// The block mask of the call must be made for them; `call.block_mask` itself may still be null.
const GemmOps& forward_gemm_ops(const AttentionArgs& call);
const GemmOps& backward_gemm_ops(const AttentionArgs& call);

/// Rows of a query and of a key row block, at most, for make_block_mask().
MaskTileLimits forward_limits(const GemmOps& gemm);
MaskTileLimits backward_limits(const GemmOps& gemm);

}  // namespace armillary::kernel::cpu

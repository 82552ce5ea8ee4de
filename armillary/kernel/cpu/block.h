// block.h: block attention on a CPU, without tensors: pointers, strides and a schedule.
//
// The contract is that of kernel::Kernel (block_attention.h), of which kernel::cpu_kernel() is the
// adapter.
//
//   Schedule (mask, positions) --.
//   Tiles (instruction set) -----+--> attend, attend_grad
//   Team (threads) --------------'
//
// Strides are in elements; elements of a row are neighbours. Results are the same bits for any
// number of threads: a block of queries (forward) or keys (backward) is one task, and sums of
// several tasks are taken in the order of the blocks.
//
// Memory beyond the arguments, per calling thread, kept for the next call: packed keys (forward) or
// queries (backward) of at most kPackedFloats floats, and below 3 MiB for each thread. Results that
// are rounded (attend_all, attend_grad_all of bf16 and fp16) have sums in fp32 beside it: where
// what is packed of one KV head is more than that, about kRestingFloats (at least one block of the
// other side), and backward also dq of that head's queries; else dq of what is packed.
#pragma once

#include <cstdint>

#include "armillary/kernel/cpu/schedule.h"
#include "armillary/kernel/cpu/tiles.h"
#include "armillary/kernel/dropout.h"

namespace armillary::kernel::cpu {

/// What is packed at once: 8 MiB, a share of the last cache level.
inline constexpr std::int64_t kPackedFloats = std::int64_t{1} << 21;

/// Sums of rows that wait for the next of several rounds: 4 MiB.
inline constexpr std::int64_t kRestingFloats = std::int64_t{1} << 20;

/// [batch, rows, heads, width] by strides.
struct Input {
  const void* data = nullptr;
  std::int64_t batch = 0;
  std::int64_t row = 0;
  std::int64_t head = 0;
};
struct Output {
  float* data = nullptr;
  std::int64_t batch = 0;
  std::int64_t row = 0;
  std::int64_t head = 0;
};

/// What is only written, rounded once.
struct Result {
  void* data = nullptr;
  Element element = Element::Float32;
  std::int64_t batch = 0;
  std::int64_t row = 0;
  std::int64_t head = 0;
};

/// Threads that work on a call: `run(threads, work, context)` calls work(context) `threads` times,
/// on as many threads as it likes, in any order, and returns when all have returned.
struct Team {
  int threads = 1;
  void (*run)(int threads, void (*work)(void*), void* context) = nullptr;
};

/// What both passes are told of a call.
struct Call {
  const Tiles* isa = nullptr;
  const Schedule* schedule = nullptr;
  Team team;
  Element element = Element::Float32;  ///< Of q, k, v and dout.
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  int head_dim = 0;   ///< 1 to kMaxDim
  int value_dim = 0;  ///< the same
  // HeadMap, and score.h
  std::int64_t first_q_head = 0;
  std::int64_t first_kv_head = 0;
  std::int64_t group_size = 1;
  double scale = 1;
  double softcap = 0;               ///< 0 is none.
  const float* slopes_H = nullptr;  ///< Of global heads.
  Dropout dropout;
  Input q;
  Input k;
  Input v;
};

inline constexpr int kMaxDim = 256;

struct Carry {
  Output out;
  Output lse;                    ///< Rows of one element.
  float* max_logit_H = nullptr;  ///< May be null.
  bool fresh = false;            ///< As of kernel::Partial.
};

/// Rows that see all their keys in one call.
struct AllKeys {
  Result out;
  Output lse;                      ///< Only written.
  const float* sinks_H = nullptr;  ///< Of the heads of the call; may be null.
  float* max_logit_H = nullptr;    ///< May be null.
};

struct Upstream {
  Input dout;
  Output lse;  ///< Read only.
  Output delta;
};

struct Grads {
  Output dq;
  Output dk;
  Output dv;
  bool dq_fresh = false;  ///< As of kernel::InputGrads.
  bool dkv_fresh = false;
};

/// Gradients that come from one call.
struct AllGrads {
  Result dq;
  Result dk;
  Result dv;
};

/// kernel::Kernel::attend and attend_grad, attend_all and attend_grad_all. Require a schedule made
/// for the block sizes of the pass and set, of which a pair is visible.
void attend(const Call& call, const Carry& carry);
void attend_all(const Call& call, const AllKeys& results);
void attend_grad(const Call& call, const Upstream& upstream, const Grads& grads);
void attend_grad_all(const Call& call, const Upstream& upstream, const AllGrads& results);

/// Of all tensors of a row op; log-sum-exps and deltas have rows of one element.
struct RowShape {
  std::int64_t batch = 0;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  int width = 0;
};

/// kernel::merge; the other side is only read.
struct MergeCall {
  RowShape shape;
  Output out;
  Output lse;
  Input other_out;
  Element other_element = Element::Float32;
  Output other_lse;
};
void merge(const Tiles& isa, const Team& team, const MergeCall& call);

/// kernel::add.
struct AddCall {
  RowShape shape;
  Output sum;
  Input part;
  Element part_element = Element::Float32;
};
void add(const Tiles& isa, const Team& team, const AddCall& call);

/// kernel::delta.
struct DeltaCall {
  RowShape shape;
  Input dout;
  Input out;
  Element element = Element::Float32;  ///< Of both.
  Output delta;
};
void delta(const Tiles& isa, const Team& team, const DeltaCall& call);

/// How a pass of a call is multiplied, which its schedule must be made for; needs none itself.
const Products& forward_products(const Call& call);
const Products& backward_products(const Call& call);

PatchLimits forward_limits(const Products& products);
PatchLimits backward_limits(const Products& products);

}  // namespace armillary::kernel::cpu

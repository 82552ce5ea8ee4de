// words.h: the vocabulary of attention: its tensors, and the kinds of its ops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "armillary/plan/program/vocabulary.h"

namespace armillary::plan {

/// The tensor that a tile is a part of. Lse is the log-sum-exp of a query's scores, Delta is
/// rowsum(dout * out), D.. are gradients. Partial are Out and Lse over some of the keys, and DQ, DK
/// and DV summed over some of the pairs. Tiles that are not partial are in the input dtype; Lse and
/// Delta always in accumulator precision, without a dim. Under TransferDtype::Input partial tiles
/// travel narrow (`travels_narrow`).
enum class Tensor : std::uint8_t { Q, K, V, Out, Lse, DOut, Delta, DQ, DK, DV };
TensorTag word_tag(Tensor);
/// True for K, V, DK, DV, which have key blocks and KV heads.
constexpr bool is_kv(Tensor tensor) {
  return tensor == Tensor::K || tensor == Tensor::V || tensor == Tensor::DK || tensor == Tensor::DV;
}

/// The sides of attention: indices into Vocabulary::sides and Op::init.
inline constexpr std::size_t kQSide = 0;
inline constexpr std::size_t kKvSide = 1;

/// The kinds of ops, with the names of their operands in the order of `operands`. A bar stands
/// between the operands that an op only reads and those that it writes.
enum class OpKind : std::uint8_t {
  Send,        ///< src -> peer: one message of all views, one after the other
  Recv,        ///< dst <- peer
  Attend,      ///< q k v | out lse: merges attention of q over k, v into the partial (out, lse)
  AttendGrad,  ///< q k v dout lse delta | dq dk dv: adds the gradients of those pairs
  Merge,       ///< out lse | part_out part_lse: merges the second partial result into the first
  Add,         ///< acc | part: acc += part, for gradients
  /// dst | src: same blocks and heads; casts an accumulator to the input dtype. May be in place:
  /// both whole tiles of one slot and dtype.
  Copy,
  Clear,  ///< dst: becomes the empty sum: 0, or -inf for lse
  Delta,  ///< delta | dout out lse: rowsum(dout * out); adds its rows to the gradient of sinks
  /// out lse | part_out part_lse: a partial over all keys becomes the result. Each may be in place.
  Finish,
  AttendAll,      ///< q k v | out lse: attention over all keys of q, finished, in one kernel call
  AttendGradAll,  ///< q k v dout lse delta | dq dk dv: attend_grad from nothing, rounded; one call
};
KindTag word_tag(OpKind);
static_assert(kSend == OpKind::Send && kRecv == OpKind::Recv);
inline constexpr std::size_t kOpKinds = static_cast<std::size_t>(OpKind::AttendGradAll) + 1;

/// The tables of all this (operands.h).
const Vocabulary& attention_words();

inline bool attends(const Op& op) {
  return op.kind == OpKind::Attend || op.kind == OpKind::AttendAll;
}
inline bool attends_grad(const Op& op) {
  return op.kind == OpKind::AttendGrad || op.kind == OpKind::AttendGradAll;
}

/// The operands of an op, in the order of its views. Code that needs a certain operand takes its
/// place from the constants of operands.h: `op.views[AttendOperand::kOut]`.
std::span<const Operand> operands(OpKind kind);
/// As Vocabulary has them.
bool takes(OpKind kind, std::size_t views);
Access access(const Op& op, std::size_t v);
std::string operand_name(OpKind kind, std::size_t v);

/// Names as they are printed and written in JSON: `dq`, `attend_grad_all`.
std::string_view to_string(Tensor tensor);
std::string_view to_string(OpKind kind);

}  // namespace armillary::plan

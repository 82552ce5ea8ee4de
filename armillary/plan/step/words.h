// words.h: the vocabulary of a training step: its tensors, and the kinds of its ops. Collectives
// are joint ops (plan/program/vocabulary.h).
//
// Blocks of weight, state and grad are parts of units (shape.h), heads are shards. Blocks of x and
// dx are borders, heads are microbatches: x of border u goes into unit u, dx of border u comes out
// of its backward. A buffer is the device's copy of a state that rests on the host.
#pragma once

#include <cstdint>

#include "armillary/plan/program/measures.h"
#include "armillary/plan/program/vocabulary.h"
#include "armillary/plan/step/shape.h"

namespace armillary::plan::step {

/// Norm is the sum of squares of all gradients.
enum class StepTensor : std::uint8_t { Weight, State, Grad, X, Dx, Loss, Norm, Buffer };
TensorTag word_tag(StepTensor);

/// The sides: indices into Vocabulary::sides and Op::init.
inline constexpr std::size_t kUnitSide = 0;
inline constexpr std::size_t kBorderSide = 1;

/// The kinds of ops, with their operands. A bar stands between those that an op only reads and
/// those that it writes; u: it updates them.
enum class StepOp : std::uint8_t {
  Send,  ///< These two are in no step.
  Recv,
  Gather,         ///< mine | all: the whole unit of the shards of all ranks
  GatherInPlace,  ///< u all: the same, of the shards that lie in it; of values or gradients
  Forward,        ///< weight x | u y: a unit on a microbatch, with values of one unit
  Loss,           ///< y | dy, u loss
  Backward,       ///< weight x dy | u dx, u grad
  Release,        ///< | dst: its values are gone, its memory is free
  AllReduce,      ///< u sum: waited for at once, so no later op of the rank is beside it
  ReduceScatter,  ///< all | u mine: adds the sum over the ranks of the rank's own shard
  ReduceInPlace,  ///< u all: the rank's own shard becomes the sum, the others nothing
  Norm,           ///< grad | u norm: adds the squares
  Update,         ///< grad norm | u weight, u state: clips, AdamW; the state, or its buffer
  // Runs of a unit that uses no values.
  ForwardPlain,   ///< x | y
  BackwardPlain,  ///< x dy | dx
  Move,           ///< from | to: a state into a buffer, or a buffer back, which is then free
};
KindTag word_tag(StepOp);

const Vocabulary& step_words();

/// Sizes of the tensors of a step, fp32. A shard counts as the largest one; borders and numbers are
/// without size (bytes.h has exact bytes).
Measures step_measures(const StepTables& tables);

// Places of operands in Op::views. The operand of a kind with one is at 0.
struct GatherOperand {
  static constexpr std::size_t kAll = 0, kMine = 1;
};
struct ForwardOperand {
  static constexpr std::size_t kWeight = 0, kX = 1, kY = 2;
};
struct LossOperand {
  static constexpr std::size_t kY = 0, kDy = 1, kLoss = 2;
};
struct BackwardOperand {
  static constexpr std::size_t kWeight = 0, kX = 1, kDy = 2, kDx = 3, kGrad = 4;
};
struct ReduceScatterOperand {
  static constexpr std::size_t kMine = 0, kAll = 1;
};
struct ForwardPlainOperand {
  static constexpr std::size_t kX = 0, kY = 1;
};
struct BackwardPlainOperand {
  static constexpr std::size_t kX = 0, kDy = 1, kDx = 2;
};
struct NormOperand {
  static constexpr std::size_t kGrad = 0, kNorm = 1;
};
struct UpdateOperand {
  static constexpr std::size_t kWeight = 0, kState = 1, kGrad = 2, kNorm = 3;
};
struct MoveOperand {
  static constexpr std::size_t kTo = 0, kFrom = 1;
};

}  // namespace armillary::plan::step

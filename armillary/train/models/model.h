// model.h: the interface of models to the trainer and the estimate. A model knows nothing of ranks,
// recipes or optimizers: attention over the whole sequence is a function that it is given
// (attend.h).
//
//   B batch, L tokens of this rank
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "armillary/sim/model_cost.h"
#include "armillary/train/models/attend.h"
#include "armillary/train/models/recompute.h"

namespace armillary::train {

/// This rank's tokens of a sequence, in the order of its shard.
struct TrainingBatch {
  at::Tensor tokens_BL;  ///< int64.
  at::Tensor labels_BL;  ///< int64; kIgnoredLabel (data.h) for a token without a target.
};

// Cost of a model, counted from its options alone. The estimate, the reported flops and
// `armillary advise` with a recipe have no other formula of a model.
using sim::ModelAttention;
using sim::ModelCost;

/// A replica on one rank. Its parameters are fp32 leaves, equal on all ranks. Threads: that of the
/// rank.
class Model {
 public:
  virtual ~Model() = default;

  /// All parameters, in an order that is the same on every rank.
  virtual std::vector<at::Tensor> parameters() const = 0;

  /// Their names in checkpoints, in the same order, each its own: by default their numbers.
  virtual std::vector<std::string> parameter_names() const;

  /// The loss summed over this rank's tokens: a scalar with a graph. The loss of the sequence is
  /// its sum over the ranks. positions_L int64: the place of each token in the whole sequence. L
  /// may be 0; the model must call attention even then, because the call is collective.
  virtual at::Tensor loss(const TrainingBatch& batch, const Attends& attends,
                          const at::Tensor& positions_L) = 0;

  virtual ModelCost cost() const = 0;

  /// Tokens and labels must be below it; the largest number if the model takes any.
  virtual std::int64_t vocab_size() const { return std::numeric_limits<std::int64_t>::max(); }
};

}  // namespace armillary::train

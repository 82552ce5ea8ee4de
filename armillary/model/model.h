// model.h: the interface of models to the trainer and the estimate. A model is a list of units,
// such as an embedding, layers and a head, each run with weights that it is given. It knows nothing
// of ranks, recipes, data or optimizers: attention over the whole sequence is a function that it is
// given too (attend.h).
//
//   Inputs --> unit 0 --x--> unit 1 --x--> .. --> last unit: the loss, or without labels the logits
//               ^ Weights     ^ Weights
//
//   B batch, L tokens of this rank
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "armillary/model/attend.h"
#include "armillary/model/expert_parallel.h"
#include "armillary/model/fields.h"
#include "armillary/model/parameter.h"
#include "armillary/model/recompute.h"
#include "armillary/model/tensor_parallel.h"
#include "armillary/model/weights.h"
#include "armillary/predict/cost/model.h"

namespace armillary::model {

/// The shard of one or several sequences that all units of a pass are given.
struct ModelInputs {
  Fields batch;            ///< Each [1, L, ..], in the order of the shard. L may be 0.
  at::Tensor positions_L;  ///< int64: the place of each token in its own whole sequence.
  Attends attends;  ///< Collective, so also to be called where L is 0. Knows which tokens meet.
  /// The ranks along tp, which are given the same inputs and each its ranges of the parameters
  /// (range_of). A model may cut the L tokens over them between units. Null: this rank alone.
  std::shared_ptr<TensorParallel> tensor_parallel = {};
  /// The ranks along ep, each with its experts of parameters that have them and with tokens of its
  /// own. Null: this rank alone.
  std::shared_ptr<ExpertParallel> expert_parallel = {};
  SequencesOfPass sequences = {};  ///< Those of the L tokens.

  /// The tokens of the pass as they are cut. One rank is as none.
  TokenShards token_shards() const;
};

/// A model of one rank. Threads: that of the rank.
class Model {
 public:
  virtual ~Model() = default;

  /// Names of the units, in the order in which they run; the same on every rank, like parameters().
  virtual std::vector<std::string> units() const = 0;

  /// Parameters of all units, each name once.
  virtual std::vector<Parameter> parameters() const = 0;

  /// Runs a unit on the output of the one before, or on an undefined tensor if it is the first.
  /// The last one gives the loss summed over this rank's tokens: a scalar with a graph. The loss of
  /// the sequence is its sum over the ranks, along tp too: each counts its part of the L tokens.
  /// Backward begins with the same factor on all ranks. Gradients are then partial over the ranks
  /// that share the tokens, and along tp as copies_along_tp() says. `weights`: the parameters that
  /// are of this unit.
  virtual at::Tensor run(int unit, const Weights& weights, const at::Tensor& x,
                         const ModelInputs& inputs) = 0;

  /// The fields that it reads, which every sequence of its data must have. The first is what tokens
  /// are made of.
  virtual std::vector<std::string> fields() const { return {kTokens, kLabels}; }

  /// Number of terms of the loss at these tokens of a sequence, each [L, ..]; the loss of a step is
  /// divided by that of all its tokens.
  virtual std::int64_t targets(const Fields& tokens) const { return targets_of(tokens); }

  /// Counted from its options alone. The estimate, the reported flops and `armillary advise` with a
  /// recipe have no other formula of a model.
  virtual cost::ModelCost cost() const = 0;

  /// Tokens and labels must be below it; the largest number if the model takes any.
  virtual std::int64_t vocab_size() const { return std::numeric_limits<std::int64_t>::max(); }
};

/// Runs all units, each with the weights that `use` gives for its number.
at::Tensor run_units(Model& model, const std::function<Weights(int unit)>& use,
                     const ModelInputs& inputs);

}  // namespace armillary::model

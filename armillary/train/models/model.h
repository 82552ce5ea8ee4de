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

#include "armillary/train/models/attend.h"
#include "armillary/train/models/recompute.h"

namespace armillary::train {

/// This rank's tokens of a sequence, in the order of its shard.
struct TrainingBatch {
  at::Tensor tokens_BL;  ///< int64.
  at::Tensor labels_BL;  ///< int64; kIgnoredLabel (data.h) for a token without a target.
};

/// The attention of a model: `layers` calls in a pass, all of one shape.
struct ModelAttention {
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
};

/// Bytes per token of activations, by the time that they live.
struct TokenBytes {
  std::int64_t layer = 0;     ///< Kept from forward to backward for each layer.
  std::int64_t input = 0;     ///< Input of a layer, which every policy keeps.
  std::int64_t output = 0;    ///< Output and log-sum-exp of attention, kept by AttentionOutput.
  std::int64_t backward = 0;  ///< The most that the backward of one layer allocates.
  std::int64_t loss = 0;      ///< Held by the loss for every token.
  std::int64_t chunk = 0;     ///< Held by the loss for each of `loss_chunk_tokens` tokens.
};

/// Cost of a model, counted from its options alone. The estimate and the reported flops have no
/// other formula of a model.
struct ModelCost {
  std::int64_t parameters = 0;
  /// Parameters of matrices that multiply every token: forward takes 2 flops per token and such
  /// parameter, backward 4.
  std::int64_t matmul_parameters = 0;
  /// The part of them that is in layers, whose products recomputation repeats.
  std::int64_t layer_matmul_parameters = 0;
  ModelAttention attention;
  TokenBytes bytes;
  std::int64_t loss_chunk_tokens = 1;

  /// Floating point operations of a step, forward and backward: 6 per token and matrix parameter,
  /// and 12 D per visible pair of each query head (2 products of D forward, 4 backward; 2 flops per
  /// element). Recomputed scores and masked pairs do not count.
  double flops(std::int64_t tokens, std::int64_t visible_pairs) const;

  /// Operations that a policy repeats in a step: the products of the layers, and attention unless
  /// its output is kept.
  double flops_again(Recompute policy, std::int64_t tokens, std::int64_t visible_pairs) const;

  /// Approximate bytes of activations of a rank with so many tokens of one sequence: those kept
  /// from forward to backward, and the most that the loss or the backward of one layer holds beside
  /// them.
  std::int64_t activation_bytes(Recompute policy, std::int64_t tokens) const;
};

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

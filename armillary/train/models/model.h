// model.h: what the trainer and the estimate know of a model. A model knows nothing of ranks,
// recipes or optimizers: attention over the whole sequence is a function that it is given
// (attend.h).
//
//   B batch, L tokens of this rank
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "armillary/train/models/attend.h"
#include "armillary/train/models/recompute.h"

namespace armillary::train {

/// This rank's tokens of a sequence, in the order of its shard.
struct Batch {
  at::Tensor tokens_BL;  ///< int64.
  at::Tensor labels_BL;  ///< int64; kIgnoredLabel (data.h) counts nothing.
};

/// The attention of a model: `layers` calls a pass, all of one shape.
struct ModelAttention {
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
};

/// Bytes for one token of the parts of a step that live at the same time.
struct TokenBytes {
  std::int64_t layer = 0;     ///< Kept of a layer from forward to backward.
  std::int64_t input = 0;     ///< Of a layer.
  std::int64_t output = 0;    ///< Attention's out and log-sum-exp.
  std::int64_t backward = 0;  ///< The most that the backward of a layer makes.
  std::int64_t loss = 0;      ///< Held by the loss for every token.
  std::int64_t chunk = 0;     ///< Held by the loss for each of `loss_chunk_tokens` tokens.
};

/// What a model takes, counted from its options alone: plans and prices need nothing else of it.
struct ModelCost {
  std::int64_t parameters = 0;
  /// Those that multiply every token: forward takes 2 flops per token and such parameter, backward
  /// 4.
  std::int64_t matmul_parameters = 0;
  std::int64_t layer_matmul_parameters = 0;  ///< Of these, those of layers: what a policy repeats.
  ModelAttention attention;
  TokenBytes bytes;
  std::int64_t loss_chunk_tokens = 1;

  /// Floating point operations of a step, forward and backward: 6 per token and matrix parameter,
  /// 12 D per visible pair of a query head (2 products of D forward, 4 backward). Recomputed scores
  /// and masked pairs do not count.
  double flops(std::int64_t tokens, std::int64_t visible_pairs) const;

  /// Operations that a policy does again in a step: the matrices of the layers, and attention
  /// unless its output is kept.
  double flops_again(Recompute policy, std::int64_t tokens, std::int64_t visible_pairs) const;

  /// About what a rank with so many tokens of one sequence holds: what is kept from forward to
  /// backward, and the most that the loss or the backward of one layer holds beside it.
  std::int64_t activation_bytes(Recompute policy, std::int64_t tokens) const;
};

/// A replica on one rank. Its parameters are fp32 leaves, equal on all ranks.
class Model {
 public:
  virtual ~Model() = default;

  /// In an order that is the same on every rank.
  virtual std::vector<at::Tensor> parameters() const = 0;

  /// The sum over this rank's tokens of what is learned: a scalar with a graph, whose sum over the
  /// ranks is the loss of the sequence. positions_L int64: the place of each token in the whole
  /// sequence. L may be 0; attention is then called all the same, for the other ranks need it.
  virtual at::Tensor loss(const Batch& batch, const Attends& attends,
                          const at::Tensor& positions_L) = 0;

  virtual ModelCost cost() const = 0;

  /// Tokens and labels must be below it.
  virtual std::int64_t vocab_size() const { return std::numeric_limits<std::int64_t>::max(); }
};

}  // namespace armillary::train

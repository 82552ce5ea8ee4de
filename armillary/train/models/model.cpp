#include "armillary/train/models/model.h"

#include <algorithm>

namespace armillary::train {
namespace {

template <class... Factors>
double product(Factors... factors) {
  return (static_cast<double>(factors) * ...);
}

/// Two products of D for each visible pair of each query head, in all layers.
double attention_flops(const ModelAttention& shape, double of_a_pair, std::int64_t visible_pairs) {
  return product(of_a_pair, shape.layers, shape.heads, shape.head_dim, visible_pairs);
}

}  // namespace

double ModelCost::flops(std::int64_t tokens, std::int64_t visible_pairs) const {
  return product(6, matmul_parameters, tokens) + attention_flops(attention, 12, visible_pairs);
}

double ModelCost::flops_again(Recompute policy, std::int64_t tokens,
                              std::int64_t visible_pairs) const {
  if (policy == Recompute::None) return 0;
  const bool attends_again = policy == Recompute::Full;
  return product(2, layer_matmul_parameters, tokens) +
         (attends_again ? attention_flops(attention, 4, visible_pairs) : 0);
}

std::int64_t ModelCost::activation_bytes(Recompute policy, std::int64_t tokens) const {
  std::int64_t kept = bytes.layer;
  std::int64_t again = 0;  // of the layer that backward is at
  if (policy != Recompute::None) {
    kept = bytes.input + (policy == Recompute::AttentionOutput ? bytes.output : 0);
    again = bytes.layer - kept;
  }
  return tokens * attention.layers * kept +
         std::max(tokens * (again + bytes.backward),
                  tokens * bytes.loss + std::min(tokens, loss_chunk_tokens) * bytes.chunk);
}

}  // namespace armillary::train

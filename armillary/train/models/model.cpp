#include "armillary/train/models/model.h"

#include <algorithm>

namespace armillary::train {
namespace {

/// A product in double: flops of a step exceed 64 bits.
template <class... Factors>
double product(Factors... factors) {
  return (static_cast<double>(factors) * ...);
}

/// Flops of attention in all layers, with `per_dim` for each dim of a visible pair of a query head.
double attention_flops(const ModelAttention& shape, double per_dim, std::int64_t visible_pairs) {
  return product(per_dim, shape.layers, shape.heads, shape.head_dim, visible_pairs);
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
  // Kept for every layer from forward to backward; `again` is what recomputation restores of the
  // one layer that backward is at.
  std::int64_t kept = bytes.layer;
  std::int64_t again = 0;
  if (policy != Recompute::None) {
    kept = bytes.input + (policy == Recompute::AttentionOutput ? bytes.output : 0);
    again = bytes.layer - kept;
  }
  // The loss and the backward of a layer do not live at the same time: the larger one counts.
  return tokens * attention.layers * kept +
         std::max(tokens * (again + bytes.backward),
                  tokens * bytes.loss + std::min(tokens, loss_chunk_tokens) * bytes.chunk);
}

std::vector<std::string> Model::parameter_names() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parameters().size(); ++i) names.push_back(std::to_string(i));
  return names;
}

}  // namespace armillary::train

#include "armillary/train/models/model.h"

#include <algorithm>

namespace armillary::train {

double flops_again(const ModelCost& cost, Recompute policy, std::int64_t tokens,
                   std::int64_t visible_pairs) {
  if (policy == Recompute::None) return 0;
  // Forward is a third of forward and backward.
  ModelCost again = cost;
  again.matmul_parameters = cost.layer_matmul_parameters;
  return again.flops(tokens, policy == Recompute::Full ? visible_pairs : 0) / 3;
}

std::int64_t activation_bytes(const ModelCost& cost, Recompute policy, std::int64_t tokens) {
  // Kept for every layer from forward to backward; `again` is what recomputation restores of the
  // one layer that backward is at.
  const auto& bytes = cost.bytes;
  std::int64_t kept = bytes.layer;
  std::int64_t again = 0;
  if (policy != Recompute::None) {
    kept = bytes.input + (policy == Recompute::AttentionOutput ? bytes.output : 0);
    again = bytes.layer - kept;
  }
  // The loss and the backward of a layer do not live at the same time: the larger one counts.
  return tokens * cost.attention.layers * kept +
         std::max(tokens * (again + bytes.backward),
                  tokens * bytes.loss + std::min(tokens, cost.loss_chunk_tokens) * bytes.chunk);
}

std::vector<std::string> Model::parameter_names() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parameters().size(); ++i) names.push_back(std::to_string(i));
  return names;
}

}  // namespace armillary::train

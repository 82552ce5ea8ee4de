// Counts are whole numbers of elements and bytes; what grows with tokens and layers at once is a
// product in double.
#include "armillary/predict/cost/model.h"

#include <algorithm>

#include "armillary/core/error.h"

namespace armillary::cost {
namespace {

constexpr std::int64_t kBf16 = 2;

/// A product in double: flops of a step exceed 64 bits.
template <class... Factors>
double product(Factors... factors) {
  return (static_cast<double>(factors) * ...);
}

/// Refuses shapes whose counts could overflow 64 bits. Parameters are those of a DiT, which has
/// more.
void check_size(const ModelShape& shape) {
  const double hidden = shape.hidden;
  const double heads = product(shape.heads + 1.0 * shape.kv_heads, shape.head_dim);
  const double layer = hidden * (4 * heads + 3.0 * shape.ffn + 6 * hidden);
  const double parameters = shape.layers * layer + 2 * hidden * shape.vocab;
  constexpr double kLimit = std::int64_t{1} << 59;
  if (parameters < kLimit) return;
  fail<InvalidArgument>("model: about {:.3g} parameters; fewer than 2^59 are required", parameters);
}

}  // namespace

double ModelCost::flops(std::int64_t tokens, std::int64_t visible_pairs) const {
  return 3 * (product(token_flops, tokens) + sequence_flops) +
         product(6, matmul_parameters, tokens) +
         product(12, attention.layers, attention.heads, attention.head_dim, visible_pairs);
}

ModelCost ModelCost::with_layers(std::int64_t layers) const {
  const std::int64_t present = attention.layers;
  const std::int64_t more = layers - present;
  const double ratio = product(layers) / product(present);
  ModelCost cost = *this;
  cost.attention.layers = layers;
  cost.parameters += layer_parameters / present * more;
  cost.layer_parameters += layer_parameters / present * more;
  cost.expert_parameters += expert_parameters / present * more;
  cost.whole_layer_parameters += whole_layer_parameters / present * more;
  cost.matmul_parameters += layer_matmul_parameters / present * more;
  cost.layer_matmul_parameters += layer_matmul_parameters / present * more;
  cost.token_flops *= ratio;
  cost.sequence_flops *= ratio;
  return cost;
}

ModelCost ModelCost::along_tp(int tp) const {
  const std::int64_t more = kv_copies(attention, tp) - 1;
  ModelCost cost = *this;
  for (std::int64_t* const count : {&cost.parameters, &cost.layer_parameters,
                                    &cost.matmul_parameters, &cost.layer_matmul_parameters}) {
    *count += more * attention.layers * kv_parameters;
  }
  cost.kv_parameters += more * kv_parameters;
  const std::int64_t others = tp - 1;
  cost.layer_parameters += others * whole_layer_parameters;
  cost.first_parameters += others * whole_first_parameters;
  cost.last_parameters += others * whole_last_parameters;
  cost.parameters +=
      others * (whole_layer_parameters + whole_first_parameters + whole_last_parameters);
  cost.bytes.layer += more * bytes.kv;
  cost.bytes.kv += more * bytes.kv;
  return cost;
}

int kv_copies(const ModelAttention& attention, int tp) {
  const auto heads = static_cast<int>(attention.kv_heads);
  return heads > 0 && tp > heads ? tp / heads : 1;
}

bool shares_kv_heads(const ModelAttention& attention, int tp) {
  const std::int64_t heads = attention.kv_heads;
  return heads % tp == 0 || (heads > 0 && tp % heads == 0);
}

const std::vector<std::string>& recompute_names() {
  static const std::vector<std::string> names{"none", "full", "attention_output"};
  return names;
}

std::int64_t kept_by_layer(const TokenBytes& bytes, Recompute policy) {
  if (policy == Recompute::None) return bytes.layer;
  return bytes.input + bytes.between + (policy == Recompute::AttentionOutput ? bytes.output : 0);
}

double kept_bytes(const ModelCost& cost, Recompute policy, double tokens) {
  const std::int64_t layers = cost.attention.layers;
  return product(tokens, layers, kept_by_layer(cost.bytes, policy)) +
         product(tokens, cost.bytes.last);
}

double flops_again(const ModelCost& cost, Recompute policy, std::int64_t tokens,
                   std::int64_t visible_pairs) {
  if (policy == Recompute::None) return 0;
  // Forward is a third of forward and backward.
  ModelCost again = cost;
  again.matmul_parameters = cost.layer_matmul_parameters;
  return again.flops(tokens, policy == Recompute::Full ? visible_pairs : 0) / 3;
}

ModelCost cost_of(const ModelShape& shape) {
  check_size(shape);
  const std::int64_t hidden = shape.hidden;
  const std::int64_t ffn = shape.ffn;
  const std::int64_t q = std::int64_t{shape.heads} * shape.head_dim;
  const std::int64_t kv = std::int64_t{shape.kv_heads} * shape.head_dim;
  const std::int64_t output = hidden * shape.vocab;
  const std::int64_t layer = 2 * hidden * (q + kv) + (shape.gated ? 3 : 2) * hidden * ffn;
  ModelCost cost;
  cost.layer_parameters = cost.layer_matmul_parameters = shape.layers * layer;
  cost.matmul_parameters = cost.layer_parameters + output;
  cost.kv_parameters = 2 * hidden * kv;
  cost.parameters = cost.matmul_parameters + output;  // with the embedding
  cost.attention = {shape.layers, shape.heads, shape.kv_heads, shape.head_dim};
  cost.bytes = {.layer = kBf16 * (6 * hidden + (shape.gated ? 3 : 2) * ffn + 2 * kv),
                .input = kBf16 * hidden,
                .kv = kBf16 * 2 * kv,
                .output = kBf16 * q,
                .logits = (kBf16 + 4) * shape.vocab,
                .loss = {{.logits = (kBf16 + 4) * shape.vocab}},
                .backward = {{.token = kBf16 * (3 * hidden + (shape.gated ? 3 : 1) * ffn)}}};
  cost.logits = shape.vocab;
  return cost;
}

ModelCost dit_cost_of(const ModelShape& shape, int text_tokens) {
  ModelShape without_logits = shape;
  without_logits.vocab = 0;
  ModelCost cost = cost_of(without_logits);
  const std::int64_t layers = shape.layers;
  const std::int64_t hidden = shape.hidden;
  const std::int64_t q = std::int64_t{shape.heads} * shape.head_dim;
  const std::int64_t kv = std::int64_t{shape.kv_heads} * shape.head_dim;
  std::int64_t conditioning = 6 * hidden * hidden;
  cost.sequence_flops = product(2, layers, conditioning);
  if (text_tokens > 0) {
    // Q and Out for the tokens, K and V for the text, and each token with each of text.
    conditioning += 2 * hidden * (q + kv);
    cost.layer_matmul_parameters += layers * 2 * hidden * q;
    cost.sequence_flops += product(2 * 2, layers, hidden, kv, text_tokens);
    cost.token_flops = product(4, layers, q, text_tokens);
    cost.tp_branches = 3;
  }
  cost.matmul_parameters = cost.layer_matmul_parameters;
  cost.layer_parameters += layers * conditioning;
  cost.parameters = cost.layer_parameters;
  return cost;
}

}  // namespace armillary::cost

#include "armillary/train/models/decoder_cost.h"

#include "armillary/core/checked.h"

namespace armillary::train {
namespace {

bool is_swiglu(const DecoderOptions& options) {
  return options.feed_forward() == FeedForwardKind::SwiGlu;
}

TokenBytes token_bytes(const DecoderOptions& options, std::int64_t kv_dim) {
  const std::int64_t value_bytes = options.dtype() == at::kBFloat16 ? 2 : 4;
  const std::int64_t dim = options.dim();
  const std::int64_t hidden = options.hidden_dim();
  const std::int64_t lse = 4 * options.n_heads();
  // What is made of the products of the feed-forward, or the gradient of that; where bf16 is
  // multiplied as fp32, that and x as fp32.
  const std::int64_t wide = value_bytes < 4 && !options.native_bf16() ? 6 : 0;
  // SwiGLU keeps both products and what it makes of them, and has a gradient of each.
  const std::int64_t kept = is_swiglu(options) ? 3 * hidden : hidden;
  const std::int64_t grads = is_swiglu(options) ? 2 * hidden : 0;
  return {.layer = value_bytes * (4 * dim + 2 * kv_dim + kept) + lse + 8,
          .input = value_bytes * dim,
          .output = value_bytes * dim + lse,
          .backward = (value_bytes + wide) * (hidden + dim) + value_bytes * (2 * dim + grads),
          // Features, their gradient, and that once more, scaled.
          .loss = 3 * value_bytes * dim,
          // Logits, their log-softmax and its gradient, in fp32 or wider than they are.
          .chunk = 12 * options.vocab_size()};
}

}  // namespace

ModelCost decoder_cost(const DecoderOptions& options) {
  constexpr const char* kWhat = "recipe: parameters of the model";
  // Widths are below 2^31, so a row of all of a layer's matrices is below 2^36.
  const std::int64_t head_dim = options.dim() / options.n_heads();
  const std::int64_t kv_dim = options.n_kv_heads() * head_dim;
  const std::int64_t hidden = (is_swiglu(options) ? 3 : 2) * options.hidden_dim();
  const std::int64_t row = 2 * (options.dim() + kv_dim) + hidden;
  // The factor 2 leaves room for the sums below.
  const std::int64_t layers =
      checked_product(kWhat, {2, options.n_layers(), options.dim(), row + 2}) / 2;
  const std::int64_t norms = 2 * options.n_layers() * options.dim();
  const std::int64_t embedding = options.vocab_size() * options.dim();

  ModelCost cost;
  cost.layer_matmul_parameters = layers - norms;
  cost.matmul_parameters = layers - norms + embedding;
  cost.parameters = layers + options.dim() + (options.tied() ? 1 : 2) * embedding;
  cost.attention = {options.n_layers(), options.n_heads(), options.n_kv_heads(), head_dim};
  cost.bytes = token_bytes(options, kv_dim);
  cost.loss_chunk_tokens = options.loss_chunk_tokens();
  return cost;
}

}  // namespace armillary::train

// decoder_cost.cpp: counts by the shapes of decoder.h and by what its autograd functions keep.
#include "armillary/model/decoder_cost.h"

#include "armillary/core/checked.h"

namespace armillary::model {
namespace {

bool is_swiglu(const DecoderOptions& options) {
  return options.feed_forward() == FeedForwardKind::SwiGlu;
}

/// Parameters of one norm.
std::int64_t norm_parameters(const DecoderOptions& options) {
  return (options.norm() == NormKind::Layer ? 2 : 1) * options.dim();
}

/// Parameters of the norms and biases of one layer.
std::int64_t vector_parameters(const DecoderOptions& options, std::int64_t kv_dim) {
  const std::int64_t norms = 2 * norm_parameters(options);
  if (!options.bias()) return norms;
  // Q, Out and the MLP's output; K, V; the MLP's products.
  return norms + 3 * options.dim() + 2 * kv_dim +
         (is_swiglu(options) ? 2 : 1) * options.hidden_dim();
}

cost::TokenBytes token_bytes(const DecoderOptions& options, std::int64_t kv_dim) {
  const std::int64_t value_bytes = options.dtype() == at::kBFloat16 ? 2 : 4;
  const std::int64_t dim = options.dim();
  const std::int64_t hidden = options.hidden_dim();
  const std::int64_t lse = 4 * options.n_heads();
  // Scratch of backward: the MLP's activation or its gradient. Without native bf16 there are fp32
  // copies too, 6 bytes more per element of it and of x.
  const std::int64_t wide = value_bytes < 4 && !options.native_bf16() ? 6 : 0;
  // SwiGLU keeps both products and its output, and has a gradient for each product.
  const std::int64_t ffn_values = is_swiglu(options) ? 3 * hidden : hidden;
  const std::int64_t grads = is_swiglu(options) ? 2 * hidden : 0;
  // Numbers of a norm for each token: 1 / rms, or mean and 1 / deviation.
  const std::int64_t norm = options.norm() == NormKind::Layer ? 8 : 4;
  // Kept of a layer: x, q, out, h; k, v; the MLP; log-sum-exp; numbers of two norms.
  return {.layer = value_bytes * (4 * dim + 2 * kv_dim + ffn_values) + lse + 2 * norm,
          .input = value_bytes * dim,
          .kv = value_bytes * 2 * kv_dim,
          .output = value_bytes * dim + lse,
          .backward = (value_bytes + wide) * (hidden + dim) + value_bytes * (2 * dim + grads),
          // Input of the output matrix, its gradient, and the scaled copy of that.
          .loss = 3 * value_bytes * dim,
          // Logits, their log-softmax and its gradient, 4 bytes each.
          .chunk = 12 * options.vocab_size()};
}

}  // namespace

cost::ModelCost decoder_cost(const DecoderOptions& options) {
  constexpr const char* kWhat = "recipe: parameters of the model";
  // Widths are below 2^31, so a row of all of a layer's matrices is below 2^36.
  const std::int64_t head_dim = options.dim() / options.n_heads();
  const std::int64_t kv_dim = options.n_kv_heads() * head_dim;
  const std::int64_t hidden = (is_swiglu(options) ? 3 : 2) * options.hidden_dim();
  const std::int64_t row = 2 * (options.dim() + kv_dim) + hidden;
  // Checked for eight times each product, which leaves room for the sums below: a layer has at most
  // four times as many vector parameters as `row`.
  const auto product = [&](std::int64_t rows, std::int64_t width) {
    return checked_product(kWhat, {8, rows, options.dim(), width}) / 8;
  };
  const std::int64_t matrices = product(options.n_layers(), row);
  const std::int64_t embedding = product(options.vocab_size(), 1);
  const std::int64_t positions = product(options.max_seq_len(), 1);

  cost::ModelCost cost;
  cost.layer_parameters = matrices + options.n_layers() * vector_parameters(options, kv_dim);
  cost.layer_matmul_parameters = matrices;
  cost.matmul_parameters = matrices + embedding;
  cost.parameters = cost.layer_parameters + norm_parameters(options) +
                    (options.tied() ? 1 : 2) * embedding + positions;
  cost.attention = {options.n_layers(), options.n_heads(), options.n_kv_heads(), head_dim};
  cost.bytes = token_bytes(options, kv_dim);
  cost.logits = options.vocab_size();
  cost.loss_chunk_tokens = options.loss_chunk_tokens();
  return cost;
}

}  // namespace armillary::model

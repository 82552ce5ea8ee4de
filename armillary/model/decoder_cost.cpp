// decoder_cost.cpp: counts by the shapes of decoder.h and by what its autograd functions keep and
// allocate. Each moment lists the tensors of one autograd function: linear.cpp, row_ops.cpp,
// cross_entropy.cpp, and that of attention (attention/node.h).
#include "armillary/model/decoder_cost.h"

#include <vector>

#include "armillary/core/checked.h"
#include "armillary/model/decoder_parameters.h"

namespace armillary::model {
namespace {

bool is_swiglu(const DecoderOptions& options) {
  return options.feed_forward() == FeedForwardKind::SwiGlu;
}

constexpr const char* kCounted = "recipe: parameters of the model";

/// Widths of Q, which is that of attention's output, and of K.
std::int64_t q_dim_of(const DecoderOptions& options) {
  return options.n_heads() * head_dim_of(options);
}
std::int64_t kv_dim_of(const DecoderOptions& options) {
  return options.n_kv_heads() * head_dim_of(options);
}

/// Rows of dim values in the matrices of a layer's MLP or experts.
struct MlpRows {
  std::int64_t all = 0;
  std::int64_t of_token = 0;  ///< Those that multiply a token.
  std::int64_t experts = 0;   ///< Those of experts, without shared ones.
};

MlpRows mlp_rows(const DecoderOptions& options) {
  const MoeOptions& moe = options.moe();
  if (!has_experts(options)) {
    const std::int64_t rows = (is_swiglu(options) ? 3 : 2) * options.hidden_dim();
    return {.all = rows, .of_token = rows};
  }
  // Each below 2^57, so sums of three are no risk.
  const auto of = [&](std::int64_t experts) {
    return checked_product(kCounted, {64, 3, experts, moe.moe_inter_dim}) / 64;
  };
  const std::int64_t always = moe.num_experts + of(moe.num_shared_experts);  // with the router
  const std::int64_t experts = of(moe.num_experts);
  return {.all = always + experts, .of_token = always + of(moe.top_k), .experts = experts};
}

/// Parameters of one norm.
std::int64_t norm_parameters(const DecoderOptions& options) {
  return (options.norm() == NormKind::Layer ? 2 : 1) * options.dim();
}

/// Parameters of the norms and biases of one layer.
std::int64_t vector_parameters(const DecoderOptions& options) {
  const std::int64_t routing = options.moe().load_balance_coeff > 0 ? options.moe().num_experts : 0;
  const std::int64_t norms =
      2 * norm_parameters(options) + routing + (options.qk_norm() ? 2 * head_dim_of(options) : 0);
  const std::int64_t qkv = q_dim_of(options) + 2 * kv_dim_of(options);
  if (!options.bias()) return norms + (options.qkv_bias() ? qkv : 0);
  // Q, K, V; Out and the MLP's output; the MLP's products.
  return norms + qkv + 2 * options.dim() + (is_swiglu(options) ? 2 : 1) * options.hidden_dim();
}

/// Widths of a decoder, and bytes of its numbers.
struct DecoderSizes {
  std::int64_t dim, q_dim, kv_dim, hidden, words;
  std::int64_t value;     ///< Activations, and parameters as models are given them.
  std::int64_t product;   ///< Factors and results of a product before they are rounded.
  std::int64_t gradient;  ///< Gradients of parameters.
  std::int64_t softmax;
  bool swiglu;
  std::int64_t wide;         ///< Rows of a matrix of the MLP, or of all experts together.
  std::int64_t rows = 0;     ///< Width of a token's rows for experts.
  std::int64_t routing = 0;  ///< Bytes that a router keeps of a token.

  explicit DecoderSizes(const DecoderOptions& options)
      : dim(options.dim()),
        q_dim(q_dim_of(options)),
        kv_dim(kv_dim_of(options)),
        hidden(options.hidden_dim()),
        words(options.vocab_size()),
        swiglu(is_swiglu(options)) {
    const bool bf16 = options.dtype() == at::kBFloat16;
    const bool fp64 = options.dtype() == at::kDouble;
    value = bf16 ? 2 : fp64 ? 8 : 4;
    product = bf16 && !options.native_bf16() ? 4 : value;
    gradient = softmax = fp64 ? 8 : 4;
    wide = hidden;
    if (has_experts(options)) add_experts_of(options.moe());
  }
  /// A token has rows for its experts, and the inner values of these and of the shared ones. The
  /// router keeps its input, scores twice, and weights and indices of the choice.
  void add_experts_of(const MoeOptions& moe) {
    hidden = (moe.top_k + moe.num_shared_experts) * moe.moe_inter_dim;
    wide = (moe.num_experts + moe.num_shared_experts) * moe.moe_inter_dim;
    rows = moe.top_k * dim;
    routing = (value < softmax ? softmax * dim : value * dim) + 2 * softmax * moe.num_experts +
              moe.top_k * (2 * softmax + 3 * 8);
  }
  bool converts() const { return product != value; }
  /// Inner values of the MLP that a layer keeps: the input of GELU, or both products of SwiGLU and
  /// its output.
  std::int64_t inner() const { return (swiglu ? 3 : 1) * hidden; }
};

/// Backward of a layer, from its output to its input. Each moment has the gradient of the output,
/// and of what the layer keeps it counts less what is free by then. Matrices are those whose
/// gradients are there, and copies of one.
std::vector<cost::Moment> moments_of_layer(const DecoderSizes& n) {
  const std::int64_t grad = n.value * n.dim;
  const std::int64_t inner = n.value * n.hidden;
  const std::int64_t matrix = n.gradient * n.dim * n.wide;
  const std::int64_t copy = n.converts() ? n.product * n.dim * n.wide : 0;
  const std::int64_t wide = n.converts() ? n.product * n.hidden : 0;
  // Gradients of queries, keys, values, of attention's output and of what is added to it.
  const cost::Moment attention{
      .token = n.value * (n.dim + 2 * (n.q_dim + n.kv_dim) - n.inner()),
      .waiting = (n.swiglu ? 3 : 2) * matrix + n.gradient * n.dim * n.q_dim};
  if (!n.swiglu) {
    // GELU of its input, or its gradient, and the input in the dtype of products; then the gradient
    // of that product, and norm(x), which is x's gradient next.
    return {{.token = grad + n.product * n.hidden + wide, .along_tp = grad, .weights = matrix},
            {.token = grad + wide,
             .whole = n.product * n.dim,
             .weights = matrix + copy,
             .waiting = matrix},
            attention};
  }
  const std::int64_t rows = n.value * n.rows;
  return {// w2: the gradient of SwiGLU's output, before and after it is rounded.
          {.token = grad + rows + n.product * n.hidden + (n.converts() ? inner : 0),
           .along_tp = grad,
           .weights = matrix + copy},
          // SwiGLU: gradients of its output, of both products, and one times the other.
          {.token = grad + rows + 3 * inner, .waiting = matrix},
          // w1 and w3: their gradients, also in the dtype of products; norm(x), then x's gradient.
          {.token = grad + 2 * rows - inner + 2 * wide,
           .whole = n.product * n.dim,
           .weights = 2 * matrix + copy,
           .waiting = matrix},
          attention};
}

/// The loss: norm(x) and its gradient, that of the matrix; logits of a chunk as they are rounded
/// and become probabilities in place.
std::vector<cost::Moment> moments_of_loss(const DecoderSizes& n) {
  const std::int64_t table = n.words * n.dim;
  const std::int64_t features = 2 * n.value * n.dim;
  const bool rounds = n.value < n.softmax;
  const std::int64_t weights = n.gradient * table;
  const std::int64_t in_place = (n.softmax + (rounds ? n.value : 0)) * n.words;
  std::vector<cost::Moment> moments{{.whole = features, .logits = in_place, .weights = weights},
                                    {.whole = features,
                                     .logits = n.softmax * n.words,
                                     .chunk = n.product * n.dim,
                                     .weights = weights}};
  // The product with rounded gradients of logits: copies of them and of the matrix, or a sum.
  if (rounds) {
    moments.push_back({.whole = features,
                       .logits = (n.value + (n.converts() ? n.product : 0)) * n.words,
                       .chunk = n.product * n.dim,
                       .weights = weights + n.product * table});
  }
  return moments;
}

cost::TokenBytes token_bytes(const DecoderOptions& options) {
  const DecoderSizes n(options);
  const std::int64_t input = n.value * n.dim;
  const std::int64_t lse = n.softmax * options.n_heads();
  const std::int64_t table = n.gradient * n.words * n.dim;
  // Numbers of a norm for each token: 1 / rms, or mean and 1 / deviation.
  const std::int64_t norm = (options.norm() == NormKind::Layer ? 2 : 1) * n.softmax;
  // cos and sin of half of the dims of a head.
  const std::int64_t angles = options.max_seq_len() > 0 ? 0 : n.softmax * head_dim_of(options);
  // Q and K before the norms of their heads, and a number for each head.
  const std::int64_t head_norms =
      options.qk_norm()
          ? n.value * (n.q_dim + n.kv_dim) + n.softmax * (options.n_heads() + options.n_kv_heads())
          : 0;
  // Kept of a layer: x, h; q, out; k, v; the MLP, or rows for experts and their results; what the
  // router keeps; log-sum-exp; numbers of two norms.
  return {.layer = n.value * (2 * (n.dim + n.q_dim + n.kv_dim) + n.inner() + 2 * n.rows) +
                   n.routing + lse + 2 * norm + head_norms,
          .input = input,
          .between = has_experts(options) ? input : 0,
          .kv = n.value * 2 * n.kv_dim,
          .output = n.value * n.q_dim + lse,
          .last = input,
          // Inputs of Q, K and V, and of the MLP.
          .along_tp = options.keep_gathered_inputs() ? 2 * input : 0,
          .again = input,
          // Token, label and position.
          .once = angles + 24,
          .logits = (n.value + (n.converts() ? n.product : 0)) * n.words,
          .loss = moments_of_loss(n),
          // Gradients of norm(x) and of the matrix, and the same scaled.
          .last_unit = {{.whole = 2 * input, .weights = 2 * table}},
          .backward = moments_of_layer(n),
          // Gradients of x, of words before they are rounded, and of the table.
          .first_unit = {{.token = input + (n.value < n.gradient ? n.gradient * n.dim : 0),
                          .weights = table}}};
}

}  // namespace

cost::ModelCost decoder_cost(const DecoderOptions& options) {
  // Widths are below 2^31, so a row of all of a layer's matrices is below 2^36.
  const std::int64_t head_dim = head_dim_of(options);
  const MlpRows mlp = mlp_rows(options);
  const std::int64_t row = 2 * (q_dim_of(options) + kv_dim_of(options));
  // Checked for 64 times each product, which leaves room for the sums below and for bytes of
  // moments: a layer has at most eight times as many vector parameters as those of matrices.
  const auto product = [&](std::int64_t rows, std::int64_t width) {
    return checked_product(kCounted, {64, rows, options.dim(), width}) / 64;
  };
  const std::int64_t matrices = product(options.n_layers(), row + mlp.all);
  const std::int64_t of_token = product(options.n_layers(), row + mlp.of_token);
  const std::int64_t embedding = product(options.vocab_size(), 1);
  const std::int64_t positions = product(options.max_seq_len(), 1);

  cost::ModelCost cost;
  cost.layer_parameters = matrices + options.n_layers() * vector_parameters(options);
  cost.layer_matmul_parameters = of_token;
  cost.kv_parameters = 2 * product(kv_dim_of(options), 1);
  cost.matmul_parameters = of_token + embedding;
  cost.expert_parameters = product(options.n_layers(), mlp.experts);
  cost.expert_rows = options.moe().num_experts > 0 ? options.moe().top_k : 0;
  cost.first_parameters = embedding + positions;
  cost.last_parameters = norm_parameters(options) + (options.tied() ? 0 : embedding);
  cost.tied = options.tied();
  cost.parameters = cost.layer_parameters + cost.first_parameters + cost.last_parameters;
  cost.attention = {options.n_layers(), options.n_heads(), options.n_kv_heads(), head_dim};
  cost.bytes = token_bytes(options);
  cost.logits = options.vocab_size();
  cost.loss_chunk_tokens = options.loss_chunk_tokens();
  return cost;
}

}  // namespace armillary::model

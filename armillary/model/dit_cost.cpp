// dit_cost.cpp: the cost of a decoder with the same layers, less its norms and words, plus what a
// DiT adds: modulations, cross-attention, embedders of patches, times, classes and words.
#include "armillary/model/dit_cost.h"

#include "armillary/core/checked.h"
#include "armillary/model/decoder_cost.h"
#include "armillary/model/dit_parameters.h"

namespace armillary::model {

namespace {

/// As decoder_cost: room for 64 times each product.
std::int64_t dit_product(const DitOptions& options, std::int64_t rows, std::int64_t width) {
  return checked_product("recipe: parameters of the model",
                         {64, rows, options.layers.dim(), width}) /
         64;
}

/// Scale, shift and gate: a matrix with biases in each layer and the head, or tables there and one
/// matrix in the embedding. Every rank along tp has all of them.
void add_modulations(cost::ModelCost& cost, const DitOptions& options) {
  const std::int64_t layers = options.layers.n_layers();
  const std::int64_t dim = options.layers.dim();
  const std::int64_t matrix = dit_product(options, 6, dim);
  const bool is_single = options.modulation == ModulationKind::Single;
  const std::int64_t of_layers = is_single ? 0 : dit_product(options, layers, 6 * dim);
  cost.layer_parameters += of_layers + layers * 6 * dim;
  cost.whole_layer_parameters += of_layers + layers * 6 * dim;
  cost.first_parameters += is_single ? matrix + 6 * dim : 0;
  cost.last_parameters += (is_single ? 0 : matrix / 3) + 2 * dim;
  cost.sequence_flops += 2.0 * static_cast<double>(of_layers);
}

/// Four matrices with biases in each layer: those of queries and outputs multiply tokens, those of
/// keys and values the words of a sequence.
void add_cross_attention(cost::ModelCost& cost, const DitOptions& options) {
  const std::int64_t layers = options.layers.n_layers();
  const std::int64_t dim = options.layers.dim();
  const std::int64_t input = cost.bytes.input;
  const std::int64_t words = options.text_tokens;
  const std::int64_t two = dit_product(options, layers, 2 * dim);
  cost.layer_parameters += 2 * two + layers * 4 * dim;
  cost.whole_layer_parameters += layers * dim;
  cost.layer_matmul_parameters += two;
  cost.sequence_flops += 2.0 * static_cast<double>(two) * static_cast<double>(words);
  cost.token_flops += 4.0 * static_cast<double>(layers * dim) * static_cast<double>(words);
  cost.tp_branches += 1;

  // Its input, queries, output and log-sum-exp; keys and values of the words.
  const std::int64_t lse =
      (options.layers.dtype() == at::kDouble ? 8 : 4) * options.layers.n_heads();
  const std::int64_t of_token = 3 * input + lse;
  cost::TokenBytes& bytes = cost.bytes;
  bytes.layer += of_token;
  if (options.layers.keep_gathered_inputs()) bytes.along_tp += input;
  cost.sequence_bytes.layer = 2 * words * input;
  // It is behind the MLP and before attention: gradients of the residual, its output and queries.
  const std::int64_t inner = input / dim * options.layers.hidden_dim();
  cost::Moment& attention = bytes.backward.back();
  const cost::Moment cross{.token = 3 * input - inner - input, .waiting = attention.waiting};
  attention.token -= of_token;
  bytes.backward.insert(bytes.backward.end() - 1, cross);
}

}  // namespace

cost::ModelCost dit_cost(const DitOptions& options) {
  const DecoderOptions& layers = options.layers;
  const std::int64_t dim = layers.dim();
  const std::int64_t values = options.picture.patch_values();
  const auto product = [&](std::int64_t rows, std::int64_t width) {
    return dit_product(options, rows, width);
  };
  const std::int64_t patches = product(values, 1);
  const std::int64_t conditions =
      product(options.n_classes + 1, 1) + product(1, dim) + product(kTimeWaves, 1);
  const std::int64_t text =
      options.text_tokens == 0 ? 0 : product(options.vocab_size + 1 + options.text_tokens, 1);

  // The layers are a decoder's without words and norms, and with modulations.
  cost::ModelCost cost = decoder_cost(layers);
  const std::int64_t norms = 2 * dim;  // weights of RMSNorm
  cost.layer_parameters -= layers.n_layers() * norms;
  cost.first_parameters = patches + conditions + 3 * dim + text;
  cost.last_parameters = patches + values;
  cost.whole_layer_parameters = layers.n_layers() * 2 * dim;  // biases behind sums over the ranks
  add_modulations(cost, options);
  if (options.has_cross_attention()) add_cross_attention(cost, options);
  cost.parameters = cost.layer_parameters + cost.first_parameters + cost.last_parameters;
  cost.matmul_parameters = cost.layer_matmul_parameters + 2 * patches;
  cost.whole_first_parameters = cost.first_parameters;
  cost.whole_last_parameters = cost.last_parameters;

  // Outputs of both branches; their gradients beside that of the residual.
  cost::TokenBytes& bytes = cost.bytes;
  const std::int64_t input = bytes.input;
  bytes.layer += 2 * input;
  for (cost::Moment& moment : bytes.backward) moment.token += input;
  // Position, time, class, row and word, or all words, of 8 bytes each; values and noise in fp32.
  const std::int64_t words = options.has_cross_attention() ? options.text_tokens : 1;
  bytes.once = 8 * (4 + words) + 2 * 4 * values;
  bytes.logits = 0;
  bytes.loss = {{.token = 16 * values}};  // the difference and its square, in fp64
  bytes.last_unit = {{.token = 2 * input}};
  bytes.first_unit = {{.token = 2 * input}};
  // Behind the tokens.
  cost.sequence_bytes.input = input * (1 + (options.modulation == ModulationKind::Single ? 6 : 0) +
                                       (options.has_cross_attention() ? options.text_tokens : 0));
  return cost;
}

}  // namespace armillary::model

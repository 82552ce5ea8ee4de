#include "armillary/model/dit_cost.h"

#include "armillary/core/checked.h"
#include "armillary/model/decoder_cost.h"
#include "armillary/model/dit_parameters.h"

namespace armillary::model {

cost::ModelCost dit_cost(const DitOptions& options) {
  const DecoderOptions& layers = options.layers;
  const std::int64_t dim = layers.dim();
  const std::int64_t values = options.picture.patch_values();
  // As decoder_cost: room for 64 times each product.
  const auto product = [&](std::int64_t rows, std::int64_t width) {
    return checked_product("recipe: parameters of the model", {64, rows, dim, width}) / 64;
  };
  const std::int64_t patches = product(values, 1);
  const std::int64_t conditions =
      product(options.n_classes + 1, 1) + product(1, dim) + product(kTimeWaves, 1);
  const std::int64_t text =
      options.text_tokens == 0 ? 0 : product(options.vocab_size + 1 + options.text_tokens, 1);
  const std::int64_t modulation = product(layers.n_layers(), 6 * dim);

  // The layers are a decoder's without words and norms, and with modulations.
  cost::ModelCost cost = decoder_cost(layers);
  const std::int64_t norms = 2 * dim;  // weights of RMSNorm
  cost.layer_parameters += modulation + layers.n_layers() * (6 * dim - norms);
  cost.first_parameters = patches + conditions + 3 * dim + text;
  cost.last_parameters = product(2, dim) + 2 * dim + patches + values;
  cost.parameters = cost.layer_parameters + cost.first_parameters + cost.last_parameters;
  cost.matmul_parameters = cost.layer_matmul_parameters + 2 * patches;
  cost.sequence_flops = 2.0 * static_cast<double>(modulation);
  // Modulations, and biases behind sums over the ranks; all of embeddings and head.
  cost.whole_layer_parameters = modulation + layers.n_layers() * (6 * dim + 2 * dim);
  cost.whole_first_parameters = cost.first_parameters;
  cost.whole_last_parameters = cost.last_parameters;

  // Outputs of both branches; their gradients beside that of the residual.
  cost::TokenBytes& bytes = cost.bytes;
  const std::int64_t input = bytes.input;
  bytes.layer += 2 * input;
  for (cost::Moment& moment : bytes.backward) moment.token += input;
  bytes.once = 40;  // position, time, class, row and word, of 8 bytes each
  bytes.logits = 0;
  bytes.loss = {{.token = 16 * values}};  // the difference and its square, in fp64
  bytes.last_unit = {{.token = 2 * input}};
  bytes.first_unit = {{.token = 2 * input}};
  return cost;
}

}  // namespace armillary::model

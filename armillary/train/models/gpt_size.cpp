#include "armillary/train/models/gpt_size.h"

#include "armillary/core/checked.h"
#include "armillary/train/data.h"

namespace armillary::train {

GptSize gpt_size(const Recipe::Model& model) {
  constexpr const char* kWhat = "recipe: parameters of the model";
  // Widths are below 2^31, so a row of all of a layer's matrices is below 2^36.
  const std::int64_t kv_dim = model.kv_heads() * model.head_dim();
  const std::int64_t row = 2 * (model.dim + kv_dim + model.ffn_dim());
  // The factor 2 leaves room for the sums below.
  const std::int64_t layers = checked_product(kWhat, {2, model.n_layers, model.dim, row + 2}) / 2;
  const std::int64_t norms = 2 * model.n_layers * model.dim;
  const std::int64_t embedding = kVocabSize * model.dim;

  GptSize size;
  size.matmul_parameters = layers - norms + embedding;
  size.parameters = layers + model.dim + (model.enable_weight_tying ? 1 : 2) * embedding;
  return size;
}

}  // namespace armillary::train

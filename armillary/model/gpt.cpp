#include "armillary/model/gpt.h"

namespace armillary::model {

// The feed-forward stays GELU, the default of DecoderOptions.
DecoderOptions gpt_options(const ModelOptions& model) {
  return DecoderOptions()
      .vocab_size(model.vocab_size)
      .dim(model.dim)
      .n_layers(model.n_layers)
      .n_heads(model.n_heads)
      .n_kv_heads(model.kv_heads())
      .hidden_dim(model.hidden_dim == 0 ? 4 * model.dim : model.hidden_dim)
      .norm_eps(model.norm_eps)
      .rope_theta(model.rope_theta)
      .tied(model.enable_weight_tying);
}

}  // namespace armillary::model

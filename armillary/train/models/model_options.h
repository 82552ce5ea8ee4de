// model_options.h: the [model] section of a recipe: which model, and the keys of all of them.
// Which keys a model has, and whether they fit each other, registry.h says.
#pragma once

#include <cstdint>
#include <string>

namespace armillary::train {

struct ModelOptions {
  std::string name = "gpt";
  std::int64_t dim = 128;
  std::int64_t n_layers = 4;
  std::int64_t n_heads = 4;
  std::int64_t n_kv_heads = 0;  ///< 0: as many as n_heads.
  std::int64_t hidden_dim = 0;  ///< Of the feed-forward; 0: the model's own, ffn_dim of registry.h.
  double norm_eps = 1e-5;
  double rope_theta = 10000;
  bool enable_weight_tying = false;
  std::int64_t multiple_of = 256;  ///< llama: hidden_dim 0 is rounded up to a multiple of it.
  double ffn_dim_multiplier = 1;   ///< llama: of hidden_dim 0.

  std::int64_t head_dim() const { return dim / n_heads; }
  std::int64_t kv_heads() const { return n_kv_heads == 0 ? n_heads : n_kv_heads; }
};

}  // namespace armillary::train

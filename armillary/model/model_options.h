// model_options.h: the [model] section of a recipe: the name of a model and the keys of all models.
// registry.h says which keys a model has, and whether they fit each other.
#pragma once

#include <cstdint>
#include <string>

namespace armillary::model {

/// Sizes and constants of a decoder. A model ignores keys that are not its own. Defaults are a
/// model of less than a million parameters.
struct ModelOptions {
  std::string name = "gpt";
  std::int64_t dim = 128;
  std::int64_t n_layers = 4;
  std::int64_t n_heads = 4;
  std::int64_t n_kv_heads = 0;  ///< 0: as many as n_heads.
  /// Width of the MLP; 0 for the model's own rule (gpt.h, llama.h).
  std::int64_t hidden_dim = 0;
  // The same in all models: RMSNorm, rotary positions, and whether the output matrix is the
  // embedding.
  double norm_eps = 1e-5;
  double rope_theta = 10000;
  bool enable_weight_tying = false;
  // Keys of llama alone, for hidden_dim 0.
  std::int64_t multiple_of = 256;  ///< The width is rounded up to a multiple of it.
  double ffn_dim_multiplier = 1;   ///< Factor of 8/3 dim.

  /// Sizes that follow from the keys.
  std::int64_t head_dim() const { return dim / n_heads; }
  std::int64_t kv_heads() const { return n_kv_heads == 0 ? n_heads : n_kv_heads; }
};

}  // namespace armillary::model

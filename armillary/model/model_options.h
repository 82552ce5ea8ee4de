// model_options.h: the [model] section of a recipe: the name of a model and the keys of all models.
// registry.h says which keys a model has, and whether they fit each other.
#pragma once

#include <cstdint>
#include <string>

namespace armillary::model {

/// Sizes and constants of a model. A model ignores keys that are not its own. Defaults are a
/// model of less than a million parameters.
struct ModelOptions {
  std::string name = "gpt";
  std::int64_t dim = 128;
  std::int64_t n_layers = 4;
  std::int64_t n_heads = 4;
  std::int64_t n_kv_heads = 0;  ///< 0: as many as n_heads.
  /// Width of the MLP; 0 for the model's own rule (gpt.h, llama.h).
  std::int64_t hidden_dim = 0;
  /// At least the vocabulary of the data. The default is that of text, 256 bytes and a separator.
  std::int64_t vocab_size = 257;
  double norm_eps = 1e-5;  ///< RMSNorm's, or LayerNorm's in gpt2 and dit.
  /// Whether the output matrix is the embedding. A recipe of gpt2 begins with true.
  bool enable_weight_tying = false;
  double rope_theta = 10000;  ///< Key of all but gpt2, which have rotary positions.
  /// Key of gpt2, which has learned positions: the most tokens of a sequence.
  std::int64_t max_seq_len = 4096;
  // Keys of llama and moe alone. For hidden_dim 0:
  std::int64_t multiple_of = 256;  ///< The width is rounded up to a multiple of it.
  double ffn_dim_multiplier = 1;   ///< Factor of 8/3 dim.
  // For its relatives (llama.h).
  std::int64_t head_dim = 0;          ///< 0: dim / n_heads.
  bool qkv_bias = false;              ///< The matrices of Q, K and V have biases.
  bool qk_norm = false;               ///< RMSNorm of each head of Q and K.
  std::string rope_scaling = "none";  ///< As parse_rope_scaling() reads it (rope_scaling.h).
  /// Keys that a token sees, itself included; 0: all before it. The mask of the recipe must say so:
  /// a model knows no masks.
  std::int64_t sliding_window = 0;
  // Keys of moe alone, as in MoeOptions (moe_options.h).
  std::int64_t num_experts = 8;
  std::int64_t num_shared_experts = 0;
  std::int64_t top_k = 2;
  std::int64_t moe_inter_dim = 0;  ///< 0: the width of an MLP of llama.
  std::string score_func = "softmax";
  bool route_norm = true;
  double route_scale = 1;
  double router_aux_loss_coef = 0.01;
  std::string balance_over = "sequence";
  double load_balance_coeff = 0;
  // Keys of dit alone (dit.h). A sequence is text_tokens words, if they are joint, then
  // (image_height / patch_size) x (image_width / patch_size) patches.
  std::int64_t image_height = 8;
  std::int64_t image_width = 8;
  std::int64_t channels = 1;  ///< Values of a pixel.
  std::int64_t patch_size = 2;
  std::int64_t n_classes = 10;
  std::int64_t text_tokens = 0;
  std::string words = "joint";      ///< A name of dit_kinds.h.
  std::string modulation = "zero";  ///< Likewise.
  double class_dropout = 0.1;       ///< Chance that a sequence is learned without class and text.
  std::string objective = "rectified_flow";  ///< A name of objective.h.

  /// Sizes that follow from the keys.
  std::int64_t head_width() const { return head_dim == 0 ? dim / n_heads : head_dim; }
  std::int64_t kv_heads() const { return n_kv_heads == 0 ? n_heads : n_kv_heads; }
};

}  // namespace armillary::model

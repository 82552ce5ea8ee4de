// registry.cpp: models by name, and the keys that each has. All but dit are the same decoder with
// other options.
#include "armillary/model/registry.h"

#include "armillary/core/checked.h"
#include "armillary/core/error.h"
#include "armillary/model/decoder.h"
#include "armillary/model/decoder_cost.h"
#include "armillary/model/dit.h"
#include "armillary/model/dit_cost.h"
#include "armillary/model/gpt.h"
#include "armillary/model/gpt2.h"
#include "armillary/model/llama.h"
#include "armillary/model/moe.h"

namespace armillary::model {
namespace {

constexpr std::int64_t kMaxLayers = 4096;

/// The options of layers in a run.
DecoderOptions in_run(DecoderOptions options, const ModelRun& run) {
  return options.dtype(run.dtype)
      .native_bf16(run.native_bf16)
      .recompute(run.recompute)
      .loss_chunk_tokens(run.loss_chunk_tokens)
      .keep_gathered_inputs(run.keep_gathered_inputs)
      .seq_len(run.seq_len);
}

DitOptions dit_options(const ModelOptions& options, const ModelRun& run) {
  DitOptions dit = model::dit_options(options);
  dit.layers = in_run(dit.layers, run);
  return dit;
}

bool is_dit(const ModelOptions& options) {
  return options.name == "dit";
}

/// The section of a DiT.
Section dit_section(ModelOptions& m) {
  const Range size = between(1, kMaxSize);
  const Range side = between(1, 1 << 20);
  return {
      "model",
      {
          {"name", &m.name, "which; the other keys of this section are its own", model_names()},
          {"dim", &m.dim, "width of the residual stream", size},
          {"n_layers", &m.n_layers, "transformer layers", between(1, kMaxLayers)},
          {"n_heads", &m.n_heads, "heads; must divide dim", size},
          {"hidden_dim", &m.hidden_dim, "width of the MLP; 0: 4 dim", between(0, kMaxSize)},
          {"norm_eps", &m.norm_eps, "epsilon of LayerNorm", above_zero()},
          {"image_height", &m.image_height, "rows of a picture, in pixels or latents", side},
          {"image_width", &m.image_width, "columns of a picture", side},
          {"channels", &m.channels, "values of a pixel", between(1, 4096)},
          {"patch_size", &m.patch_size, "sides of a token; must divide those of the picture",
           between(1, 1024)},
          {"n_classes", &m.n_classes, "classes of pictures", size},
          {"text_tokens", &m.text_tokens, "words of a picture; 0: no text", between(0, 1 << 20)},
          {"vocab_size", &m.vocab_size, "words that there are, if there is text", size},
          {"words", &m.words, "in front of the patches, or read by cross-attention", words_names()},
          {"modulation", &m.modulation, "of each layer, or one for all with tables of layers",
           modulation_names()},
          {"class_dropout", &m.class_dropout,
           "chance that class and text are not told, for guidance; below 1", below_one()},
          {"objective", &m.objective, "how noise is put in and taken out", objective_names()},
      }};
}

/// Heads of a size of their own: even, and Q is no wider than a plan can have it.
void check_head_dim(const ModelOptions& model) {
  if (model.head_dim % 2 != 0) {
    fail<InvalidArgument>(
        "recipe: model.head_dim {}; an even number is required (rotary positions rotate pairs); "
        "nearest: {}",
        model.head_dim, model.head_dim + 1);
  }
  if (model.head_dim > kMaxSize / model.n_heads) {
    fail<InvalidArgument>(
        "recipe: model.head_dim {} with model.n_heads {}; a product of at most {} is required; "
        "nearest: n_heads {}",
        model.head_dim, model.n_heads, kMaxSize, kMaxSize / model.head_dim);
  }
}

/// The heads divide dim, evenly if positions are rotary, or have a size of their own.
void check_heads(const ModelOptions& model) {
  const bool has_head_dim = model.name == "llama" || model.name == "moe";
  if (has_head_dim && model.head_dim > 0) return check_head_dim(model);
  if (model.name == "gpt2") {
    if (model.dim % model.n_heads == 0) return;
    fail<InvalidArgument>(
        "recipe: model.n_heads {} with model.dim {}; n_heads must divide dim; nearest: n_heads {}",
        model.n_heads, model.dim, nearest_divisor(model.dim, model.n_heads));
  }
  // Head dims are even: rotary positions rotate pairs of dims.
  if (model.dim % 2 != 0) {
    fail<InvalidArgument>(
        "recipe: model.dim {}; an even number is required (rotary positions rotate pairs); "
        "nearest: {}",
        model.dim, model.dim + 1);
  }
  if (model.dim / 2 % model.n_heads != 0) {
    fail<InvalidArgument>(
        "recipe: model.n_heads {} with model.dim {}; 2 n_heads must divide dim (rotary positions "
        "rotate pairs); nearest: n_heads {}",
        model.n_heads, model.dim, nearest_divisor(model.dim / 2, model.n_heads));
  }
}

/// Keys of experts and of their router.
void add_expert_keys(Section& section, ModelOptions& m) {
  const Range size = between(1, kMaxSize);
  const Range size_or_none = between(0, kMaxSize);
  const std::vector<Key> keys{
      {"num_experts", &m.num_experts, "experts of a layer", size},
      {"num_shared_experts", &m.num_shared_experts, "experts of every token beside them",
       size_or_none},
      {"top_k", &m.top_k, "experts of a token", size},
      {"moe_inter_dim", &m.moe_inter_dim, "width of an expert; 0: hidden_dim", size_or_none},
      {"score_func", &m.score_func, "scores of the router", router_score_names()},
      {"route_norm", &m.route_norm, "scores of a token's experts are divided by their sum"},
      {"route_scale", &m.route_scale, "then they are multiplied by it", above_zero()},
      {"router_aux_loss_coef", &m.router_aux_loss_coef,
       "factor of the balance loss of a layer, which is not in the printed loss", at_least(0)},
      {"balance_over", &m.balance_over, "tokens whose experts it counts: batch is one pass",
       balance_group_names()},
      {"load_balance_coeff", &m.load_balance_coeff,
       "step of a bias that balances the choice; 0: none", at_least(0)}};
  section.keys.insert(section.keys.end(), keys.begin(), keys.end());
}

}  // namespace

// make_model, below, takes one of these.
const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names{"gpt", "gpt2", "llama", "moe", "dit"};
  return names;
}

ModelOptions default_options(const std::string& name) {
  ModelOptions options;
  options.name = name;
  options.enable_weight_tying = name == "gpt2";
  return options;
}

Section section_of(ModelOptions& m) {
  if (is_dit(m)) return dit_section(m);
  const Range size = between(1, kMaxSize);
  // 0 stands for the model's own choice.
  const Range size_or_default = between(0, kMaxSize);
  const bool is_moe = m.name == "moe";
  const bool is_llama = m.name == "llama" || is_moe;
  const bool is_gpt2 = m.name == "gpt2";
  Section section{
      "model",
      {
          {"name", &m.name, "which; the other keys of this section are its own", model_names()},
          {"dim", &m.dim, "width of the residual stream", size},
          {"n_layers", &m.n_layers, "transformer layers", between(1, kMaxLayers)},
          {"n_heads", &m.n_heads, "query heads; must divide dim", size},
          {"n_kv_heads", &m.n_kv_heads, "KV heads (GQA); 0: n_heads", size_or_default},
          {"hidden_dim", &m.hidden_dim,
           is_llama ? "width of the MLP; 0: 8/3 dim, as the keys below say"
                    : "width of the MLP; 0: 4 dim",
           size_or_default},
          {"vocab_size", &m.vocab_size, "words; text has 256 bytes and a separator", size},
          {"norm_eps", &m.norm_eps, is_gpt2 ? "epsilon of LayerNorm" : "epsilon of RMSNorm",
           above_zero()},
      }};
  // Positions.
  if (is_gpt2) {
    section.keys.push_back(
        {"max_seq_len", &m.max_seq_len, "learned positions; seq_len is at most that", size});
  } else {
    section.keys.push_back(
        {"rope_theta", &m.rope_theta, "base of the rotary periods", above_zero()});
  }
  section.keys.push_back({"enable_weight_tying", &m.enable_weight_tying, "output = embedding"});
  // Llama's rule for the width of its MLP.
  if (is_llama) {
    section.keys.push_back({"rope_scaling", &m.rope_scaling,
                            "none, linear:, dynamic:, llama3:, yarn: or longrope:.. for sequences "
                            "longer than the first training's"});
    section.keys.push_back(
        {"head_dim", &m.head_dim, "dims of a head; 0: dim / n_heads", size_or_default});
    section.keys.push_back({"qkv_bias", &m.qkv_bias, "biases of Q, K and V, as Qwen2"});
    section.keys.push_back({"qk_norm", &m.qk_norm, "RMSNorm of heads of Q and K, as Qwen3"});
    section.keys.push_back({"sliding_window", &m.sliding_window,
                            "keys that a token sees, which the mask must say too; 0: all before it",
                            size_or_default});
    section.keys.push_back(
        {"multiple_of", &m.multiple_of, "hidden_dim 0 is rounded up to a multiple of it", size});
    section.keys.push_back(
        {"ffn_dim_multiplier", &m.ffn_dim_multiplier, "factor of hidden_dim 0", above_zero(1e9)});
  }
  if (is_moe) add_expert_keys(section, m);
  return section;
}

void check_model(const ModelOptions& model) {
  if (is_dit(model)) return check_dit(model);
  check_heads(model);
  if (model.name == "moe") check_moe(model);
  // Every KV head serves as many query heads.
  if (model.n_heads % model.kv_heads() != 0) {
    fail<InvalidArgument>(
        "recipe: model.n_kv_heads {} with model.n_heads {}; n_kv_heads must divide n_heads; "
        "nearest: {}",
        model.kv_heads(), model.n_heads, nearest_divisor(model.n_heads, model.kv_heads()));
  }
  // Refuses a model with too many parameters to count, and a scaling that does not fit the heads.
  const DecoderOptions options = decoder_options(model);
  decoder_cost(options);
  if (options.max_seq_len() == 0) {
    check_rotary_shape(options.rope_scaling(),
                       {.head_dim = head_dim_of(options), .theta = options.rope_theta()});
  }
}

std::int64_t hidden_dim_of(const ModelOptions& options) {
  return is_dit(options) ? dit_options(options).layers.hidden_dim()
                         : decoder_options(options).hidden_dim();
}

void check_sequences(const ModelOptions& options, const SequenceSize& size) {
  if (is_dit(options)) {
    const DitOptions dit = dit_options(options);
    if (size.seq_len == dit.tokens()) return;
    fail<InvalidArgument>(
        "recipe: training.seq_len {} with pictures of {} x {} in patches of {} and {} words; {}, "
        "all of them, is required",
        size.seq_len, options.image_height, options.image_width, options.patch_size,
        dit.words_in_front(), dit.tokens());
  }
  if (options.vocab_size < size.vocab_size) {
    fail<InvalidArgument>(
        "recipe: model.vocab_size {}; at least {}, the vocabulary of the data, is required; "
        "nearest: {}",
        options.vocab_size, size.vocab_size, size.vocab_size);
  }
  const std::int64_t positions = decoder_options(options).max_seq_len();
  if (positions > 0 && size.seq_len > positions) {
    fail<InvalidArgument>(
        "recipe: training.seq_len {} with model.max_seq_len {}; at most max_seq_len, the learned "
        "positions, is required; nearest: {}",
        size.seq_len, positions, positions);
  }
}

DecoderOptions decoder_options(const ModelOptions& options) {
  if (options.name == "llama") return llama_options(options);
  if (options.name == "moe") return moe_options(options);
  return options.name == "gpt2" ? gpt2_options(options) : gpt_options(options);
}

cost::ModelCost model_cost(const ModelOptions& options, const ModelRun& run) {
  if (is_dit(options)) return dit_cost(dit_options(options, run));
  return decoder_cost(in_run(decoder_options(options), run));
}

std::unique_ptr<Model> make_model(const ModelOptions& options, const ModelRun& run) {
  if (is_dit(options)) return std::make_unique<Dit>(dit_options(options, run));
  return std::make_unique<Decoder>(in_run(decoder_options(options), run));
}

}  // namespace armillary::model

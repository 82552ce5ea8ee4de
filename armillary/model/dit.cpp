// dit.cpp: the units of the DiT. The branches of a layer are those of DecoderLayer under another
// norm.
#include "armillary/model/dit.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include "armillary/core/error.h"
#include "armillary/kernel/vector_math.h"
#include "armillary/model/decoder_layer.h"
#include "armillary/model/decoder_parameters.h"
#include "armillary/model/dit_cost.h"
#include "armillary/model/dit_parameters.h"
#include "armillary/model/layer_run.h"
#include "armillary/model/narrow_parameters.h"

namespace armillary::model {
namespace {

/// x times the matrix of this name, plus its bias.
at::Tensor affine(const LayerOps& ops, const at::Tensor& x, const Weights& weights,
                  const std::string& name) {
  EachProduct each;
  each.order = {0};
  each.biases = {weights.at(name + ".bias")};
  return ops.linear(x, {weights.at(name + ".weight")}, each)[0];
}

/// Tables of so many rows [R, E], from the conditions.
std::vector<at::Tensor> modulations(const LayerOps& ops, const at::Tensor& c_BRE,
                                    const Weights& weights, const std::string& name,
                                    std::int64_t count) {
  return affine(ops, at::silu(c_BRE), weights, name).squeeze(0).chunk(count, 1);
}

/// x and c, which lie in one tensor.
std::vector<at::Tensor> tokens_and_conditions(const at::Tensor& x, std::int64_t rows) {
  return x.split_with_sizes({x.size(1) - rows, rows}, 1);
}

/// One layer with its weights; it owns all that it uses.
struct DitLayer {
  DecoderLayer branches;
  std::shared_ptr<const LayerOps> ops;  ///< One rank's, for the modulations.
  TokensOfRow tokens_of_row;

  at::Tensor run(const at::Tensor& x, const Attend& attend) const {
    const auto parts = tokens_and_conditions(x, static_cast<std::int64_t>(tokens_of_row.size()));
    // In the order of DiT: shift, scale and gate of attention, then those of the MLP.
    const auto m = modulations(*ops, parts[1], branches.weights, branches.name + ".modulation", 6);
    const auto norm = [&](std::size_t shift) {
      return Norm{.weight_E = m[shift + 1],
                  .eps = branches.options.norm_eps(),
                  .bias_E = m[shift],
                  .tokens_of_row = tokens_of_row};
    };
    const at::Tensor h_BKE =
        gated_sum(parts[0], branches.attention(parts[0], norm(0), attend), m[2], tokens_of_row);
    const at::Tensor y_BKE =
        gated_sum(h_BKE, branches.feed_forward(h_BKE, norm(3)), m[5], tokens_of_row);
    return at::cat({y_BKE, parts[1]}, 1);
  }
};

/// Rows for runs of tokens with one time and class.
Conditions conditions_of_tokens(Objective objective, const at::Tensor& times_BL,
                                const at::Tensor& classes_BL, const EvenPart& mine) {
  const at::Tensor times = times_BL.contiguous();
  const at::Tensor classes = classes_BL.contiguous();
  const auto* const time = times.const_data_ptr<double>();
  const auto* const label = classes.const_data_ptr<std::int64_t>();
  std::vector<double> row_times;
  std::vector<std::int64_t> row_classes;
  Conditions conditions;
  for (std::int64_t i = 0; i < times.numel(); ++i) {
    if (i == 0 || time[i] != time[i - 1] || label[i] != label[i - 1]) {
      row_times.push_back(told_time(objective, time[i]));
      row_classes.push_back(label[i]);
      conditions.tokens_of_row.push_back(0);
    }
    if (i >= mine.begin && i < mine.begin + mine.size) ++conditions.tokens_of_row.back();
  }
  conditions.times_R = at::tensor(row_times, at::kDouble);
  conditions.classes_R = at::tensor(row_classes, at::kLong);
  return conditions;
}

}  // namespace

Dit::Dit(const DitOptions& options) : options_(options), ops_(layer_ops(options.layers)) {
  kernel::choose_vector_math();  // waves_at calls ATen's cos and sin
}

std::vector<std::string> Dit::units() const {
  return decoder_units(options_.layers);
}

std::vector<Parameter> Dit::parameters() const {
  return dit_parameters(options_);
}

cost::ModelCost Dit::cost() const {
  return dit_cost(options_);
}

std::vector<std::string> Dit::fields() const {
  std::vector<std::string> names{kPatches, kNoise, kTimes, kClasses};
  if (options_.text_tokens > 0) names.emplace_back(kText);
  return names;
}

std::int64_t Dit::targets(const Fields& tokens) const {
  if (options_.text_tokens == 0) return tokens.at(kPatches).size(0);
  return tokens.at(kText).eq(kPatchOfPicture).sum().item().toLong();
}

at::Tensor Dit::run(int unit, const Weights& weights, const at::Tensor& x,
                    const ModelInputs& inputs) {
  if (unit == 0) return run_embedding(weights, inputs);
  if (unit <= options_.layers.n_layers()) return run_layer(unit - 1, weights, x, inputs);
  return run_head(weights, x, inputs);
}

at::Tensor Dit::tokens_of(const Weights& weights, const ModelInputs& inputs) const {
  const at::ScalarType dtype = options_.layers.dtype();
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const TokenShards shards = inputs.token_shards();
  const auto mine = [&](const char* field) {
    return tokens_of_rank(inputs.batch.at(field), 1, shards);
  };
  at::Tensor patches_BKC = mine(kPatches).to(wide);
  if (inputs.batch.contains(kNoise)) {
    patches_BKC =
        noisy_patches(options_.objective, patches_BKC, mine(kNoise).to(wide), mine(kTimes));
  }
  const at::Tensor positions_K = tokens_of_rank(inputs.positions_L, 0, shards);
  const at::Tensor places_KE = sin_cos_positions((positions_K - options_.text_tokens).clamp_min(0),
                                                 options_.picture, options_.layers.dim())
                                   .to(dtype);
  at::Tensor x_BKE = affine(*ops_, patches_BKC.to(dtype), weights, "patch_embedding") + places_KE;
  if (options_.text_tokens == 0) return x_BKE;
  const at::Tensor words_BK = mine(kText);
  const at::Tensor text_BKE =
      rows_of_table(weights.at("text_embeddings.weight"), words_BK.clamp_min(0)) +
      rows_of_table(weights.at("text_positions.weight"),
                    positions_K.clamp_max(options_.text_tokens - 1));
  return at::where(words_BK.eq(kPatchOfPicture).unsqueeze(2), x_BKE, text_BKE.to(dtype));
}

at::Tensor Dit::run_embedding(const Weights& weights, const ModelInputs& inputs) {
  const at::ScalarType dtype = options_.layers.dtype();
  const Conditions& conditions = conditions_of(inputs);
  const Waves waves = waves_at(conditions.times_R, kTimeWaves / 2);
  const at::Tensor waves_BRW = at::cat({waves.cos_NC, waves.sin_NC}, 1).to(dtype).unsqueeze(0);
  const at::Tensor hidden_BRE = at::silu(affine(*ops_, waves_BRW, weights, "time_embedding.w1"));
  const at::Tensor class_RE =
      rows_of_table(weights.at("class_embeddings.weight"), conditions.classes_R).to(dtype);
  const at::Tensor c_BRE = affine(*ops_, hidden_BRE, weights, "time_embedding.w2") + class_RE;
  return at::cat({tokens_of(weights, inputs), c_BRE}, 1);
}

at::Tensor Dit::run_layer(std::int64_t layer, const Weights& weights, const at::Tensor& x,
                          const ModelInputs& inputs) {
  const TokenShards shards = inputs.token_shards();
  const DitLayer bound{.branches = {.options = options_.layers,
                                    .ops = shards ? layer_ops(options_.layers, shards) : ops_,
                                    .name = layer_unit(layer),
                                    .weights = weights,
                                    .angles = {},
                                    .tokens = inputs.positions_L.size(0)},
                       .ops = ops_,
                       .tokens_of_row = conditions_of(inputs).tokens_of_row};
  const auto layer_of = [bound](const at::Tensor& tokens, const Attend& attend) {
    return bound.run(tokens, attend);
  };
  return run_layer_under(options_.layers.recompute(), {layer_of, weights.values()}, x,
                         inputs.attends);
}

at::Tensor Dit::run_head(const Weights& weights, const at::Tensor& x, const ModelInputs& inputs) {
  const TokenShards shards = inputs.token_shards();
  const Conditions& conditions = conditions_of(inputs);
  const auto parts = tokens_and_conditions(x, conditions.rows());
  const auto m = modulations(*ops_, parts[1], weights, "modulation", 2);
  const Norm norm{.weight_E = m[1],
                  .eps = options_.layers.norm_eps(),
                  .bias_E = m[0],
                  .tokens_of_row = conditions.tokens_of_row};
  const at::Tensor prediction_BKC = ops_->linear_of_norm(
      parts[0], norm, {weights.at("output.weight")}, {weights.at("output.bias")})[0];
  if (!inputs.batch.contains(kNoise)) {
    return shards ? gather_tokens(prediction_BKC, shards) : prediction_BKC;
  }
  const auto mine = [&](const char* field) {
    return tokens_of_rank(inputs.batch.at(field), 1, shards).to(at::kDouble);
  };
  at::Tensor error_BKC =
      prediction_BKC.to(at::kDouble) - target_of(options_.objective, mine(kPatches), mine(kNoise));
  if (options_.text_tokens > 0) {
    const at::Tensor words_BK = tokens_of_rank(inputs.batch.at(kText), 1, shards);
    error_BKC = error_BKC.masked_fill(words_BK.ne(kPatchOfPicture).unsqueeze(2), 0);
  }
  return error_BKC.square().sum() / options_.picture.patch_values();
}

const Conditions& Dit::conditions_of(const ModelInputs& inputs) {
  const at::Tensor& times_BL = inputs.batch.at(kTimes);
  if (!conditions_times_.is_same(times_BL)) {
    const TokenShards shards = inputs.token_shards();
    const std::int64_t tokens = times_BL.size(1);
    const EvenPart mine = shards ? even_part(tokens, shards.ranks->index(), shards.ranks->ranks())
                                 : EvenPart{0, tokens};
    conditions_ =
        conditions_of_tokens(options_.objective, times_BL, inputs.batch.at(kClasses), mine);
    conditions_times_ = times_BL;
  }
  return conditions_;
}

}  // namespace armillary::model

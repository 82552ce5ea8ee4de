// dit.cpp: the units of the DiT. The branches of a layer are those of DecoderLayer under another
// norm.
#include "armillary/model/dit.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "armillary/core/error.h"
#include "armillary/kernel/vector_math.h"
#include "armillary/model/cross_attention.h"
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

/// Scale, shift and gate by adaLN-single: so many rows of a table more for each row of `base`.
std::vector<at::Tensor> sums_with_table(const at::Tensor& base_RNE, const at::Tensor& table_NE) {
  return (base_RNE + widened(table_NE).to(base_RNE.scalar_type())).unbind(1);
}

/// x, and behind it in one tensor what R rows of conditions have; parts may be empty.
struct PartsOfInput {
  at::Tensor x_BKE;
  at::Tensor c_BRE;
  at::Tensor shared_BNE;  ///< Six rows of a shared modulation for each of c.
  at::Tensor words_BNE;   ///< The words of each.
};

PartsOfInput parts_of_input(const at::Tensor& x, const DitOptions& options, std::int64_t rows) {
  const std::int64_t shared = options.modulation == ModulationKind::Single ? 6 * rows : 0;
  const std::int64_t words = options.has_cross_attention() ? options.text_tokens * rows : 0;
  const auto parts =
      x.split_with_sizes({x.size(1) - rows - shared - words, rows, shared, words}, 1);
  return {parts[0], parts[1], parts[2], parts[3]};
}

/// One layer with its weights; it owns all that it uses.
struct DitLayer {
  DecoderLayer branches;
  DitOptions options;
  std::shared_ptr<const LayerOps> ops;  ///< One rank's, for modulations and words.
  Conditions conditions;

  /// In the order of DiT: shift, scale and gate of attention, then those of the MLP.
  std::vector<at::Tensor> modulations_of(const PartsOfInput& parts) const {
    if (options.modulation == ModulationKind::Zero) {
      return modulations(*ops, parts.c_BRE, branches.weights, branches.name + ".modulation", 6);
    }
    const at::Tensor shared_RME =
        parts.shared_BNE.view({conditions.rows(), 6, parts.shared_BNE.size(2)});
    return sums_with_table(shared_RME, branches.weights.at(branches.name + ".scale_shift_table"));
  }

  at::Tensor with_words(const at::Tensor& x_BKE, const at::Tensor& words_BNE) const {
    if (!options.has_cross_attention()) return x_BKE;
    const CrossAttention cross{.options = branches.options,
                               .ops = branches.ops,
                               .words_ops = ops,
                               .name = branches.name + "." + kCrossAttention,
                               .weights = branches.weights,
                               .tokens_of_row = conditions.all_of_row};
    return x_BKE + cross.run(x_BKE, words_BNE);
  }

  at::Tensor run(const at::Tensor& x, const Attend& attend) const {
    const TokensOfRow& tokens_of_row = conditions.tokens_of_row;
    const PartsOfInput parts = parts_of_input(x, options, conditions.rows());
    const auto m = modulations_of(parts);
    const auto norm = [&](std::size_t shift) {
      return Norm{.weight_E = m[shift + 1],
                  .eps = branches.options.norm_eps(),
                  .bias_E = m[shift],
                  .tokens_of_row = tokens_of_row};
    };
    const at::Tensor attended_BKE = gated_sum(
        parts.x_BKE, branches.attention(parts.x_BKE, norm(0), attend), m[2], tokens_of_row);
    const at::Tensor h_BKE = with_words(attended_BKE, parts.words_BNE);
    const at::Tensor y_BKE =
        gated_sum(h_BKE, branches.feed_forward(h_BKE, norm(3)), m[5], tokens_of_row);
    return at::cat({y_BKE, parts.c_BRE, parts.shared_BNE, parts.words_BNE}, 1);
  }
};

/// Rows for runs of tokens with one time and class, and with the same words where they are a field
/// of their own.
Conditions conditions_of_tokens(const DitOptions& options, const Fields& batch,
                                const EvenPart& mine) {
  const at::Tensor times = batch.at(kTimes).contiguous();
  const at::Tensor classes = batch.at(kClasses).contiguous();
  const std::int64_t words = options.has_cross_attention() ? options.text_tokens : 0;
  const at::Tensor text = words > 0 ? batch.at(kWords).contiguous() : classes;
  const auto* const time = times.const_data_ptr<double>();
  const auto* const label = classes.const_data_ptr<std::int64_t>();
  const auto* const word = text.const_data_ptr<std::int64_t>();
  std::vector<double> row_times;
  std::vector<std::int64_t> row_classes;
  std::vector<std::int64_t> row_words;
  Conditions conditions;
  for (std::int64_t i = 0; i < times.numel(); ++i) {
    const auto* const first = word + i * words;
    if (i == 0 || time[i] != time[i - 1] || label[i] != label[i - 1] ||
        !std::equal(first, first + words, first - words)) {
      row_times.push_back(told_time(options.objective, time[i]));
      row_classes.push_back(label[i]);
      row_words.insert(row_words.end(), first, first + words);
      conditions.tokens_of_row.push_back(0);
      conditions.all_of_row.push_back(0);
    }
    ++conditions.all_of_row.back();
    if (i >= mine.begin && i < mine.begin + mine.size) ++conditions.tokens_of_row.back();
  }
  conditions.times_R = at::tensor(row_times, at::kDouble);
  conditions.classes_R = at::tensor(row_classes, at::kLong);
  conditions.words_RT = at::tensor(row_words, at::kLong).view({conditions.rows(), words});
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
  if (options_.words_in_front() > 0) names.emplace_back(kText);
  if (options_.has_cross_attention()) names.emplace_back(kWords);
  return names;
}

std::int64_t Dit::targets(const Fields& tokens) const {
  if (options_.words_in_front() == 0) return tokens.at(kPatches).size(0);
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
  const at::Tensor places_KE =
      sin_cos_positions((positions_K - options_.words_in_front()).clamp_min(0), options_.picture,
                        options_.layers.dim())
          .to(dtype);
  at::Tensor x_BKE = affine(*ops_, patches_BKC.to(dtype), weights, "patch_embedding") + places_KE;
  if (options_.words_in_front() == 0) return x_BKE;
  const at::Tensor words_BK = mine(kText);
  const at::Tensor text_BKE =
      rows_of_table(weights.at("text_embeddings.weight"), words_BK.clamp_min(0)) +
      rows_of_table(weights.at("text_positions.weight"),
                    positions_K.clamp_max(options_.text_tokens - 1));
  return at::where(words_BK.eq(kPatchOfPicture).unsqueeze(2), x_BKE, text_BKE.to(dtype));
}

at::Tensor Dit::words_of(const Weights& weights, const Conditions& conditions) const {
  const at::Tensor words_RTE =
      rows_of_table(weights.at("text_embeddings.weight"), conditions.words_RT) +
      widened(weights.at("text_positions.weight"));
  return words_RTE.to(options_.layers.dtype()).flatten(0, 1).unsqueeze(0);
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
  std::vector<at::Tensor> all{tokens_of(weights, inputs), c_BRE};
  if (options_.modulation == ModulationKind::Single) {
    all.push_back(affine(*ops_, at::silu(c_BRE), weights, "shared_modulation")
                      .view({1, 6 * conditions.rows(), options_.layers.dim()}));
  }
  if (options_.has_cross_attention()) all.push_back(words_of(weights, conditions));
  return at::cat(all, 1);
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
                       .options = options_,
                       .ops = ops_,
                       .conditions = conditions_of(inputs)};
  const auto layer_of = [bound](const at::Tensor& tokens, const Attend& attend) {
    return bound.run(tokens, attend);
  };
  return run_layer_under(options_.layers.recompute(), {layer_of, weights.values()}, x,
                         inputs.attends);
}

at::Tensor Dit::run_head(const Weights& weights, const at::Tensor& x, const ModelInputs& inputs) {
  const TokenShards shards = inputs.token_shards();
  const Conditions& conditions = conditions_of(inputs);
  const PartsOfInput parts = parts_of_input(x, options_, conditions.rows());
  const auto m =
      options_.modulation == ModulationKind::Zero
          ? modulations(*ops_, parts.c_BRE, weights, "modulation", 2)
          : sums_with_table(parts.c_BRE.squeeze(0).unsqueeze(1), weights.at("scale_shift_table"));
  const Norm norm{.weight_E = m[1],
                  .eps = options_.layers.norm_eps(),
                  .bias_E = m[0],
                  .tokens_of_row = conditions.tokens_of_row};
  const at::Tensor prediction_BKC = ops_->linear_of_norm(
      parts.x_BKE, norm, {weights.at("output.weight")}, {weights.at("output.bias")})[0];
  if (!inputs.batch.contains(kNoise)) {
    return shards ? gather_tokens(prediction_BKC, shards) : prediction_BKC;
  }
  const auto mine = [&](const char* field) {
    return tokens_of_rank(inputs.batch.at(field), 1, shards).to(at::kDouble);
  };
  at::Tensor error_BKC =
      prediction_BKC.to(at::kDouble) - target_of(options_.objective, mine(kPatches), mine(kNoise));
  if (options_.words_in_front() > 0) {
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
    conditions_ = conditions_of_tokens(options_, inputs.batch, mine);
    conditions_times_ = times_BL;
  }
  return conditions_;
}

}  // namespace armillary::model

// decoder.cpp: the units of the decoder. The rotary angles are computed once for a pass and shared
// by all layers.
#include "armillary/model/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/tensor.h>

#include <memory>

#include "armillary/core/error.h"
#include "armillary/kernel/vector_math.h"
#include "armillary/model/cross_entropy.h"
#include "armillary/model/decoder_cost.h"
#include "armillary/model/decoder_layer.h"
#include "armillary/model/decoder_parameters.h"
#include "armillary/model/layer_run.h"
#include "armillary/model/moe_layer.h"
#include "armillary/model/narrow_parameters.h"

namespace armillary::model {
namespace {

/// Angles position * frequency for each pair of dims (RoFormer, arXiv:2104.09864).
RotaryAngles rotary_angles_at(const at::Tensor& positions_L, const RotaryFrequencies& frequencies,
                              at::ScalarType dtype) {
  // fp64 until here: at position 10^6 an fp32 angle would be wrong by a sixteenth of a radian.
  const auto angles =
      at::outer(positions_L.to(at::kDouble), at::tensor(frequencies.of_pair, at::kDouble));
  return {(angles.cos() * frequencies.scale).to(dtype),
          (angles.sin() * frequencies.scale).to(dtype)};
}

/// Rows of the table of learned positions.
at::Tensor learned_positions(const at::Tensor& table_SE, const at::Tensor& positions_L) {
  const std::int64_t last = positions_L.numel() == 0 ? 0 : positions_L.max().item().toLong();
  if (last >= table_SE.size(0)) {
    fail<InvalidArgument>(
        "model: a token at position {}; positions below {}, the rows of pos_embeddings.weight, are "
        "required; nearest: model.max_seq_len {}",
        last, table_SE.size(0), last + 1);
  }
  return rows_of_table(table_SE, positions_L);
}

/// The sequences of this rank's tokens.
SequencesOfPass sequences_of_shard(SequencesOfPass sequences, const TokenShards& shards) {
  if (!sequences.number_L.defined()) return sequences;
  sequences.number_L = tokens_of_rank(sequences.number_L, 0, shards);
  return sequences;
}

}  // namespace

Decoder::Decoder(const DecoderOptions& options) : options_(options), ops_(layer_ops(options)) {
  kernel::choose_vector_math();  // rotary_angles_at calls ATen's cos and sin
}

std::vector<std::string> Decoder::units() const {
  return decoder_units(options_);
}

std::vector<Parameter> Decoder::parameters() const {
  return decoder_parameters(options_);
}

cost::ModelCost Decoder::cost() const {
  return decoder_cost(options_);
}

at::Tensor Decoder::run(int unit, const Weights& weights, const at::Tensor& x,
                        const ModelInputs& inputs) {
  if (unit == 0) return run_embedding(weights, inputs);
  const int parts = has_experts(options_) ? 2 : 1;  // units of a layer
  const int layer = (unit - 1) / parts;
  if (layer == options_.n_layers()) return run_head(weights, x, inputs);
  if ((unit - 1) % parts == 1) return run_experts(layer, weights, x, inputs);
  return run_layer(layer, weights, x, inputs);
}

at::Tensor Decoder::run_embedding(const Weights& weights, const ModelInputs& inputs) const {
  const at::Tensor& table_VE = weights.at("tok_embeddings.weight");
  const at::Tensor& tokens_BL = inputs.batch.at(kTokens);
  const TokenShards shards = inputs.token_shards();
  at::Tensor x_BLE = shards
                         ? embedding_of_words(table_VE, words_of(shards, table_VE).begin, tokens_BL)
                         : rows_of_table(table_VE, tokens_BL);
  // Learned positions are added before the sum is rounded.
  const bool learns_positions = options_.max_seq_len() > 0;
  if (shards) {
    x_BLE = reduce_scatter_tokens(learns_positions ? x_BLE : x_BLE.to(options_.dtype()), shards);
  }
  if (learns_positions) {
    x_BLE = x_BLE + learned_positions(weights.at("pos_embeddings.weight"),
                                      tokens_of_rank(inputs.positions_L, 0, shards));
  }
  return x_BLE.to(options_.dtype());
}

at::Tensor Decoder::run_layer(std::int64_t layer, const Weights& weights, const at::Tensor& x_BLE,
                              const ModelInputs& inputs) {
  const DecoderLayer bound{
      .options = options_,
      .ops = ops_over(inputs.token_shards()),
      .name = layer_unit(layer),
      .weights = weights,
      .angles = options_.max_seq_len() > 0 ? RotaryAngles() : angles_at(inputs.positions_L),
      .tokens = inputs.positions_L.size(0)};
  const auto layer_of = [bound](const at::Tensor& x, const Attend& attend) {
    return bound.run(x, attend);
  };
  return run_layer_under(options_.recompute(), {layer_of, weights.values()}, x_BLE, inputs.attends);
}

// Every policy makes all of it again: nothing of attention is here.
at::Tensor Decoder::run_experts(std::int64_t layer, const Weights& weights, const at::Tensor& h_BLE,
                                const ModelInputs& inputs) const {
  const TokenShards shards = inputs.token_shards();
  const MoeLayer bound{.options = options_,
                       .ops = ops_over(shards),
                       .name = layer_unit(layer),
                       .weights = weights,
                       .place = {.ranks = inputs.expert_parallel,
                                 .sequences = sequences_of_shard(inputs.sequences, shards)}};
  if (options_.recompute() == cost::Recompute::None) return bound.run(h_BLE);
  const Layer again = [bound](const at::Tensor& h) { return bound.run(h); };
  return recomputed(h_BLE, weights.values(), again, again);
}

at::Tensor Decoder::run_head(const Weights& weights, const at::Tensor& x_BLE,
                             const ModelInputs& inputs) const {
  const TokenShards shards = inputs.token_shards();
  at::Tensor features_BLE = ops_->norm(x_BLE, decoder_norm(options_, weights, "norm"));
  if (shards) features_BLE = gather_tokens(features_BLE, shards);
  const at::Tensor& output_VE =
      weights.at(options_.tied() ? "tok_embeddings.weight" : "output.weight");
  if (!inputs.batch.contains(kLabels)) return ops_->linear(features_BLE, output_VE);
  return cross_entropy(features_BLE.flatten(0, 1), output_VE, inputs.batch.at(kLabels).flatten(),
                       {.chunk_tokens = options_.loss_chunk_tokens(),
                        .ignored_label = kIgnoredLabel,
                        .native_bf16 = options_.native_bf16(),
                        .ranks = shards.ranks,
                        .first_word = words_of(shards, output_VE).begin});
}

std::shared_ptr<const LayerOps> Decoder::ops_over(const TokenShards& shards) const {
  return shards ? layer_ops(options_, shards) : ops_;
}

EvenPart Decoder::words_of(const TokenShards& shards, const at::Tensor& table_VE) const {
  if (!shards) return {0, options_.vocab_size()};
  const EvenPart words =
      even_part(options_.vocab_size(), shards.ranks->index(), shards.ranks->ranks());
  ARMILLARY_CHECK(table_VE.size(0) == words.size);  // the range of the store
  return words;
}

const RotaryAngles& Decoder::angles_at(const at::Tensor& positions_L) {
  if (!angles_positions_L_.is_same(positions_L)) {
    const RotaryShape shape{.head_dim = head_dim_of(options_),
                            .theta = options_.rope_theta(),
                            .seq_len = options_.seq_len()};
    angles_ = rotary_angles_at(positions_L, rotary_frequencies(options_.rope_scaling(), shape),
                               options_.dtype() == at::kDouble ? at::kDouble : at::kFloat);
    angles_positions_L_ = positions_L;
  }
  return angles_;
}

}  // namespace armillary::model

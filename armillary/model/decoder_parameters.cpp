#include "armillary/model/decoder_parameters.h"

#include <cmath>

namespace armillary::model {
namespace {

constexpr Init kOnes{.mean = 1};
constexpr double kDeviation = 0.02;

/// Adds the parameters of one layer.
void add_layer(std::vector<Parameter>& all, const DecoderOptions& options, std::int64_t index) {
  const std::string unit = layer_unit(index);
  const std::int64_t dim = options.dim();
  const std::int64_t hidden = options.hidden_dim();
  const std::int64_t head = dim / options.n_heads();
  const std::int64_t group = dim / options.n_kv_heads();  // width of the query heads of a KV head
  const Init init{.deviation = kDeviation};
  const Init residual{.deviation =
                          kDeviation / std::sqrt(2.0 * static_cast<double>(options.n_layers()))};
  const auto add = [&](const char* name, Shape shape, TpSplit placement, std::int64_t grain,
                       Init of) {
    all.push_back({unit + name, std::move(shape), placement, grain, {unit}, of});
  };
  add(".attention_norm.weight", {dim}, TpSplit::Whole, 1, kOnes);
  add(".ffn_norm.weight", {dim}, TpSplit::Whole, 1, kOnes);
  add(".attention.wq.weight", {dim, dim}, TpSplit::Columns, group, init);
  add(".attention.wk.weight", {options.n_kv_heads() * head, dim}, TpSplit::Columns, head, init);
  add(".attention.wv.weight", {options.n_kv_heads() * head, dim}, TpSplit::Columns, head, init);
  add(".attention.wo.weight", {dim, dim}, TpSplit::Rows, group, residual);
  add(".feed_forward.w1.weight", {hidden, dim}, TpSplit::Columns, 1, init);
  add(".feed_forward.w2.weight", {dim, hidden}, TpSplit::Rows, 1, residual);
  if (options.feed_forward() == FeedForwardKind::SwiGlu) {
    add(".feed_forward.w3.weight", {hidden, dim}, TpSplit::Columns, 1, init);
  }
}

}  // namespace

std::string layer_unit(std::int64_t layer) {
  return "layers." + std::to_string(layer);
}

std::vector<std::string> decoder_units(const DecoderOptions& options) {
  std::vector<std::string> units{kEmbeddingUnit};
  for (std::int64_t i = 0; i < options.n_layers(); ++i) units.push_back(layer_unit(i));
  units.emplace_back(kHeadUnit);
  return units;
}

std::vector<Parameter> decoder_parameters(const DecoderOptions& options) {
  const Shape table{options.vocab_size(), options.dim()};
  // The first norm divides by the size of the embedding, and so does its gradient, which a
  // deviation of 0.02 would make 50 times larger.
  Parameter embedding{.name = "tok_embeddings.weight",
                      .shape = table,
                      .placement = TpSplit::Vocabulary,
                      .units = {kEmbeddingUnit},
                      .init = {.deviation = options.tied() ? kDeviation : 1}};
  if (options.tied()) embedding.units.emplace_back(kHeadUnit);
  std::vector<Parameter> all{std::move(embedding)};
  for (std::int64_t i = 0; i < options.n_layers(); ++i) add_layer(all, options, i);
  all.push_back(
      {.name = "norm.weight", .shape = {options.dim()}, .units = {kHeadUnit}, .init = kOnes});
  if (!options.tied()) {
    all.push_back({.name = "output.weight",
                   .shape = table,
                   .placement = TpSplit::Vocabulary,
                   .units = {kHeadUnit},
                   .init = {.deviation = kDeviation}});
  }
  return all;
}

}  // namespace armillary::model

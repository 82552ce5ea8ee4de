// decoder_parameters.cpp: the list in the order of checkpoints: the tables of words and positions,
// layer by layer the norms and the matrices with their biases, the last norm, the output matrix.
#include "armillary/model/decoder_parameters.h"

#include <cmath>
#include <utility>

namespace armillary::model {
namespace {

constexpr Init kOnes{.mean = 1};
constexpr Init kZeros{.mean = 0};
constexpr double kDeviation = 0.02;

void add_norm(std::vector<Parameter>& all, const DecoderOptions& options, const std::string& name,
              const std::vector<std::string>& units) {
  const Shape shape{options.dim()};
  all.push_back({.name = name + ".weight", .shape = shape, .units = units, .init = kOnes});
  if (options.norm() == NormKind::Rms) return;
  all.push_back({.name = name + ".bias", .shape = shape, .units = units, .init = kZeros});
}

/// Adds a matrix of a layer, and its bias if it has one: cut as the outputs are.
void add_matrix(std::vector<Parameter>& all, const std::string& unit, Parameter matrix,
                bool has_bias) {
  matrix.units = {unit};
  const std::string name = matrix.name;
  matrix.name = name + ".weight";
  all.push_back(matrix);
  if (!has_bias) return;
  Parameter bias{
      .name = name + ".bias", .shape = {matrix.shape[0]}, .units = {unit}, .init = kZeros};
  if (matrix.placement == TpSplit::Columns) {
    bias.placement = matrix.placement;
    bias.grain = matrix.grain;
    bias.piece = matrix.piece;
    bias.copied = matrix.copied;
  }
  all.push_back(std::move(bias));
}

/// Adds router, shared experts and experts of one layer.
void add_experts(std::vector<Parameter>& all, const DecoderOptions& options, std::int64_t index,
                 const MatrixDeviations& deviations) {
  const MoeOptions& moe = options.moe();
  const std::string name = layer_unit(index) + ".moe.";
  const std::vector<std::string> both{layer_unit(index), experts_unit(index)};
  const Init init{.deviation = deviations.of_inputs};
  const Init residual{.deviation = deviations.of_sums};
  const std::int64_t dim = options.dim();
  all.push_back({.name = name + "router.gate.weight",
                 .shape = {moe.num_experts, dim},
                 .units = both,
                 .init = init});
  if (moe.load_balance_coeff > 0) {
    all.push_back({.name = name + "expert_bias",
                   .shape = {moe.num_experts},
                   .units = both,
                   .init = kZeros,
                   .sign_rate = moe.load_balance_coeff});
  }
  if (moe.num_shared_experts > 0) {
    const std::int64_t hidden = moe.num_shared_experts * moe.moe_inter_dim;
    const auto add = [&](const char* of, const Shape& shape, TpSplit placement,
                         const Init& values) {
      all.push_back({.name = name + "shared_experts." + of + ".weight",
                     .shape = shape,
                     .placement = placement,
                     .units = both,
                     .init = values});
    };
    add("w1", {hidden, dim}, TpSplit::Columns, init);
    add("w2", {dim, hidden}, TpSplit::Rows, residual);
    add("w3", {hidden, dim}, TpSplit::Columns, init);
  }
  const auto add = [&](const char* of, std::int64_t out, std::int64_t in, const Init& values) {
    all.push_back({.name = name + "experts." + of,
                   .shape = {moe.num_experts, out, in},
                   .units = {experts_unit(index)},
                   .init = values,
                   .is_expert = true});
  };
  add("w1", moe.moe_inter_dim, dim, init);
  add("w2", dim, moe.moe_inter_dim, residual);
  add("w3", moe.moe_inter_dim, dim, init);
}

}  // namespace

std::string layer_unit(std::int64_t layer) {
  return "layers." + std::to_string(layer);
}

std::string experts_unit(std::int64_t layer) {
  return layer_unit(layer) + ".experts";
}

bool has_experts(const DecoderOptions& options) {
  return options.moe().num_experts > 0;
}

void add_attention_matrices(std::vector<Parameter>& all, const DecoderOptions& options,
                            const std::string& unit, const std::string& name,
                            const MatrixDeviations& deviations) {
  const std::int64_t dim = options.dim();
  const std::int64_t head = head_dim_of(options);
  const std::int64_t heads = options.n_heads() * head;
  const std::int64_t kv_heads = options.n_kv_heads() * head;
  const std::int64_t group = heads / options.n_kv_heads();  // width of the query heads of a KV head
  const Init init{.deviation = deviations.of_inputs};
  const Init residual{.deviation = deviations.of_sums};
  const bool qkv_bias = options.bias() || options.qkv_bias();
  const std::string of = unit + "." + name;
  add_matrix(all, unit,
             {.name = of + ".wq",
              .shape = {heads, dim},
              .placement = TpSplit::Columns,
              .grain = group,
              .init = init,
              .piece = head},
             qkv_bias);
  // With more ranks than KV heads, each has some query heads of one KV head, and all of that.
  for (const char* matrix : {".wk", ".wv"}) {
    add_matrix(all, unit,
               {.name = of + matrix,
                .shape = {kv_heads, dim},
                .placement = TpSplit::Columns,
                .grain = head,
                .init = init,
                .copied = true},
               qkv_bias);
  }
  add_matrix(all, unit,
             {.name = of + ".wo",
              .shape = {dim, heads},
              .placement = TpSplit::Rows,
              .grain = group,
              .init = residual,
              .piece = head},
             options.bias());
}

void add_layer_matrices(std::vector<Parameter>& all, const DecoderOptions& options,
                        std::int64_t index, const MatrixDeviations& deviations) {
  const std::string unit = layer_unit(index);
  const std::int64_t dim = options.dim();
  const std::int64_t hidden = options.hidden_dim();
  add_attention_matrices(all, options, unit, "attention", deviations);
  for (const char* norm : {".attention.q_norm.weight", ".attention.k_norm.weight"}) {
    if (!options.qk_norm()) break;
    all.push_back(
        {.name = unit + norm, .shape = {head_dim_of(options)}, .units = {unit}, .init = kOnes});
  }
  if (has_experts(options)) return add_experts(all, options, index, deviations);
  const auto add = [&](const char* of, const Shape& shape, TpSplit placement, double deviation) {
    add_matrix(all, unit,
               {.name = unit + ".feed_forward" + of,
                .shape = shape,
                .placement = placement,
                .init = {.deviation = deviation}},
               options.bias());
  };
  add(".w1", {hidden, dim}, TpSplit::Columns, deviations.of_inputs);
  add(".w2", {dim, hidden}, TpSplit::Rows, deviations.of_sums);
  if (options.feed_forward() == FeedForwardKind::SwiGlu) {
    add(".w3", {hidden, dim}, TpSplit::Columns, deviations.of_inputs);
  }
}

std::vector<std::string> decoder_units(const DecoderOptions& options) {
  std::vector<std::string> units{kEmbeddingUnit};
  for (std::int64_t i = 0; i < options.n_layers(); ++i) {
    units.push_back(layer_unit(i));
    if (has_experts(options)) units.push_back(experts_unit(i));
  }
  units.emplace_back(kHeadUnit);
  return units;
}

std::vector<Parameter> decoder_parameters(const DecoderOptions& options) {
  const Shape table{options.vocab_size(), options.dim()};
  const bool learns_positions = options.max_seq_len() > 0;
  // The first norm divides by the size of the embedding, and so does its gradient, which a
  // deviation of 0.02 would make 50 times larger.
  const bool is_small = options.tied() || learns_positions;
  Parameter embedding{.name = "tok_embeddings.weight",
                      .shape = table,
                      .placement = TpSplit::Vocabulary,
                      .units = {kEmbeddingUnit},
                      .init = {.deviation = is_small ? kDeviation : 1}};
  if (options.tied()) embedding.units.emplace_back(kHeadUnit);
  std::vector<Parameter> all{std::move(embedding)};
  if (learns_positions) {
    all.push_back({.name = "pos_embeddings.weight",
                   .shape = {options.max_seq_len(), options.dim()},
                   .units = {kEmbeddingUnit},
                   .init = {.deviation = kDeviation}});
  }
  const MatrixDeviations deviations{
      .of_inputs = kDeviation,
      .of_sums = kDeviation / std::sqrt(2.0 * static_cast<double>(options.n_layers()))};
  for (std::int64_t i = 0; i < options.n_layers(); ++i) {
    const std::string unit = layer_unit(i);
    std::vector<std::string> of_mlp{unit};
    if (has_experts(options)) of_mlp.push_back(experts_unit(i));
    add_norm(all, options, unit + ".attention_norm", {unit});
    add_norm(all, options, unit + ".ffn_norm", of_mlp);
    add_layer_matrices(all, options, i, deviations);
  }
  add_norm(all, options, "norm", {kHeadUnit});
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

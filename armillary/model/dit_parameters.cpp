#include "armillary/model/dit_parameters.h"

#include <cmath>

#include "armillary/model/decoder_parameters.h"

namespace armillary::model {
namespace {

constexpr double kDitDeviation = 0.02;

/// Adds a matrix and its bias, which is 0. `deviation` 0: the matrix is 0 too.
void add_affine(std::vector<Parameter>& all, const std::string& unit, const std::string& name,
                const Shape& shape, double deviation) {
  all.push_back({.name = name + ".weight",
                 .shape = shape,
                 .units = {unit},
                 .init = {.deviation = deviation}});
  all.push_back({.name = name + ".bias", .shape = {shape[0]}, .units = {unit}, .init = {}});
}

}  // namespace

std::vector<Parameter> dit_parameters(const DitOptions& options) {
  const std::int64_t dim = options.layers.dim();
  const std::int64_t values = options.picture.patch_values();
  std::vector<Parameter> all;
  add_affine(all, kEmbeddingUnit, "patch_embedding", {dim, values},
             1 / std::sqrt(static_cast<double>(values)));
  add_affine(all, kEmbeddingUnit, "time_embedding.w1", {dim, kTimeWaves}, kDitDeviation);
  add_affine(all, kEmbeddingUnit, "time_embedding.w2", {dim, dim}, kDitDeviation);
  all.push_back({.name = "class_embeddings.weight",
                 .shape = {options.n_classes + 1, dim},
                 .units = {kEmbeddingUnit},
                 .init = {.deviation = kDitDeviation}});
  if (options.text_tokens > 0) {
    const auto add_table = [&](const char* name, std::int64_t rows) {
      all.push_back({.name = name,
                     .shape = {rows, dim},
                     .units = {kEmbeddingUnit},
                     .init = {.deviation = 1}});
    };
    add_table("text_embeddings.weight", options.vocab_size + 1);
    add_table("text_positions.weight", options.text_tokens);
  }
  const bool is_single = options.modulation == ModulationKind::Single;
  const auto add_modulation = [&](const std::string& unit, const std::string& of,
                                  std::int64_t rows) {
    if (!is_single) return add_affine(all, unit, of + "modulation", {rows * dim, dim}, 0);
    all.push_back({.name = of + "scale_shift_table", .shape = {rows, dim}, .units = {unit}});
  };
  if (is_single) add_affine(all, kEmbeddingUnit, "shared_modulation", {6 * dim, dim}, 0);
  // The gates are 0: sums need no smaller matrices.
  const double deviation = 1 / std::sqrt(static_cast<double>(dim));
  for (std::int64_t i = 0; i < options.layers.n_layers(); ++i) {
    const std::string unit = layer_unit(i);
    add_modulation(unit, unit + ".", 6);
    add_layer_matrices(all, options.layers, i, {deviation, deviation});
    if (!options.has_cross_attention()) continue;
    add_attention_matrices(all, options.layers, unit, kCrossAttention, {deviation, 0});
  }
  add_modulation(kHeadUnit, "", 2);
  add_affine(all, kHeadUnit, "output", {values, dim}, 0);
  return all;
}

}  // namespace armillary::model

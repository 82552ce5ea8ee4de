// decoder_parameters.h: units and parameters of the decoder (decoder.h), by its options alone.
#pragma once

#include <string>
#include <vector>

#include "armillary/model/decoder_options.h"
#include "armillary/model/parameter.h"

namespace armillary::model {

inline constexpr const char* kEmbeddingUnit = "embedding";
inline constexpr const char* kHeadUnit = "head";
/// "layers.0"; the names of its parameters begin so.
std::string layer_unit(std::int64_t layer);
/// "layers.0.experts".
std::string experts_unit(std::int64_t layer);

bool has_experts(const DecoderOptions& options);

/// embedding, layers.0, .., head; with experts layers.0.experts behind layers.0.
std::vector<std::string> decoder_units(const DecoderOptions& options);

/// Names are those of torchtitan's llama3. Matrices are normal(0, 0.02), those whose product is
/// added to the residual stream divided by sqrt(2 n_layers) (GPT-2); the embedding normal(0, 1)
/// (torchtitan) unless it is the output too or positions are learned; weights of norms 1, biases 0.
/// Along tp each rank has some KV heads with their query heads, or with more ranks than KV heads
/// one of them and some of its query heads; some of the MLP's width; and some words; with the
/// biases of these outputs. It has all of every other bias and of norms and positions; norms of
/// heads serve the heads that it has.
///
/// Experts have the names and shapes of torchtitan's moe, [X, out, in]; they alone are owned by
/// their unit. Router, shared experts and their norm are of both units of a layer.
std::vector<Parameter> decoder_parameters(const DecoderOptions& options);

/// Standard deviations of the matrices of a layer.
struct MatrixDeviations {
  double of_inputs;  ///< Those whose input is the residual stream,
  double of_sums;    ///< and those whose product is added to it.
};
/// Adds the matrices of an attention of a layer, of this name ("attention") in it, with their
/// biases.
void add_attention_matrices(std::vector<Parameter>& all, const DecoderOptions& options,
                            const std::string& unit, const std::string& name,
                            const MatrixDeviations& deviations);
/// Adds the matrices of a layer with their biases, and the norms of its heads.
void add_layer_matrices(std::vector<Parameter>& all, const DecoderOptions& options,
                        std::int64_t index, const MatrixDeviations& deviations);

}  // namespace armillary::model

// dit_parameters.h: units and parameters of a DiT (dit.h), by its options alone.
#pragma once

#include <string>
#include <vector>

#include "armillary/model/dit_options.h"
#include "armillary/model/parameter.h"

namespace armillary::model {

/// Waves of a time that the network is told.
inline constexpr std::int64_t kTimeWaves = 256;

/// Name of the cross-attention in a layer.
inline constexpr const char* kCrossAttention = "cross_attention";

/// The units are those of a decoder. Matrices of the layers are normal(0, 1 / sqrt(dim)), which is
/// Xavier's of a square one; the embedding of patches normal(0, 1 / sqrt(inputs)), those of times
/// and classes normal(0, 0.02), those of words and their places normal(0, 1), as large as positions
/// of patches; modulations and their tables, the output of cross-attention, that of the model and
/// biases are 0 (adaLN-zero). Along tp each rank has some heads and some of the MLP's width, and
/// all of everything else.
std::vector<Parameter> dit_parameters(const DitOptions& options);

}  // namespace armillary::model

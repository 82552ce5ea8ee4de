// registry.h: the models that a recipe can name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "armillary/train/models/decoder_options.h"
#include "armillary/train/models/model.h"
#include "armillary/train/models/model_options.h"

namespace armillary::train {

const std::vector<std::string>& model_names();

/// Whether the options fit each other. @throws InvalidArgument with the nearest legal value.
void check_model(const ModelOptions& options);

/// Sizes by the name of the model; dtype, recomputation and chunks of the loss are its defaults.
/// Requires check_model.
DecoderOptions decoder_options(const ModelOptions& options);

/// A model with the parameters of `seed`.
std::unique_ptr<Model> make_model(const DecoderOptions& options, std::int64_t seed);

}  // namespace armillary::train

// decoder_cost.h: what a decoder (decoder.h) takes, without making one.
#pragma once

#include "armillary/train/models/decoder_options.h"
#include "armillary/train/models/model.h"

namespace armillary::train {

/// A tied output counts as a matrix, the embedding table does not.
/// @throws InvalidArgument if the layers have 2^62 parameters or more.
ModelCost decoder_cost(const DecoderOptions& options);

}  // namespace armillary::train

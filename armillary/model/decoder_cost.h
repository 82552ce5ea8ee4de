// decoder_cost.h: parameters, flops and bytes of a decoder (decoder.h), counted from its options.
#pragma once

#include "armillary/model/decoder_options.h"
#include "armillary/model/model.h"

namespace armillary::model {

/// Matrix parameters include the output matrix, also if it is tied to the embedding, but not the
/// embedding's look-up. Makes no tensors.
/// @throws InvalidArgument if the matrices of the layers, or a table of words or positions, have
/// 2^57 parameters or more.
cost::ModelCost decoder_cost(const DecoderOptions& options);

}  // namespace armillary::model

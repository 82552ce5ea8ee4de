// dit_cost.h: parameters, flops and bytes of a DiT (dit.h), counted from its options.
#pragma once

#include "armillary/model/dit_options.h"
#include "armillary/predict/cost/model.h"

namespace armillary::model {

/// Bytes of a layer are a decoder's, with the outputs of both branches, which its gates keep.
/// Makes no tensors. @throws InvalidArgument as decoder_cost().
cost::ModelCost dit_cost(const DitOptions& options);

}  // namespace armillary::model

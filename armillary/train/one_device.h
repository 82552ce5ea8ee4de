// one_device.h: attention over a whole sequence on one device, written plainly: what
// check_model.h compares with. It shares no code with kernels, plans or ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include "armillary/model/attend.h"
#include "armillary/plan/mask/mask.h"

namespace armillary::train {

/// [S, S] bool: the keys that each query sees. Cost: O(S^2 x bands).
at::Tensor visible_pairs(const plan::Mask& mask);

/// Softmax attention by one S x S matrix of scores a head, with ATen's functions and their
/// gradients. Products have the dtype of the inputs, the softmax is fp32, or fp64 for those. A
/// query that sees no key gets 0. Tokens are in the order of their positions.
model::Attend attend_on_one_device(const at::Tensor& visible_SS);

}  // namespace armillary::train

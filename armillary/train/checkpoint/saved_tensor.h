// saved_tensor.h: a tensor of a checkpoint: values of a range of a whole tensor.
#pragma once

#include <utility>

#include "armillary/io/safetensors.h"
#include "armillary/model/global_range.h"

namespace armillary::train {

/// The name is that of the whole; info.shape is range.size.
struct SavedTensor : io::TensorBytes {
  SavedTensor(io::TensorBytes whole)  // NOLINT: implicit, a tensor that is whole
      : io::TensorBytes(std::move(whole)), range(model::whole_of(info.shape)) {}
  SavedTensor(io::TensorBytes part, model::GlobalRange of)
      : io::TensorBytes(std::move(part)), range(std::move(of)) {}

  model::GlobalRange range;
};

}  // namespace armillary::train

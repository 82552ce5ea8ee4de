// dtypes.h: converts dtypes of plans to dtypes of tensors.
//
// Plans do not include libtorch, so they have an enum of their own (plan/problem.h). This is the
// only conversion between the two.
#pragma once

#include <c10/core/ScalarType.h>

#include "armillary/core/error.h"
#include "armillary/plan/problem.h"

namespace armillary::runtime {

/// F64 -> kDouble, F32 -> kFloat, Bf16 -> kBFloat16, F16 -> kHalf.
/// @throws InternalError for a value that is no dtype.
inline at::ScalarType scalar_type(plan::Dtype dtype) {
  switch (dtype) {
    case plan::Dtype::F64:
      return at::kDouble;
    case plan::Dtype::F32:
      return at::kFloat;
    case plan::Dtype::Bf16:
      return at::kBFloat16;
    case plan::Dtype::F16:
      return at::kHalf;
  }
  fail<InternalError>("scalar_type: dtype {}", static_cast<int>(dtype));
}

}  // namespace armillary::runtime

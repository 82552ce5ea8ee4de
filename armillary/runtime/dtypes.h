// dtypes.h: dtypes of plans as dtypes of tensors.
#pragma once

#include <c10/core/ScalarType.h>

#include "armillary/core/error.h"
#include "armillary/plan/problem.h"

namespace armillary::runtime {

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

// dtypes.h: converts dtypes of plans to dtypes of tensors, and back.
//
// Plans do not include libtorch, so they have an enum of their own (plan/problem.h). These are the
// only conversions between the two.
#pragma once

#include <c10/core/ScalarType.h>

#include <string_view>

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

/// The inverse of scalar_type(); `what` has the dtype, such as "attention: q".
/// @throws InvalidArgument for any other dtype of tensors.
inline plan::Dtype plan_dtype(at::ScalarType dtype, std::string_view what) {
  switch (dtype) {
    case at::kDouble:
      return plan::Dtype::F64;
    case at::kFloat:
      return plan::Dtype::F32;
    case at::kBFloat16:
      return plan::Dtype::Bf16;
    case at::kHalf:
      return plan::Dtype::F16;
    default:
      fail<InvalidArgument>("{} is {}; fp64, fp32, bf16 or fp16 is required", what,
                            c10::toString(dtype));
  }
}

}  // namespace armillary::runtime

// tensor_array.h: tensors as the arrays of collectives (comm/array.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "armillary/comm/array.h"
#include "armillary/core/error.h"

namespace armillary::train {

/// The elements of a tensor, which keeps them: contiguous, in the memory of the CPU, of fp64, fp32
/// or bf16.
inline comm::Array array_of(const at::Tensor& x) {
  ARMILLARY_CHECK(x.is_contiguous() && x.is_cpu());
  comm::ElementType dtype = comm::ElementType::Fp64;
  if (x.scalar_type() == at::kBFloat16) {
    dtype = comm::ElementType::Bf16;
  } else if (x.scalar_type() == at::kFloat) {
    dtype = comm::ElementType::Fp32;
  } else {
    ARMILLARY_CHECK(x.scalar_type() == at::kDouble);
  }
  return {static_cast<std::byte*>(x.data_ptr()), x.numel(), dtype};
}

}  // namespace armillary::train

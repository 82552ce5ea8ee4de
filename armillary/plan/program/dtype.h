// dtype.h: the element types of tensors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace armillary::plan {

/// Element type of a tensor.
enum class Dtype : std::uint8_t { F64, F32, Bf16, F16 };

/// Bytes of one element: 8, 4, 2, 2.
std::int64_t bytes_of(Dtype dtype);
/// Element type of partial results and of sums of gradients: fp64 for fp64 inputs, otherwise fp32.
Dtype accumulator(Dtype dtype);
/// The names are `fp64`, `fp32`, `bf16`, `fp16`.
std::string to_string(Dtype dtype);
/// @throws InvalidArgument with the nearest name.
Dtype parse_dtype(std::string_view text);

}  // namespace armillary::plan

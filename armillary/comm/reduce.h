// reduce.h: the arithmetic of collectives on host memory.
#pragma once

#include <span>

#include "armillary/comm/array.h"

namespace armillary::comm {

enum class Reduction : std::uint8_t { Sum, Max };

/// result[i] = ((a_0[i] + a_1[i]) + a_2[i]) + ..., or the largest, NaN if one is. Sums are rounded
/// to the dtype after each addition; those of bf16 and fp16 are fp32, rounded once at the end.
/// Integers wrap around. `result` may be one of the addends, or apart from all. Requires at least
/// one addend, counts and dtypes that are equal, and a dtype that is not Byte.
void reduce(Reduction reduction, std::span<const Array> addends, const Array& result);

}  // namespace armillary::comm

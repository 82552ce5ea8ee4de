// reduce.h: the arithmetic of collectives: sums and maxima over arrays in host memory.
#pragma once

#include <span>

#include "armillary/comm/array.h"

namespace armillary::comm {

/// The operation that combines the elements of all ranks.
enum class Reduction : std::uint8_t { Sum, Max };

/// result[i] = ((a_0[i] + a_1[i]) + a_2[i]) + ..., or the largest of them, NaN if one is NaN. Sums
/// are rounded to the dtype after each addition, except that bf16 and fp16 are summed in fp32 and
/// rounded once at the end, or not at all into a result of fp32. Integers wrap around. `result` may
/// be one of the addends, or must not overlap any. Requires at least one addend, equal counts, and
/// one dtype, which is not Byte, but for that of such a result.
void reduce(Reduction reduction, std::span<const Array> addends, const Array& result);

}  // namespace armillary::comm

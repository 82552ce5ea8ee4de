// features.h: functions that kernels need from code that is compiled once, for all instruction
// sets.
//
// They use the standard library, which sources of one instruction set must not (simd-inl.h).
#pragma once

#include "armillary/kernel/cpu/isa_kernels.h"

namespace armillary::kernel::cpu {

/// Writes the dropout factors, 0 or 1 / (1 - p), of a query and its keys to factors[0 ..
/// keys.count). Requires `score.dropout`.
void fill_dropout(const TileScore& score, const RowKeys& keys, float* factors);

}  // namespace armillary::kernel::cpu

// features.h: what tiles ask of code that is compiled once for all instruction sets.
#pragma once

#include "armillary/kernel/cpu/tiles.h"

namespace armillary::kernel::cpu {

/// factors[i] = 0 or 1 / (1 - p) for query `row` of the tile and its keys [first, first + count).
void fill_dropout(const TileScore& score, int row, int first, int count, float* factors);

}  // namespace armillary::kernel::cpu

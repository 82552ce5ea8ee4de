// text.h: a relayout to read: the layouts and the bytes, a table of the parts, then the grid of the
// programs (plan/program/grid.h), with the place of a fault marked.
//
//   relayout contiguous over ranks 0-1 -> striped:2 over ranks 0-1: 2 layers, 8 tokens; 256 bytes
//   move, 256 stay
//   part       from       to      tokens
//   0             0        0           2
//
//             rank 0                     rank 1
//   step 0    keep(kv0) kv2<r1 kv1>r1    kv2>r0 kv1<r0 keep(kv3)
#pragma once

#include <string>

#include "armillary/plan/program/diagnostics.h"
#include "armillary/plan/program/measures.h"
#include "armillary/plan/relayout/shape.h"

namespace armillary::plan::relayout {

/// The tables and the grid. Requires programs in the words of a relayout; any other fault prints.
std::string to_grid(const World& world, const RelayoutShape& shape, const Diagnostic* at = nullptr);

}  // namespace armillary::plan::relayout

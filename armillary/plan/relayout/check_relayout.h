// check_relayout.h: proves that the programs of a relayout bring every (layer, head, position) of K
// and V to its new owners, once, or says where they do not. Rules, by name:
//
//   well_formed, zero_copy, match, order   those of the machine (plan/program/check.h): no hazard,
//              no deadlock
//   caller     the tiles are those of the shape, each the caller's in a slot of its own; no others
//   layer      an op moves K and V of the layer that its step names: none is moved before that
//              layer has been computed
//   undefined  no op reads a cell that was not written: values of released pages are in no tile
//   old        the old layout is not written over
//   twice      no cell arrives twice
//   complete   every cell of the new layout is there at the end
//   bytes      the messages have as many bytes as the closed form of the shape
#pragma once

#include <vector>

#include "armillary/plan/program/diagnostics.h"
#include "armillary/plan/program/measures.h"
#include "armillary/plan/relayout/shape.h"

namespace armillary::plan::relayout {

/// An empty result means that the programs are this relayout; otherwise the first cause. Any
/// programs may be given; `world` has the measures of relayout_measures().
/// @throws InvalidArgument as check_shape(). Cost: O(ops * heads).
std::vector<Diagnostic> check_relayout(const World& world, const RelayoutShape& shape,
                                       int limit = 20);

}  // namespace armillary::plan::relayout

// fused.h: what a kernel call does beside its own op, so that memory is not touched for it.
//
//   clear(o) attend(q, k, v, o)                          the call writes o where it would add to it
//   clear(o) attend(q, k, v, o) finish(out, o)           the call writes out; there is no o
//   clear(dq, dk, dv) attend_grad(..) copy(dq) ..        likewise
//
// The first is the first step of any ring, and most tiles of gradients; the others are attention on
// one rank, and between the exchanges of Ulysses. A plan needs no word for it.
#pragma once

#include <vector>

#include "armillary/attention/compiled_program.h"

namespace armillary::attention {

/// Fills `fused`, `fresh` and `results`, and takes sums that are not made then out of `home`.
/// Requires everything before them; `waits` of the ops as plan::dependencies gives them.
void find_fused(CompiledProgram& compiled, const std::vector<std::vector<int>>& waits);

}  // namespace armillary::attention

// at_once.h: attention that one kernel call does from begin to end.
//
//   clear(o) attend(q, k, v, o) finish(out, o)           -->  attend_all, into out
//   clear(dq, dk, dv) attend_grad(..) copy(dq) copy(dk) copy(dv)  -->  attend_grad_all, into them
//
// That is all of attention on one rank, and between the exchanges of Ulysses. Sums in fp32 are not
// made, cleared and rounded in memory then. A plan needs no word for it.
#pragma once

#include <vector>

#include "armillary/attention/compiled_program.h"

namespace armillary::attention {

/// Fills `at_once` and `part_of_other`, and takes the tiles that are not needed then out of `home`.
/// Requires everything before them; `waits` of the ops as plan::dependencies gives them.
void find_at_once(CompiledProgram& compiled, const std::vector<std::vector<int>>& waits);

}  // namespace armillary::attention

// structure.h: the rules `blocks`, and `well_formed` and `match` as far as attention has a part in
// them; the machine's part is in program/check.h. Internal to verify.
//
// They are checked in the order of the functions below, and each function requires that the ones
// before it found nothing. After them a plan can be read without a check of any index.
#pragma once

#include "armillary/plan/fold.h"
#include "armillary/plan/plan.h"
#include "armillary/plan/program/check.h"

namespace armillary::plan::verifier {

/// Rule `blocks`, first part: the blocks partition the tokens. After it, sizes may be computed.
void check_partition(const Plan& plan, Diagnostics& diagnostics);

/// Rule `well_formed`: that of the machine, and what attention demands of its ops.
/// With a fold the plan has the programs of its representatives.
void check_well_formed(const Plan& plan, const Measures& measures, Diagnostics& diagnostics,
                       const Fold* fold = nullptr);

/// Rule `blocks`, second part: inputs, outputs and saved tiles lie where they should.
void check_externals(const Plan& plan, Diagnostics& diagnostics);

/// Rule `match` for the representatives of a fold: a send meets the receive of the representative
/// of its peer's class, in the numbers that this one sees. `from` and `to` are classes.
std::vector<MatchedMessage> match_folded(const Plan& plan, const Fold& fold,
                                         Diagnostics& diagnostics);

}  // namespace armillary::plan::verifier

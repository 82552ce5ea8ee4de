// structure.h: the rules `blocks`, `well_formed`, `zero_copy` and `match`. Internal to verify.
//
// They are checked in the order of the functions below, and each function requires that the ones
// before it found nothing. After them a plan can be read without a check of any index.
#pragma once

#include "armillary/plan/fold.h"
#include "armillary/plan/plan.h"
#include "armillary/plan/verify/diagnostics.h"

namespace armillary::plan::verifier {

/// Rule `blocks`, first part: the blocks partition the tokens. After it, sizes may be computed.
void check_partition(const Plan& plan, Diagnostics& diagnostics);

/// Rule `well_formed`, all ranks on all cores. After it, every index in the plan may be used
/// without a check. With a fold the plan has the programs of its representatives.
void check_well_formed(const Plan& plan, Diagnostics& diagnostics, const Fold* fold = nullptr);

/// Rule `blocks`, second part: inputs, outputs and saved tiles lie where they should.
void check_externals(const Plan& plan, Diagnostics& diagnostics);

/// Rule `zero_copy`, all ranks on all cores.
void check_zero_copy(const Plan& plan, Diagnostics& diagnostics);

/// A message: op `send` of rank `from` meets op `recv` of rank `to`.
struct MatchedMessage {
  Rank from = 0;
  int send = 0;
  Rank to = 0;
  int recv = 0;
};

/// Rule `match`. Returns the messages of a plan that obeys it, by sender, then receiver, then lane,
/// in program order.
std::vector<MatchedMessage> match_messages(const Plan& plan, Diagnostics& diagnostics);

/// The same for the representatives of a fold: a send meets the receive of the representative of
/// its peer's class, in the numbers that this one sees. `from` and `to` are classes.
std::vector<MatchedMessage> match_folded(const Plan& plan, const Fold& fold,
                                         Diagnostics& diagnostics);

}  // namespace armillary::plan::verifier

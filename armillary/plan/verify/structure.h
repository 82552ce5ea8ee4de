// structure.h: the rules `form`, `blocks`, `loan` and `match`: a plan that can be read at all.
#pragma once

#include "armillary/plan/plan.h"
#include "armillary/plan/verify/report.h"

namespace armillary::plan::verifier {

/// Rule `blocks`, first part: the blocks partition the tokens. After it, sizes may be computed.
void check_partition(const Plan& plan, Report& report);

/// Rule `form`. After it, every index in the plan may be used without a check.
void check_form(const Plan& plan, Report& report);

/// Rule `blocks`, second part: inputs, outputs and saved tiles lie where they should.
void check_externals(const Plan& plan, Report& report);

/// Rule `loan`. Requires `form`.
void check_loans(const Plan& plan, Report& report);

/// The two ends of a message.
struct Message {
  Rank from = 0;
  int send = 0;  ///< Op of `from`.
  Rank to = 0;
  int recv = 0;  ///< Op of `to`.
};

/// Rule `match`. Returns the messages of a plan that obeys it.
std::vector<Message> match_messages(const Plan& plan, Report& report);

}  // namespace armillary::plan::verifier

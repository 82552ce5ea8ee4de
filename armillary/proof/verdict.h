// verdict.h: what ranks find wrong together, as it travels between them, and ends all of them.
#pragma once

#include <cstdint>
#include <string_view>

#include "armillary/comm/communicator.h"

namespace armillary::proof {

/// The graver ones last.
enum class Finding : std::uint64_t { Fine, RefusedInput, RefusedPlan, Different };

/// The gravest finding that a rank knows of. Copied between ranks as bytes.
struct Verdict {
  Finding finding = Finding::Fine;
  char text[504] = {};

  /// Takes this one if it is graver. Of a text that is too long the middle is left out: what is
  /// required stands at its end.
  void raise(Finding worse, std::string_view why);
};

/// PlanError for RefusedPlan, else InvalidArgument.
[[noreturn]] void throw_verdict(const Verdict& verdict);

/// Throws a verdict that is not Fine. All ranks of the group call it with one of their own, and
/// none leaves before all have come: the first that throws ends the group, and would take their
/// verdicts from the others.
void throw_together(comm::Communicator& comm, const Verdict& verdict);

}  // namespace armillary::proof

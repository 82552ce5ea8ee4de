// verdict.h: the result of a check that ranks make together, as a value that they exchange, and the
// exception that then ends all of them.
#pragma once

#include <cstdint>
#include <string_view>

#include "armillary/comm/communicator.h"

namespace armillary::proof {

/// Kinds of result, the graver ones last.
enum class Finding : std::uint64_t { Fine, RefusedInput, RefusedPlan, Different };

/// The gravest finding that a rank knows of, with its text. Ranks exchange it as bytes, so it has a
/// fixed size and no pointers.
struct Verdict {
  Finding finding = Finding::Fine;
  char text[504] = {};  ///< Ends with a zero.

  /// Replaces the verdict if `worse` is graver. Among equally grave findings, the first stays.
  /// A text that is too long loses its middle: its end says what is required.
  void raise(Finding worse, std::string_view why);
};

/// Throws PlanError for RefusedPlan, InvalidArgument for any other finding.
[[noreturn]] void throw_verdict(const Verdict& verdict);

/// Throws a verdict that is not Fine; returns at once if it is. All ranks of the group call it,
/// each with a verdict of its own, and all of these are Fine or none is; they meet before they
/// throw (comm/together.h).
void throw_together(comm::Communicator& comm, const Verdict& verdict);

}  // namespace armillary::proof

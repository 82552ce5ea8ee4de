// trial.h: an attention layer on two ranks of an engine, in processes of their own, so that an
// engine that hangs or crashes is a line of the report.
//
//   armillary launch -n 2 --engine mpi -- bench layer ..   --lines of JSON--> Trial
#pragma once

#include <string>
#include <vector>

namespace armillary::doctor {

/// The result of a command that was run to its end.
struct Trial {
  bool works = false;
  double seconds = 0;    ///< Duration of it all: starting two ranks, meeting, two passes, ending.
  double max_error = 0;  ///< Against one rank, as `bench layer` has found it.
  std::string reason;    ///< The last line of its errors; empty if it works.
};

/// The command that measures a small layer on two ranks. `engine` is threads, mpi or c10d;
/// `program` is the path of armillary.
std::vector<std::string> trial_command(const std::string& program, const std::string& engine);

/// Runs the command and reads its result. It does not inherit the place of this process in a run,
/// and is ended with all that it started if it takes longer than `limit_s`.
Trial run_trial(const std::vector<std::string>& command, double limit_s);

/// Reads the lines of `bench layer --json`. Separate for tests.
Trial parse_trial(int exit_code, const std::string& output, const std::string& errors);

}  // namespace armillary::doctor

// problems.h: the problems of the calls of a run, as flags, for readers that make its plans again.
//
//   rank 0 --ProblemLog--> RUN/flight/problems.json --read_problems--> flags of `armillary report`
//
// Flight files have the ops of calls, and no mask. Packed documents bring a new mask with each
// sequence; as many are kept as calls in the flight files can have.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "armillary/plan/problem.h"

namespace armillary::recorder {

/// Names and values of flags, such as {"--world", "4"}: all that describe a problem, and
/// `--strategy`. Masks are written as full, causal or documents where they are, else as bands.
using ProblemFlags = std::vector<std::pair<std::string, std::string>>;
ProblemFlags flags_of(const plan::Problem& problem, const std::string& strategy);

/// The file that has the problems of a run.
std::string problems_path(const std::string& run_folder);

/// The problem of the calls that began at a time or later, up to the next one.
struct RecordedProblem {
  std::int64_t since_ns = 0;  ///< monotonic_ns() of the host of rank 0 (recorder.h).
  ProblemFlags flags;
  bool operator==(const RecordedProblem&) const = default;
};

/// The problems of a rank that runs. Threads: that of the rank.
class ProblemLog {
 public:
  static constexpr std::size_t kKept = 8;

  /// Writes nothing before the first problem, nor without a folder.
  explicit ProblemLog(std::string run_folder) : run_folder_(std::move(run_folder)) {}
  /// The calls from now on are of this problem. Writes the file if it is another one than before.
  /// @throws IoError naming the path.
  void begin(const plan::Problem& problem, const std::string& strategy);

 private:
  std::string run_folder_;
  std::vector<RecordedProblem> problems_;
};

/// The problems of a run, the first one first; none if it recorded none, or if another process than
/// `pid` wrote them. @throws IoError for a file that cannot be read or is none of a ProblemLog.
std::vector<RecordedProblem> read_problems(const std::string& run_folder, std::int64_t pid);

}  // namespace armillary::recorder

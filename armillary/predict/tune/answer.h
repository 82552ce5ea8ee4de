// answer.h: what a search found, as data: the chosen candidate and all that it was weighed against.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/predict/tune/candidate.h"

namespace armillary::tune {

/// The last thing that the search did with a candidate.
enum class Outcome : std::uint8_t {
  Chosen,
  Slower,     ///< Simulated: it takes longer than the chosen one, or its layout gains too little.
  Bounded,    ///< Not simulated: one of its ranks alone takes nearly as long as the best.
  Estimated,  ///< Not simulated: it is estimated to be far slower, or the search has done enough.
  TooLarge,   ///< It needs more memory than a device has.
  Wrong,      ///< Its plan cannot run: Evaluation::error. Built-in strategies have none.
};
std::string_view to_string(Outcome outcome);

/// Simulated times of a candidate, of all passes together.
struct Times {
  double total_s = 0;
  double compute_s = 0;  ///< On the rank that computes longest.
  double exposed_s = 0;  ///< Mean over ranks of messages that no compute hides.
  bool operator==(const Times&) const = default;
};

/// One candidate with all that is known about it.
struct Evaluation {
  Candidate candidate;
  Outcome outcome = Outcome::Slower;
  double bound_s = 0;             ///< No simulation ends earlier (predict/sim/rank_path.h).
  double estimate_s = 0;          ///< By some of its ranks.
  Times times;                    ///< Zeros if it was not simulated.
  std::int64_t sent_bytes = 0;    ///< By the rank that sends most of those looked at.
  std::int64_t memory_bytes = 0;  ///< Likewise; of all ranks if it was simulated.
  double measured_s = 0;          ///< On the ranks of `armillary tune --measure`; else 0.
  std::string error;              ///< If its plan is wrong: what the simulation found.
  bool operator==(const Evaluation&) const = default;

  /// Whether it could be chosen, as far as is known.
  bool can_run() const { return outcome != Outcome::TooLarge && outcome != Outcome::Wrong; }
  bool simulated() const { return times.total_s > 0; }
  /// Measured seconds if there are any, else simulated ones.
  double seconds() const { return measured_s > 0 ? measured_s : times.total_s; }
};

/// The answer to a question. Evaluations are sorted: the chosen one, measured ones, simulated ones
/// by time, then others by estimate.
struct Answer {
  std::vector<Evaluation> evaluations;
  /// No strategy of any kind takes less time on this cluster: all ranks share the work evenly at
  /// the best rate of the kernels, or receive the fewest bytes (plan/lower_bound.h).
  double floor_s = 0;
  bool operator==(const Answer&) const = default;

  const Evaluation& choice() const { return evaluations.front(); }
};

/// The answer as one JSON object; docs/tuning.md lists the keys. parse_answer(to_json(a)) == a.
std::string to_json(const Answer& answer);
/// @throws InvalidArgument for a text that to_json() cannot have made.
Answer parse_answer(std::string_view text);

}  // namespace armillary::tune

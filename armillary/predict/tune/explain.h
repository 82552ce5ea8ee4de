// explain.h: why each evaluation lost, and what would have to change for it to win.
//
// Evaluations are the best candidate of each strategy, and of each other layout of the chosen
// strategy: the best of a search among its own kind, simulated or measured. A evaluation is
// compared with the chosen candidate under altered questions: links faster or slower, no latency, a
// longer or shorter sequence, other KV heads, more memory. An alteration is named if the evaluation
// is then at least as fast as the chosen candidate (a third one may be faster than both).
#pragma once

#include <string>
#include <vector>

#include "armillary/predict/tune/answer.h"

namespace armillary::tune {

struct Explanation {
  std::string candidate;
  std::string lost;    ///< `1.31 times as long: 0.2 ms more compute, 1.1 ms more exposed messages`
  std::string change;  ///< `wins with links between nodes 4 times as fast`
  bool operator==(const Explanation&) const = default;
};

/// Requires an answer to this question. Strategies that cannot solve the problem, or do so only
/// with plans that have another name, come last, with the reason. Worlds of more than 32 ranks are
/// compared by estimates, which the text says.
/// Cost: a search among its own kind and about 20 simulations for each evaluation.
std::vector<Explanation> explain(const Question& question, const Answer& answer);

/// A paragraph for each. Changes that were listed for one before are not listed again.
std::string to_text(const std::vector<Explanation>& explanations);

/// The explanations as a JSON array.
std::string to_json(const std::vector<Explanation>& explanations);

}  // namespace armillary::tune

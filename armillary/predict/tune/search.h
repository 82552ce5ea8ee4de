// search.h: the fastest candidate for a question.
//
//   first candidates --estimate--> promising ones --neighbours, estimate--> .. --simulate--> best
//                                                    ^                                        |
//                                                    '-- neighbours of the best of each kind -'
//
// A candidate is simulated unless its bound says that it cannot win, its estimate is far above the
// best and the question names no strategies, it does not fit, or the search has simulated enough
// messages. Neighbours of the best, in
// small worlds of each strategy, cut and placement, are looked at until none is new.
#pragma once

#include "armillary/predict/tune/answer.h"

namespace armillary::tune {

/// Searches. Deterministic: the same question has the same answer on every machine.
/// @throws InvalidArgument as the constructors of Evaluator and sim::Topology, or "tune on ..: does
/// not fit: needs X GiB, has Y, the longest sequence that fits is Z" if no candidate fits. X is of
/// the candidate that needs least.
/// @throws PlanError if the plans of all candidates are wrong, which only added strategies' are.
Answer search(const Question& question);

/// The best of the whole space, each candidate simulated: for tests and for the curious.
Answer search_exhaustively(const Question& question);

}  // namespace armillary::tune

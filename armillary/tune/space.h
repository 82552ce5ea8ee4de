// space.h: the candidates for a question.
//
//   first_candidates()   every cut u x Rq x Rk and every named strategy, with usual movements
//   neighbours()         candidates that differ from one in a single choice: the movement of an
//                        axis, the nesting of the axes, the side that walks in backward, slices,
//                        C and placement of StarTrail, nodes and tiles of TokenRing, packing, wire,
//                        placement of ranks
//   whole_space()        every combination of these choices, for exhaustive searches
//
// All candidates are legal for the problem. The search walks from the first candidates along
// neighbours (search.h), so it sees a small part of the whole space.
#pragma once

#include <vector>

#include "armillary/tune/candidate.h"

namespace armillary::tune {

/// Worlds above this are searched more coarsely, as their estimates and simulations take longer.
inline constexpr int kLargeWorld = 64;

/// Candidates of one layout, or of all worthwhile ones if the layout is free: with a full mask all
/// layouts have the same work, so the simplest is taken; otherwise those with well balanced work,
/// and `contiguous`, which sends least under narrow windows.
std::vector<Candidate> first_candidates(const Question& question);

/// Up to kLargeWorld ranks, the order of the axes and the placement also change together.
/// Cost: one check_legal for each.
std::vector<Candidate> neighbours(const Question& question, const Candidate& candidate);

/// The first candidates with every combination of other choices. Some hundred candidates for a few
/// ranks, thousands for a hundred.
std::vector<Candidate> whole_space(const Question& question);

/// The layouts of first_candidates().
std::vector<plan::Layout> layouts(const Question& question);

/// Largest share of the visible pairs that the queries of a rank have, over the mean; 1 is even.
double imbalance(const plan::Problem& problem);

}  // namespace armillary::tune

// space.h: the candidates for a question.
//
//   first_candidates()   every cut u x Rq x Rk and every named strategy, with usual movements
//   neighbours()         candidates that differ from one in a single choice: the movement of an
//                        axis, the nesting of the axes, the side that walks in backward, slices,
//                        C and placement of StarTrail, nodes and tiles of TokenRing, packing,
//                        transfer dtype, layout, placement of ranks
//   whole_space()        every combination of these choices, for exhaustive searches
//
// All candidates are legal for the problem. The search walks from the first candidates along
// neighbours (search.h), so it sees a small part of the whole space.
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/predict/tune/candidate.h"

namespace armillary::tune {

/// Worlds above this are searched more coarsely, as their estimates and simulations take longer.
inline constexpr int kLargeWorld = 64;
/// The largest world. Larger ones would take more than some minutes and gigabytes.
inline constexpr int kMostRanks = 4096;

/// The reasons why strategies that the question names have no candidate, in its order.
std::vector<std::string> left_out(const Question& question);

/// The candidates from which the search starts. If the layout is free, those of the first layouts.
std::vector<Candidate> first_candidates(const Question& question);

/// Up to kLargeWorld ranks, the order of the axes and the placement also change together.
/// Cost: one check_legal for each.
std::vector<Candidate> neighbours(const Question& question, const Candidate& candidate);

/// Every combination of choices. Some hundred candidates for a few ranks, thousands for a hundred.
std::vector<Candidate> whole_space(const Question& question);

/// The layouts of first_candidates(), or of all candidates. With a full mask all layouts have the
/// same work, so there is one, the simplest. Otherwise the first are `contiguous`, which sends
/// least under narrow windows, and `zigzag`; the others too if neither shares the work evenly.
/// Layouts of equal work still differ: in the blocks that are sent, in the kernel calls and their
/// sizes, and in how even each step of a ring is. Worlds above kLargeWorld have the first alone.
enum class LayoutChoice : std::uint8_t { First, All };
std::vector<plan::Layout> layouts(const Question& question, LayoutChoice choice);

/// Largest share of the visible pairs that the queries of a rank have, over the mean; 1 is even.
double imbalance(const plan::Problem& problem);

}  // namespace armillary::tune

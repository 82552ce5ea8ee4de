// result_json.h: the results of a bench as JSON lines: one object a result, numbers with all their
// digits, units in the names of the keys, such as "seconds" or "over_kernels_us".
//
//   facts          the case as it was given, the instruction set, errors against fp64
//   + turn counts  "turns": how many turns the medians were taken from; where a second core is
//                  needed also "left_out_turns", "left_out_cores" (their ratios), "all_left_out"
//   + rates        the medians and their quotients, such as "gflops" and "of_peak"
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "armillary/lab/bench/collectives_rate.h"
#include "armillary/lab/bench/contender.h"
#include "armillary/lab/bench/cores.h"
#include "armillary/lab/bench/kernel_rate.h"
#include "armillary/lab/bench/layer_rate.h"
#include "armillary/lab/bench/merge_rate.h"
#include "armillary/lab/bench/overlap_rate.h"
#include "armillary/lab/bench/step_overlap_rate.h"

namespace armillary::bench {

/// Everything that is known before anything is timed.
nlohmann::ordered_json facts_json(const KernelCase& spec, const KernelRate& rate);
nlohmann::ordered_json facts_json(const LayerCase& spec, const LayerRate& rate);
nlohmann::ordered_json facts_json(const MergeCase& spec, const MergeRate& rate);
nlohmann::ordered_json facts_json(const CoresCase& spec, const CoresRate& rate);
nlohmann::ordered_json facts_json(const OverlapCase& spec, const OverlapRate& rate);
nlohmann::ordered_json facts_json(const StepOverlapCase& spec, const StepOverlapRate& rate);
nlohmann::ordered_json facts_json(const CollectivesCase& spec, const CollectivesRate& rate);

/// The results of a case, facts first: one line; one for every strategy and pass of a layer and
/// of its overlap, one each for merging and adding, and one for every collective and size. Requires
/// medians of all sides of the rate.
std::vector<nlohmann::ordered_json> result_lines(const KernelCase& spec, const KernelRate& rate,
                                                 const TurnSummary& turns);
std::vector<nlohmann::ordered_json> result_lines(const LayerCase& spec, const LayerRate& rate,
                                                 const TurnSummary& turns);
std::vector<nlohmann::ordered_json> result_lines(const MergeCase& spec, const MergeRate& rate,
                                                 const TurnSummary& turns);
std::vector<nlohmann::ordered_json> result_lines(const CoresCase& spec, const CoresRate& rate,
                                                 const TurnSummary& turns);
std::vector<nlohmann::ordered_json> result_lines(const OverlapCase& spec, const OverlapRate& rate,
                                                 const TurnSummary& turns);
std::vector<nlohmann::ordered_json> result_lines(const StepOverlapCase& spec,
                                                 const StepOverlapRate& rate,
                                                 const TurnSummary& turns);
std::vector<nlohmann::ordered_json> result_lines(const CollectivesCase& spec,
                                                 const CollectivesRate& rate,
                                                 const TurnSummary& turns);

/// The turn counts above, alone: {"turns": 3}, with the other keys if `cores` was a side.
nlohmann::ordered_json turn_counts(const TurnSummary& turns);

/// All sides as they are, for tables that another program makes: the turn counts; "medians" and
/// "leasts" by side; "reasons" of the sides that refused; "contenders" (contender.h).
nlohmann::ordered_json turns_json(const TurnSummary& turns, const Contenders& contenders);
/// The same in words, one line for each side: `ring: median 0.25, least 0.24`.
std::vector<std::string> turns_text(const TurnSummary& turns, const Contenders& contenders);

/// A sentence about the turns that were left out; empty if `cores` was no side.
std::string left_out_text(const TurnSummary& turns);

}  // namespace armillary::bench

// report.h: what was measured, as JSON: one object a result, numbers with all their digits, units
// in the names.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "armillary/bench/cores.h"
#include "armillary/bench/kernel_rate.h"
#include "armillary/bench/layer_rate.h"
#include "armillary/bench/merge_rate.h"

namespace armillary::bench {

/// What is known before anything is timed: the case, the instruction set, errors.
nlohmann::ordered_json facts_json(const KernelCase& given, const KernelRate& rate);
nlohmann::ordered_json facts_json(const LayerCase& given, const LayerRate& rate);
nlohmann::ordered_json facts_json(const MergeCase& given, const MergeRate& rate);
nlohmann::ordered_json facts_json(const CoresCase& given, const CoresRate& rate);

/// The results: one line; of a layer, one for every strategy and pass. `rounds` are those that the
/// medians are of; with several threads also `left_out_rounds`, `left_out_cores` (their ratios) and
/// `all_left_out` (cores.h).
std::vector<nlohmann::ordered_json> report(const KernelCase& given, const KernelRate& rate,
                                           const Rounds& rounds);
std::vector<nlohmann::ordered_json> report(const LayerCase& given, const LayerRate& rate,
                                           const Rounds& rounds);
std::vector<nlohmann::ordered_json> report(const MergeCase& given, const MergeRate& rate,
                                           const Rounds& rounds);
std::vector<nlohmann::ordered_json> report(const CoresCase& given, const CoresRate& rate,
                                           const Rounds& rounds);

/// A sentence about the rounds that were left out; empty if nobody asked for the cores.
std::string left_out_text(const Rounds& rounds);

}  // namespace armillary::bench

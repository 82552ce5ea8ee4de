// A turn is a map from sides to values, and a measurement is a list of turns. All rules are applied
// at the end, to the list: a side does not know which of its values count.
#include "armillary/lab/bench/interleaved_timing.h"

#include <algorithm>
#include <chrono>

namespace armillary::bench {
namespace {

/// Notes the value of a side; the least value of a side that runs several times.
void note(Turn& turn, const std::string& name, double value) {
  const auto [known, is_new] = turn.try_emplace(name, value);
  if (!is_new) known->second = std::min(known->second, value);
}

/// Rules (1) and (2): the turns that count. Notes in `summary` which do not.
std::vector<const Turn*> turns_that_count(std::span<const Turn> turns, TurnSummary& summary) {
  std::vector<const Turn*> selection;
  for (const Turn& turn : turns) {
    const auto cores = turn.find(kCoresSide);
    if (cores == turn.end() || cores->second >= kLeastCores) {
      selection.push_back(&turn);
    } else {
      summary.left_out.push_back(cores->second);
    }
  }
  summary.all_left_out = selection.empty() && !turns.empty();
  if (summary.all_left_out) {
    for (const Turn& turn : turns) selection.push_back(&turn);
  }
  return selection;
}

}  // namespace

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

TurnSummary summarize(std::span<const Turn> turns) {
  TurnSummary summary;
  const std::vector<const Turn*> selection = turns_that_count(turns, summary);
  summary.count = static_cast<int>(selection.size());
  // From values by turn to values by side.
  std::map<std::string, std::vector<double>> values;
  for (const Turn* turn : selection) {
    for (const auto& [name, value] : *turn) values[name].push_back(value);
  }
  for (const auto& [name, of_side] : values) {
    summary.medians[name] = median(of_side);
    summary.leasts[name] = *std::min_element(of_side.begin(), of_side.end());
  }
  return summary;
}

TurnSummary take_turns(std::span<const Side> sides, TurnLimits limits) {
  if (sides.empty()) return {};  // a turn without sides would take no time, so turns had no end
  std::vector<Turn> turns;
  std::map<std::string, std::string> reasons;
  // Rule (3), the first half: a side with a reason is passed over.
  const auto one_turn = [&](Turn& turn) {
    for (const Side& side : sides) {
      if (reasons.contains(side.name)) continue;
      try {
        note(turn, side.name, side.run());
      } catch (const SideRefused& refused) {
        reasons.emplace(side.name, refused.what());
      }
    }
  };
  // Cores alone are nothing to wait for.
  const auto all_refused = [&] {
    return !reasons.empty() && std::all_of(sides.begin(), sides.end(), [&](const Side& side) {
      return side.name == kCoresSide || reasons.contains(side.name);
    });
  };
  double spent = 0;
  while (spent < limits.seconds || static_cast<int>(turns.size()) < limits.least) {
    spent += seconds_of([&] { one_turn(turns.emplace_back()); });
    if (all_refused()) break;
  }
  // Rule (3), the second half: the earlier values of a side that refused later are dropped.
  for (Turn& turn : turns) {
    std::erase_if(turn, [&](const auto& value) { return reasons.contains(value.first); });
  }
  TurnSummary summary = summarize(turns);
  summary.reasons = std::move(reasons);
  return summary;
}

}  // namespace armillary::bench

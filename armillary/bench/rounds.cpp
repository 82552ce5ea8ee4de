#include "armillary/bench/rounds.h"

#include <algorithm>
#include <chrono>

namespace armillary::bench {

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Rounds summarize(std::span<const Round> rounds) {
  Rounds summary;
  std::vector<const Round*> kept;
  for (const Round& round : rounds) {
    const auto cores = round.find(kCoresSide);
    if (cores == round.end() || cores->second >= kLeastCores) {
      kept.push_back(&round);
    } else {
      summary.left_out.push_back(cores->second);
    }
  }
  summary.all_left_out = kept.empty() && !rounds.empty();
  if (summary.all_left_out) {
    for (const Round& round : rounds) kept.push_back(&round);
  }
  summary.count = static_cast<int>(kept.size());
  std::map<std::string, std::vector<double>> values;
  for (const Round* round : kept) {
    for (const auto& [name, value] : *round) values[name].push_back(value);
  }
  for (const auto& [name, of_side] : values) {
    summary.medians[name] = median(of_side);
    summary.leasts[name] = *std::min_element(of_side.begin(), of_side.end());
  }
  return summary;
}

Rounds take_turns(std::span<const Side> sides, double seconds) {
  std::vector<Round> rounds;
  for (double spent = 0; spent < seconds || rounds.size() < 3;) {
    Round& round = rounds.emplace_back();
    spent += seconds_of([&] {
      for (const Side& side : sides) round[side.name] = side.run();
    });
  }
  return summarize(rounds);
}

}  // namespace armillary::bench

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

Rounds take_turns(std::span<const Side> sides, double seconds) {
  Rounds rounds;
  std::map<std::string, std::vector<double>> values;
  for (double spent = 0; spent < seconds || rounds.count < 3; ++rounds.count) {
    spent += seconds_of([&] {
      for (const Side& side : sides) values[side.name].push_back(side.run());
    });
  }
  for (const auto& [name, of_side] : values) {
    rounds.medians[name] = median(of_side);
    rounds.leasts[name] = *std::min_element(of_side.begin(), of_side.end());
  }
  return rounds;
}

}  // namespace armillary::bench

// program.cpp: names of collectives, and the number of steps of a program.
#include "armillary/plan/program/program.h"

#include <algorithm>

namespace armillary::plan {

std::string_view to_string(Collective collective) {
  constexpr std::array<std::string_view, 4> kNames{"none", "all_gather", "reduce_scatter",
                                                   "all_to_all"};
  return kNames.at(static_cast<std::size_t>(collective));
}

int count_steps(const RankProgram& program) {
  std::vector<int> steps;  // Neighbours differ.
  for (const Op& op : program.ops) {
    if (steps.empty() || steps.back() != op.step) steps.push_back(op.step);
  }
  // Ops of several lanes alternate, so a step may come again behind a later one.
  std::sort(steps.begin(), steps.end());
  return static_cast<int>(std::unique(steps.begin(), steps.end()) - steps.begin());
}

}  // namespace armillary::plan

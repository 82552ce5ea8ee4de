// random_runs.h: runs of every shape for property tests. Tests only.
#pragma once

#include <fmt/format.h>
#include <rapidcheck.h>

#include <cstdint>
#include <string>

#include "armillary/plan/runs.h"

namespace armillary::plan {

inline std::string describe(const Run& run) {
  return fmt::format("Run{{{}, {}, {}, {}}}", run.begin, run.count, run.step, run.width);
}

/// A run of up to 20 tokens that begins below 30. Widths, steps and counts are small, so that equal
/// ones meet often.
inline Run random_run() {
  const auto small = [](std::int64_t begin, std::int64_t end) {
    return *rc::gen::resize(100, rc::gen::inRange(begin, end));
  };
  Run run{.begin = small(0, 30), .count = small(1, 6)};
  if (small(0, 3) == 0) return run;
  run.width = small(1, 5);
  run.step = run.width + small(0, 4);
  return run;
}

/// Up to three runs, ascending and disjoint.
inline Runs random_runs() {
  Runs runs;
  const int count = *rc::gen::resize(100, rc::gen::inRange(0, 4));
  std::int64_t begin = 0;
  for (int i = 0; i < count; ++i) {
    Run run = random_run();
    run.begin = begin + run.begin / 6;
    begin = run.last() + 1;
    runs.push_back(run);
  }
  return runs;
}

}  // namespace armillary::plan

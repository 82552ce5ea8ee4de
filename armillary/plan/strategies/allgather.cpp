// All-gather attention: every rank gathers the K, V that its queries see, then attends without
// waiting again. A grid of one column (rq = world) whose movement is a gather; with S slices the KV
// heads are gathered in S parts, each while the part before it is attended.
#include <algorithm>

#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {

StrategyDefinition allgather() {
  return grid_strategy<AllgatherOptions>(
      {.name = "allgather",
       .keys = {number_key("slices", "S", &AllgatherOptions::slices)},
       .summary = "K,V gathered, in S slices of heads; dK,dV reduce-scattered; queries stay",
       .paper = "Llama 3, Meta 2024, arXiv:2407.21783, section 3.3.2",
       .bytes = "as ring",
       .differs = "A rank receives only blocks that its queries see; attention to its own keys "
                  "overlaps the gather. slices=S gathers the KV heads in S slices, one while the "
                  "one before is attended to, so that two slices are in memory, not all heads; "
                  "above the KV "
                  "heads, S is their number."},
      [](const Problem& problem, const AllgatherOptions& options) {
        return PassGrids({.rq = problem.world,
                          .column = Movement::Gather,
                          .slices = std::min(options.slices, problem.kv_heads)});
      },
      [](const Problem& problem) {
        std::vector<AllgatherOptions> variants(1);
        if (problem.kv_heads > 1) variants.push_back({.slices = problem.kv_heads});
        return variants;
      });
}

}  // namespace armillary::plan

// checks.h: published statements that hold or fail without any fitted number: ratios, volumes,
// memory formulas, and which choice is best.
#pragma once

#include <string>
#include <vector>

namespace armillary::validate {

/// One statement with the value that the simulator, a plan or a formula gives.
struct Check {
  std::string statement;
  std::string found;
  std::string published;
  bool holds = false;
};

/// Throughput of the causal ring with contiguous shards over that with zigzag on a device without
/// any overhead, for r = 2, 4, 8, 16: within 2 % of r / (2r - 1) (closed form of lock-step rings).
std::vector<Check> ring_balance();

/// Bytes that plans send for StarTrail's model M (65,536 tokens, hidden size 6,656, 64 ranks,
/// C = 4) without log-sum-exps, which the paper does not count, and bytes of activations: one A a
/// layer, and what attention of the plan reads and returns. Exact. Paper: StarTrail section 3.2.2,
/// WallFacer section 4.2.2.
std::vector<Check> model_m();

/// Which team size is fastest on the clusters of StarTrail and WallFacer, forward and backward of
/// attention with the constants of the presets alone, and that the fastest beats Ring.
std::vector<Check> best_team_sizes();

/// Attention2D over Ring on the paper's two clusters, whose link rates are assumptions: at least 5
/// and 9 for some model and length, and both variants over 2 for all.
std::vector<Check> attention2d_gains();

/// Longest sequences of USP's tables 5 to 7 by the memory of a training step, and the runs that the
/// paper says did not fit.
std::vector<Check> longest_sequences();

/// All of the above.
std::vector<Check> all_checks();

/// Checks as a Markdown table.
std::string checks_table(const std::vector<Check>& checks);

}  // namespace armillary::validate

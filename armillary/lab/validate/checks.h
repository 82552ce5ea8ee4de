// checks.h: published statements that hold or fail without any fitted number: ratios, volumes,
// memory formulas, and which choice is best.
//
// Each has two bounds, which are the paper's: a number with its tolerance, a range, or an order. A
// value outside of them is printed as such, with what is known of the cause.
#pragma once

#include <string>
#include <vector>

namespace armillary::validate {

/// Share by which a value outside of its bounds may differ from the one whose cause is known.
/// Values are the same in every run and known with three digits, which is half a percent: whatever
/// moves one by more has changed the model, for better or worse, and the cause has to be looked at
/// again.
inline constexpr double kDrift = 0.01;

/// One statement with the value that the simulator, a plan or a formula gives.
struct Check {
  std::string statement;
  std::string value_text;  ///< The value, for a reader.
  std::string published;
  double value = 0;  ///< Yes is 1, no 0.
  double least = 0;
  double most = 0;
  /// Cause of a value that is known to be outside, and that value; empty and 0 for all others
  /// (predict_test.cpp).
  std::string cause = {};
  double known = 0;

  bool holds() const { return least <= value && value <= most; }
  /// Whether the value is another one than that whose cause is known.
  bool drifted() const {
    return !cause.empty() && (value < known * (1 - kDrift) || value > known * (1 + kDrift));
  }
  bool fails() const { return drifted() || (!holds() && cause.empty()); }
};

/// Throughput of the causal ring with contiguous shards over that with zigzag on a device without
/// any overhead, for r = 2, 4, 8, 16: within 2 % of r / (2r - 1) (closed form of lock-step rings).
std::vector<Check> ring_balance();

/// Bytes that plans send for StarTrail's model M (65,536 tokens, hidden size 6,656, 64 ranks,
/// C = 4) without log-sum-exps, which the paper does not count, and bytes of activations: what
/// attention of the plan reads and returns, and what layers keep with attention's output. Exact.
/// Paper: StarTrail section 3.2.2, WallFacer section 4.2.2.
std::vector<Check> model_m();

/// Bytes from rank to rank of StarTrail over those of Ring: figure 1 of WallFacer and of StarTrail.
std::vector<Check> startrail_volumes();

/// Training steps on the clusters of StarTrail and WallFacer with the constants of the presets
/// alone: the best team size, its gain over Ring (figure 7), what it holds (figure 8), and how the
/// gain grows with the ranks (figures 9 and 10).
std::vector<Check> startrail_steps();

/// Elements that a rank sends when ranks are four times as many: table 1 of Attention2D.
std::vector<Check> attention2d_volumes();

/// Training steps of Attention2D and of Ring with ZeRO-3 on the paper's two clusters, whose link
/// rates are assumptions: the gains of figures 4 and 6, and more GPUs for one length (figure 5).
std::vector<Check> attention2d_steps();

/// Longest sequences of USP's tables 5 to 7 by the memory of a training step, and the runs that the
/// paper says did not fit.
std::vector<Check> longest_sequences();

/// Data beside sequence parallelism: figure 5 of USP.
std::vector<Check> replicas();

/// Elements that a rank sends in forward of a layer, by the table of xDiT's README: 4 p h for TP,
/// 2 p h for Ring, 4 p h / N for Ulysses. DistriFusion and PipeFusion, whose K and V are stale, are
/// no attention that this project has.
std::vector<Check> xdit_volumes();

/// Prefill and decode of Llama 3 405B over up to 128 H100 (arXiv:2411.01783, sections 4.2 and 4.3,
/// appendix A).
std::vector<Check> million_tokens();

/// All of the above.
std::vector<Check> all_checks();

/// Checks as a Markdown table.
std::string checks_table(const std::vector<Check>& checks);

}  // namespace armillary::validate

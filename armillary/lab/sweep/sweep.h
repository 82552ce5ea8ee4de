// sweep.h: simulated times over ranges of ranks, lengths, heads and bandwidths.
//
//   SweepQuestion --sweep--> rows --to_csv--> a table, which lab/bench/plots.py draws
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/sim/cluster.h"
#include "armillary/predict/sim/compare.h"

namespace armillary::sweep {

/// One problem on one cluster.
struct Point {
  int world = 1;
  std::int64_t seq = 0;  ///< Queries in the whole sequence.
  int heads = 1;         ///< Query heads.
  double bandwidth = 1;  ///< Factor on the rates of all links.
  bool operator==(const Point&) const = default;
  bool operator<(const Point& other) const {
    return std::tie(world, seq, heads, bandwidth) <
           std::tie(other.world, other.seq, other.heads, other.bandwidth);
  }
};

/// Values of each number that differs between points.
struct Ranges {
  std::vector<int> worlds;
  std::vector<std::int64_t> seqs;
  std::vector<int> heads;
  std::vector<double> bandwidths;
  /// Weak scaling: the lengths hold for the first world, and grow with the others.
  bool weak = false;
};
/// All combinations, in ascending order of bandwidth, heads, length, world (fastest).
/// @throws InvalidArgument for more than 10,000 points.
std::vector<Point> points(const Ranges& ranges);

/// The strategies and problems to simulate.
struct SweepQuestion {
  std::vector<Point> points;
  /// The problem at a point, validated.
  std::function<plan::Problem(const Point&)> problem;
  /// Nodes are added where a world has more ranks than the cluster has devices.
  sim::Cluster cluster;
  std::vector<plan::Pass> passes;  ///< Their times are added up.
  /// Names of strategies, or strategies with their keys; empty: all that solve the problem.
  std::vector<std::string> strategies;
};

/// One strategy at one point.
struct SweepRow {
  Point point;
  std::int64_t kv_seq = 0;  ///< Keys in the whole sequence.
  int kv_heads = 1;
  sim::StrategyTimes times;   ///< By pass, and the memory that it needs.
  double flops_per_rank = 0;  ///< FLOP/s of a rank, counting visible pairs only.
};

/// Rows by point, the fastest strategy first. A strategy that cannot solve the problem at a point
/// has no row there. Cost: a simulation for each pass, strategy and point.
/// @throws InvalidArgument if a name is no strategy's, or there is no row.
std::vector<SweepRow> sweep(const SweepQuestion& question);

/// A column with one text in all rows.
struct Constant {
  std::string name;
  std::string text;
};

/// One line of names, and one line per row; texts are quoted, times in seconds.
std::string to_csv(const std::vector<SweepRow>& rows, const std::vector<plan::Pass>& passes,
                   const std::vector<Constant>& constants);

}  // namespace armillary::sweep

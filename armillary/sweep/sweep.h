// sweep.h: simulated times over ranges of ranks, lengths, heads and bandwidths.
//
//   Question --sweep--> rows --to_csv--> a table
//                        '----plots.h--> SVG: speed-up over Ring, the fastest strategy, scaling
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "armillary/plan/strategy.h"
#include "armillary/sim/cluster.h"
#include "armillary/sim/compare.h"

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
struct Question {
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
struct Row {
  Point point;
  sim::StrategyTimes times;   ///< By pass, and the memory that it needs.
  double flops_per_rank = 0;  ///< FLOP/s of a rank, counting visible pairs only.
};

/// Rows by point, the fastest strategy first. A strategy that cannot solve the problem at a point
/// has no row there. Cost: a simulation for each pass, strategy and point.
/// @throws InvalidArgument if a name is no strategy's, or there is no row.
std::vector<Row> sweep(const Question& question);

/// One line of names, and one line per row; strategies are quoted, times in seconds.
std::string to_csv(const std::vector<Row>& rows, const std::vector<plan::Pass>& passes);

}  // namespace armillary::sweep

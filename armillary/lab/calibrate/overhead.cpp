// Two layers of the same few tokens differ in their number of ops. Their difference is the time of
// an op, and the time of the shorter one beyond its ops is that of a call.
#include "armillary/lab/calibrate/overhead.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "armillary/lab/bench/interleaved_timing.h"
#include "armillary/lab/bench/layer.h"
#include "armillary/lab/bench/layer_part.h"
#include "armillary/lab/bench/layer_rate.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/predict/sim/engine.h"

namespace armillary::calibrate {
namespace {

constexpr std::int64_t kTokens = 32;  // Tokens of a rank.
constexpr int kHeads = 8;
constexpr int kHeadDim = 32;

/// Samples of each layer: they last 2 ms each.
constexpr int kTurns = 25;

/// A strategy with few ops, and one with many for the same layer.
constexpr std::array<const char*, 2> kStrategies{"ring", "allgather:slices=8"};

/// Ops of the compute lane of the rank that has most.
std::int64_t compute_ops(const plan::Planner& planner, plan::Pass pass) {
  std::int64_t most = 0;
  for (plan::Rank rank = 0; rank < planner.problem().world; ++rank) {
    const plan::RankProgram program =
        plan::lower(planner.problem(), planner.blocks(), planner.program(pass, rank));
    most = std::max(most, std::ranges::count_if(program.ops, [](const plan::Op& op) {
                      return op.lane == plan::kCompute;
                    }));
  }
  return most;
}

/// Median seconds of layers, forward and both passes.
using Medians = std::array<double, 2>;

/// The medians of each strategy of kStrategies, whose layers take turns.
std::array<Medians, 2> measure_layers(const plan::Problem& problem,
                                      const bench::MakeRanks& make_ranks) {
  const bench::Sample whole = bench::sample({.dtype = problem.dtype,
                                             .q_tokens = problem.mask.q_len(),
                                             .k_tokens = problem.mask.kv_len(),
                                             .heads = problem.heads,
                                             .kv_heads = problem.kv_heads,
                                             .head_dim = problem.head_dim});
  std::vector<std::unique_ptr<bench::Layer>> layers;
  for (const char* strategy : kStrategies) {
    layers.push_back(std::make_unique<bench::Layer>(
        problem, strategy, whole,
        with_only(bench::LayerPart::Compute, problem.world, make_ranks(problem.world, 0))));
    layers.back()->first_run();
  }
  std::array<std::array<std::vector<double>, 2>, 2> samples;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (int s = 0; s < 2; ++s) {
      for (int p = 0; p < 2; ++p) samples[s][p].push_back(layers[s]->run(p == 1));
    }
  }
  std::array<Medians, 2> medians;
  for (int s = 0; s < 2; ++s) {
    for (int p = 0; p < 2; ++p) medians[s][p] = bench::median(samples[s][p]);
  }
  return medians;
}

/// One strategy: seconds that `cluster` does not explain, and its ops.
struct Unexplained {
  std::array<double, 2> seconds = {};    ///< Forward, backward.
  std::array<std::int64_t, 2> ops = {};  ///< Likewise.
};

Unexplained unexplained(const sim::Cluster& cluster, const plan::Problem& problem,
                        const std::string& strategy, const Medians& measured) {
  const plan::Planner planner(problem, plan::parse_strategy(strategy));
  Unexplained rest;
  for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
    const int p = pass == plan::Pass::Forward ? 0 : 1;
    const sim::Timeline timeline = simulate(planner, pass, cluster);
    double compute = 0;
    for (const sim::RankTimeline& rank : timeline.ranks) {
      compute = std::max(compute, rank.compute_s);
    }
    rest.seconds[p] = (p == 0 ? measured[0] : measured[1] - measured[0]) - compute;
    rest.ops[p] = compute_ops(planner, pass);
  }
  return rest;
}

/// Seconds in which ranks agree on a call: their messages are part of every layer.
double agreement_s(const sim::Cluster& cluster) {
  if (cluster.devices() == 1) return 0;
  const double bytes = cluster.host.agreement_bytes;
  const double once =
      cluster.messages.latency_s + bytes / interpolate(cluster.links[0].flow_rates, bytes);
  return once * std::ceil(std::log2(cluster.devices()));
}

}  // namespace

Overhead measure_overhead(const sim::Cluster& cluster, plan::Dtype dtype,
                          const bench::MakeRanks& make_ranks) {
  const plan::Problem problem = bench::problem_of({.dtype = dtype,
                                                   .head_dim = kHeadDim,
                                                   .tokens = kTokens,
                                                   .heads = kHeads,
                                                   .kv_heads = kHeads,
                                                   .world = cluster.devices()},
                                                  cluster.devices());
  const std::array<Medians, 2> measured = measure_layers(problem, make_ranks);
  const Unexplained few = unexplained(cluster, problem, kStrategies[0], measured[0]);
  const Unexplained many = unexplained(cluster, problem, kStrategies[1], measured[1]);
  Overhead overhead;
  const std::int64_t more_ops = many.ops[0] + many.ops[1] - few.ops[0] - few.ops[1];
  const double more = many.seconds[0] + many.seconds[1] - few.seconds[0] - few.seconds[1];
  if (more_ops > 0) overhead.op_s = std::max(0.0, more / static_cast<double>(more_ops));
  const auto rest = [&](int p) {
    return std::max(0.0, few.seconds[p] - overhead.op_s * static_cast<double>(few.ops[p]));
  };
  overhead.forward_s = std::max(0.0, rest(0) - agreement_s(cluster));
  overhead.backward_s = rest(1);
  return overhead;
}

}  // namespace armillary::calibrate

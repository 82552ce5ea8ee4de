// Layers are simulated first, which refuses what the cluster lacks, then made and run as those of
// lab/bench/overlap_rate.cpp: results are checked on a short sequence, times are those of the long
// one.
#include "armillary/lab/calibrate/live_rate.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "armillary/kernel/cpu/isa.h"
#include "armillary/lab/bench/layer_part.h"
#include "armillary/lab/bench/result_json.h"
#include "armillary/predict/sim/engine.h"

namespace armillary::calibrate {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kCheckedTokens = 256;
// Longer layers take seconds: they are warm after one run, and need no repeats.
constexpr std::int64_t kShortTokens = 4096;

Simulated simulate_layer(const plan::Problem& problem, const std::string& strategy,
                         const sim::Cluster& cluster) {
  const plan::Planner planner(problem, plan::parse_strategy(strategy));
  Simulated simulated{.strategy = strategy};
  for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
    const bool forward = pass == plan::Pass::Forward;
    const sim::Timeline timeline = simulate(planner, pass, cluster);
    double compute = 0;
    for (const sim::RankTimeline& rank : timeline.ranks) {
      compute = std::max(compute, rank.compute_s);
    }
    compute += forward ? cluster.host.forward_s : cluster.host.backward_s;
    for (const int both : {0, 1}) {
      // Sides are forward alone and both passes: backward is never run alone.
      if (both == 0 && !forward) continue;
      simulated.seconds[both] += timeline.end_s;
      simulated.compute_seconds[both] += compute;
    }
  }
  return simulated;
}

}  // namespace

LiveRate::LiveRate(const LiveCase& spec, const bench::MakeRanks& make_ranks)
    : isa_(kernel::cpu::current_isa().name) {
  const bench::LayerCase& layer = spec.layer;
  const plan::Problem problem = bench::problem_of(layer, layer.world);
  // Phase 1 of 3: simulation, which refuses what the cluster does not have.
  for (const std::string& strategy : layer.strategies) {
    plan::check_legal(problem, plan::parse_strategy(strategy));
    simulated_.push_back(simulate_layer(problem, strategy, spec.cluster));
  }
  // Phase 2 of 3: a short sequence, whose results are checked.
  bench::LayerCase checked = layer;
  checked.tokens = std::min(layer.tokens, kCheckedTokens);
  checked.kernels = false;
  checked.run_folder.clear();
  const bench::LayerRate right(checked, make_ranks);
  // Phase 3 of 3: the layers.
  const bench::Sample whole = bench::sample({.dtype = layer.dtype,
                                             .q_tokens = problem.mask.q_len(),
                                             .k_tokens = problem.mask.kv_len(),
                                             .heads = layer.heads,
                                             .kv_heads = layer.kv_heads,
                                             .head_dim = layer.head_dim});
  const auto make = [&](const std::string& strategy, std::unique_ptr<bench::Ranks> ranks) {
    auto result = std::make_unique<bench::Layer>(problem, strategy, whole, std::move(ranks));
    layer.tokens > kShortTokens ? static_cast<void>(result->run(true))
                                : static_cast<void>(result->first_run());
    return result;
  };
  for (const std::string& strategy : layer.strategies) {
    layers_.push_back({strategy, make(strategy, make_ranks(layer.world, 0)),
                       make(strategy, with_only(bench::LayerPart::Compute, layer.world,
                                                make_ranks(layer.world, 0)))});
  }
}

std::vector<bench::Side> LiveRate::sides() {
  std::vector<bench::Side> sides;
  for (const bool backward : {false, true}) {
    const std::string pass = bench::kPassNames[backward ? 1 : 0];
    for (LiveLayers& layers : layers_) {
      const auto add = [&](const std::string& part, bench::Layer& layer) {
        sides.push_back({layers.strategy + part + " " + pass,
                         [&layer, backward] { return layer.run(backward); },
                         /*on_all_ranks=*/true});
      };
      add("", *layers.whole);
      add(" compute", *layers.compute);
    }
  }
  return sides;
}

Json facts_json(const LiveCase& spec, const LiveRate& rate) {
  const bench::LayerCase& layer = spec.layer;
  return {{"bench", "live"},
          {"isa", rate.isa()},
          {"dtype", to_string(layer.dtype)},
          {"head_dim", layer.head_dim},
          {"tokens", layer.tokens},
          {"heads", layer.heads},
          {"kv_heads", layer.kv_heads},
          {"mask", layer.mask},
          {"layout", layer.layout},
          {"world", layer.world},
          {"engine", layer.engine},
          {"cluster", spec.cluster.name}};
}

std::vector<Json> result_lines(const LiveCase& spec, const LiveRate& rate,
                               const bench::TurnSummary& turns) {
  std::vector<Json> lines;
  for (const Simulated& simulated : rate.simulated()) {
    for (const int both : {0, 1}) {
      const auto side = [&](const std::string& part) {
        return turns.medians.at(simulated.strategy + part + " " + bench::kPassNames[both]);
      };
      Json line = facts_json(spec, rate);
      line.update({{"strategy", simulated.strategy}, {"pass", bench::kPassNames[both]}});
      line.update(bench::turn_counts(turns));
      line.update({{"seconds", side("")},
                   {"simulated_seconds", simulated.seconds[both]},
                   {"ratio", simulated.seconds[both] / side("")},
                   {"compute_seconds", side(" compute")},
                   {"simulated_compute_seconds", simulated.compute_seconds[both]},
                   {"compute_ratio", simulated.compute_seconds[both] / side(" compute")}});
      lines.push_back(line);
    }
  }
  return lines;
}

}  // namespace armillary::calibrate

// Measures how long simulations take: one JSON line for each strategy and pass, a row of
// lab/bench/sim.py. The time is that of the whole call: programs, lanes and events; events a second
// are those of the events alone.
//
//   sim_bench WORLD [STRATEGY]    1024: causal, zigzag, every rank; 16384: a full mask, folded
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "armillary/core/error.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/sim/engine.h"

namespace armillary::sim {
namespace {

using Json = nlohmann::ordered_json;

/// The problem of verify_bench.cpp: 1,024 tokens a rank.
plan::Problem problem_of(int world, bool fold) {
  const std::int64_t tokens = std::int64_t{1024} * world;
  return {.world = world,
          .heads = 64,
          .kv_heads = 8,
          .head_dim = 128,
          .value_dim = 128,
          .dtype = plan::Dtype::Bf16,
          .mask = plan::parse_mask(fold ? "full" : "causal", {tokens, tokens}),
          .layout = plan::parse_layout(fold ? "contiguous" : "zigzag")};
}

void measure(const plan::Planner& planner, plan::Pass pass, const Cluster& cluster, bool fold) {
  const auto begin = std::chrono::steady_clock::now();
  const Timeline timeline = simulate(planner, pass, cluster, {.fold = fold});
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  const Json row{
      {"bench", "sim"},
      {"strategy", timeline.strategy},
      {"world", timeline.world},
      {"simulated_ranks", timeline.ranks.size()},
      {"pass", to_string(pass)},
      {"flow_events", timeline.flow_events},
      {"seconds", elapsed.count()},
      {"event_seconds", timeline.event_wall_s},
      {"events_per_s", static_cast<double>(timeline.flow_events) / timeline.event_wall_s}};
  fmt::print("{}\n", row.dump());
}

void measure_world(int world, const std::string& only) {
  const bool fold = world > 1024;
  const Cluster cluster = load_cluster(fmt::format("c1:nodes={}", (world + 7) / 8));
  const int side = fold ? 32 : 16;
  const std::string grid = fmt::format("grid:u={},rq={},rk={}", world / side / side, side, side);
  bool is_known = false;
  for (const std::string& strategy : {std::string("ring"), std::string("usp:u=8"), grid}) {
    if (!strategy.starts_with(only)) continue;
    is_known = true;
    const plan::Planner planner(problem_of(world, fold), plan::parse_strategy(strategy));
    for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
      measure(planner, pass, cluster, fold);
    }
  }
  if (!is_known) fail<InvalidArgument>("strategy {}; ring, usp or grid is required", only);
}

}  // namespace
}  // namespace armillary::sim

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    fmt::print(
        stderr,
        "sim_bench: {} arguments; a world of 1024 or 16384, and a strategy or none, are required\n",
        argc - 1);
    return 2;
  }
  try {
    armillary::sim::measure_world(std::atoi(argv[1]), argc == 3 ? argv[2] : "");
  } catch (const std::exception& error) {
    fmt::print(stderr, "sim_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}

// engine.cpp: from a plan and a cluster to a machine that runs. Programs are asked for one by one,
// by several threads, and kept as lanes of numbers only, so a world of thousands of ranks fits into
// memory; the machine (machine.h) then runs the events.
#include "armillary/sim/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/plan/parallel_for_ranks.h"
#include "armillary/sim/machine.h"

namespace armillary::sim {
namespace {

/// A pass to simulate: its programs are asked for one by one, by several threads.
struct Source {
  const plan::Problem& problem;
  const plan::Blocks& blocks;
  std::string strategy;
  plan::Pass pass = plan::Pass::Forward;
  std::function<plan::RankProgram(plan::Rank)> program;
  std::optional<plan::Fold> alike = std::nullopt;  ///< To fold by, if asked for.
};

/// The device of each rank. @throws InvalidArgument for a placement that is none.
std::vector<int> placement(const SimulateOptions& options, const Cluster& cluster, int world) {
  std::vector<int> devices = options.placement;
  if (devices.empty()) {
    devices.resize(world);
    std::iota(devices.begin(), devices.end(), 0);
    return devices;
  }
  std::vector<bool> taken(cluster.devices());
  if (std::ssize(devices) != world) {
    fail<InvalidArgument>("simulate: a placement of {} given; {} are required",
                          count_of(devices.size(), "rank"), world);
  }
  for (const int device : devices) {
    if (device < 0 || device >= cluster.devices() || taken[device]) {
      fail<InvalidArgument>(
          "simulate: device {} given in a placement; each of 0 to {} at most once "
          "is required",
          device, cluster.devices() - 1);
    }
    taken[device] = true;
  }
  return devices;
}

/// The lanes of a rank, made of those of the representative of its class.
RankLanes moved(RankLanes lanes, plan::Rank rank, const plan::Fold& alike) {
  const plan::Fold::Rotation rotation = alike.rotation_to(rank);
  lanes.rank = rank;
  for (Port& port : lanes.ports) port.peer = alike.rotated(port.peer, rotation);
  return lanes;
}

/// Bytes of the rank that needs most, as memory_need() counts them.
double most_bytes(const std::vector<RankLanes>& lanes) {
  std::int64_t most = 0;
  for (const RankLanes& rank : lanes) most = std::max(most, rank.slot_bytes + rank.external_bytes);
  return static_cast<double>(most);
}

/// Refuses worlds that would run for hours, before all of their programs are made.
void check_count_of_ops(const Source& source, int ranks) {
  constexpr int kFewRanks = 1024;
  constexpr double kMostOps = 2e8;
  if (ranks <= kFewRanks) return;
  const double ops = static_cast<double>(source.program(ranks / 2).ops.size()) * ranks;
  if (ops <= kMostOps) return;
  fail<InvalidArgument>(
      "simulate: {} {}: {} ranks that differ have some {:.2g} ops; at most {:g} are possible. "
      "Ranks "
      "are alike, and few of them are simulated, if the mask shows all pairs (mask full); "
      "otherwise a smaller world is required",
      source.strategy, to_string(source.pass), ranks, ops, kMostOps);
}

Timeline simulate(const Source& source, const Cluster& cluster, const SimulateOptions& options) {
  const int world = source.problem.world;
  const std::vector<int> devices = placement(options, cluster, world);
  const int last = devices.empty() ? 0 : *std::max_element(devices.begin(), devices.end());
  const Topology topology(cluster, last + 1);
  std::optional<DeviceCosts> of_device;
  if (options.costs == nullptr) of_device.emplace(cluster.device, source.problem);
  const plan::TokenCounts counts(source.blocks);
  const CostModel& costs = options.costs == nullptr ? *of_device : *options.costs;
  const WorkCounter work(source.problem, source.blocks, costs.needs_edges());
  LaneInput input{.problem = source.problem,
                  .blocks = source.blocks,
                  .counts = counts,
                  .work = work,
                  .costs = costs,
                  .serial = cluster.messages.serial,
                  .tiles = options.record.ops};
  // A bucket of a link is taken by the first that comes, so ranks are not alike. A record has each
  // message by itself, and some engines take one after the other.
  input.group = !options.record.ops && !options.record.flows && !cluster.host.copies &&
                !cluster.messages.in_order && !cluster.has_bursts();
  const bool can_fold = source.alike && options.placement.empty() && !cluster.has_bursts();
  const Fold fold = fold_of(source.problem, can_fold ? &*source.alike : nullptr, topology);
  check_count_of_ops(source, fold.classes);
  std::vector<RankLanes> lanes(fold.classes);
  // The plan may have fewer classes than the cluster allows: only the routes of the others differ.
  const auto representative = [&](plan::Rank rank) {
    return fold.copies() > 1 ? source.alike->representative(source.alike->class_of(rank)) : rank;
  };
  const auto make_all = [&] {
    plan::parallel_for_ranks(fold.classes, [&](plan::Rank rank) {
      if (representative(rank) == rank) lanes[rank] = make_lanes(input, source.program(rank));
    });
    plan::parallel_for_ranks(fold.classes, [&](plan::Rank rank) {
      const plan::Rank from = representative(rank);
      if (from != rank) lanes[rank] = moved(lanes[from], rank, *source.alike);
    });
  };
  make_all();
  if (input.group && !Machine::grouped_alike(fold, lanes)) {
    input.group = false;
    make_all();
  }
  if (options.on_too_large && most_bytes(lanes) > cluster.device.memory_bytes) {
    options.on_too_large();
  }
  Machine machine({.topology = topology,
                   .fold = fold,
                   .record = options.record,
                   .placement = devices,
                   .name = fmt::format("{} {}", source.strategy, to_string(source.pass)),
                   .pass = source.pass},
                  std::move(lanes));
  const auto begin = std::chrono::steady_clock::now();
  Timeline timeline = machine.run();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  timeline.event_wall_s = elapsed.count();
  timeline.strategy = source.strategy;
  timeline.pass = source.pass;
  return timeline;
}

}  // namespace

Timeline simulate(const plan::Plan& plan, const Cluster& cluster, const SimulateOptions& options) {
  return simulate({.problem = plan.problem,
                   .blocks = plan.blocks,
                   .strategy = plan.strategy,
                   .pass = plan.pass,
                   .program = [&](plan::Rank rank) { return plan.ranks[rank]; }},
                  cluster, options);
}

Timeline simulate(const plan::Planner& planner, plan::Pass pass, const Cluster& cluster,
                  const SimulateOptions& options) {
  return simulate(
      {.problem = planner.problem(),
       .blocks = planner.blocks(),
       .strategy = to_string(planner.strategy()),
       .pass = pass,
       .program =
           [&](plan::Rank rank) { return lowered_program(planner, pass, rank, cluster.messages); },
       .alike = options.fold ? planner.fold(pass) : std::nullopt},
      cluster, options);
}

}  // namespace armillary::sim

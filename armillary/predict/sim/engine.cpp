// engine.cpp: from a plan and a cluster to a machine that runs. Programs are asked for one by one,
// by several threads, and kept as lanes of numbers only, so a world of thousands of ranks fits into
// memory; the machine (machine.h) then runs the events.
#include "armillary/predict/sim/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/plan/program/parallel_for_ranks.h"
#include "armillary/predict/sim/machine.h"

namespace armillary::sim {
namespace {

/// Programs to simulate: they are asked for one by one, by several threads.
struct Source {
  const plan::Measures& measures;
  int world = 1;
  std::string name;  ///< For errors.
  std::function<plan::RankProgram(plan::Rank)> program;
  Seconds seconds;
  std::optional<plan::Fold> alike = std::nullopt;  ///< To fold by: alike programs with alike work.
  bool agrees = true;                              ///< As MachineInput has them.
  unsigned spin_kinds = 0;
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
      "simulate: {}: {} ranks that differ have some {:.2g} ops; at most {:g} are possible. "
      "Ranks "
      "are alike, and few of them are simulated, if the mask shows all pairs (mask full); "
      "otherwise a smaller world is required",
      source.name, ranks, ops, kMostOps);
}

Timeline simulate(const Source& source, const Cluster& cluster, const SimulateOptions& options) {
  const std::vector<int> devices = placement(options, cluster, source.world);
  const int last = devices.empty() ? 0 : *std::max_element(devices.begin(), devices.end());
  const Topology topology(cluster, last + 1);
  LaneInput input{.measures = source.measures,
                  .seconds = source.seconds,
                  .serial = cluster.messages.serial,
                  .tiles = options.record.ops};
  // A bucket of a link is taken by the first that comes, so ranks are not alike. A record has each
  // message by itself, and some engines take one after the other.
  input.group = !options.record.ops && !options.record.flows && !cluster.host.copies &&
                !cluster.messages.in_order && !cluster.has_bursts();
  const bool can_fold = source.alike && options.placement.empty() && !cluster.has_bursts();
  const ShiftFold fold = fold_of(source.world, can_fold ? &*source.alike : nullptr, topology);
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
  if (input.group && !SimMachine::grouped_alike(fold, lanes)) {
    input.group = false;
    make_all();
  }
  if (options.on_too_large && most_bytes(lanes) > cluster.device.memory_bytes) {
    options.on_too_large();
  }
  SimMachine machine({.topology = topology,
                      .fold = fold,
                      .record = options.record,
                      .placement = devices,
                      .name = source.name,
                      .agrees = source.agrees,
                      .spin_kinds = source.spin_kinds},
                     std::move(lanes));
  const auto begin = std::chrono::steady_clock::now();
  Timeline timeline = machine.run();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  timeline.event_wall_s = elapsed.count();
  return timeline;
}

/// The main work of forward, on which the spin time of a rank depends.
constexpr unsigned kAttends = 1U << static_cast<unsigned>(plan::OpKind::Attend) |
                              1U << static_cast<unsigned>(plan::OpKind::AttendAll);

/// A pass of attention: its sizes and the costs of its ops.
class AttentionPass {
 public:
  AttentionPass(const plan::Problem& problem, const plan::Blocks& blocks, const Cluster& cluster,
                const SimulateOptions& options)
      : measures_(measures_of(problem, blocks)) {
    if (options.costs == nullptr) of_device_.emplace(cluster.device, problem);
    costs_ = options.costs == nullptr ? &*of_device_ : options.costs;
    work_.emplace(problem, blocks, costs_->needs_edges());
  }
  Timeline run(const std::string& strategy, plan::Pass pass, Source source, const Cluster& cluster,
               const SimulateOptions& options) const {
    source.name = fmt::format("{} {}", strategy, to_string(pass));
    source.seconds = [this](const plan::RankProgram& program, const plan::Op& op) {
      return costs_->seconds(work_->of(program, op));
    };
    source.agrees = pass != plan::Pass::Backward;
    source.spin_kinds = kAttends;
    Timeline timeline = simulate(source, cluster, options);
    timeline.strategy = strategy;
    timeline.pass = pass;
    return timeline;
  }
  const plan::Measures& measures() const { return measures_; }

 private:
  plan::Measures measures_;
  std::optional<DeviceCosts> of_device_;
  const CostModel* costs_ = nullptr;
  std::optional<WorkCounter> work_;
};

}  // namespace

Timeline simulate(const plan::World& world, const Seconds& seconds, const Cluster& cluster,
                  const SimulateOptions& options) {
  Timeline timeline = simulate({.measures = world.measures,
                                .world = world.size,
                                .name = "programs",
                                .program = [&](plan::Rank rank) { return world.ranks[rank]; },
                                .seconds = seconds},
                               cluster, options);
  if (!world.ranks.empty()) {
    timeline.words = world.ranks.front().words;
    timeline.strategy = timeline.words->name;
  }
  return timeline;
}

Timeline simulate(const plan::Plan& plan, const Cluster& cluster, const SimulateOptions& options) {
  const AttentionPass pass(plan.problem, plan.blocks, cluster, options);
  return pass.run(plan.strategy, plan.pass,
                  {.measures = pass.measures(),
                   .world = plan.problem.world,
                   .name = {},
                   .program = [&](plan::Rank rank) { return plan.ranks[rank]; },
                   .seconds = {}},
                  cluster, options);
}

// The work of an op depends on where the edge of a mask cuts its blocks, so ranks are alike only if
// the mask shows every pair.
Timeline simulate(const plan::Planner& planner, plan::Pass pass, const Cluster& cluster,
                  const SimulateOptions& options) {
  const AttentionPass attention(planner.problem(), planner.blocks(), cluster, options);
  const bool folds = options.fold && planner.problem().mask.shows_all();
  return attention.run(
      to_string(planner.strategy()), pass,
      {.measures = attention.measures(),
       .world = planner.problem().world,
       .name = {},
       .program =
           [&](plan::Rank rank) { return lowered_program(planner, pass, rank, cluster.messages); },
       .seconds = {},
       .alike = folds ? planner.fold(pass) : std::nullopt},
      cluster, options);
}

}  // namespace armillary::sim

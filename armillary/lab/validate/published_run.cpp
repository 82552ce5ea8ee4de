// Plans are made for one mask and costed under another, which the engine permits: it counts pairs
// and bytes, and asks for no proof.
#include "armillary/lab/validate/published_run.h"

#include <algorithm>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/predict/sim/engine.h"

namespace armillary::validate {

namespace {

/// Marks the messages of forward rings so that lowering joins K and V to one peer: NCCL moves what
/// a group sends to one peer over one connection. Both ends of these rings join the same messages.
void join_kv(const plan::Strategy& strategy, plan::Plan& plan) {
  if (plan.pass != plan::Pass::Forward) return;
  if (strategy.name != "ring" && strategy.name != "usp") return;
  for (plan::RankProgram& program : plan.ranks) {
    for (plan::Op& op : program.ops) {
      if (op.is_comm()) op.collective = plan::Collective::AllToAll;
    }
  }
}

/// The device, with edges of the mask by pairs of blocks.
sim::DeviceSpec by_blocks(sim::DeviceSpec device) {
  device.mask_edges = false;
  return device;
}

}  // namespace

PublishedCosts::PublishedCosts(const Constants& constants, const sim::DeviceSpec& device,
                               const plan::Problem& problem)
    : kernels_(by_blocks(device), problem),
      sum_s_(constants.sum_bytes / device.memory_bytes_per_s) {}

double PublishedCosts::seconds(const sim::OpWork& work) const {
  // Kernels return partial results in the dtype in which they travel.
  if (work.kind == plan::OpKind::Copy) return 0;
  sim::OpWork call = work;
  // One kernel call has one mask: blocks that are seen wholly run at its causal rate too.
  if (call.cut_pairs > 0) call.cut_pairs += std::exchange(call.full_pairs, 0);
  return kernels_.seconds(call) + (work.q_sums + work.kv_sums) * sum_s_;
}

namespace {

/// One pass as it ran.
struct PassRun {
  plan::Plan plan;
  sim::Timeline timeline;
};

std::vector<PassRun> run_passes(const PublishedRun& run, const Constants& constants,
                                sim::TimelineParts record) {
  const sim::Cluster machine = cluster(constants);
  plan::Problem planned = run.problem;
  if (!run.pruned) planned.mask = plan::full_mask({planned.mask.q_len(), planned.mask.kv_len()});
  const PublishedCosts costs(constants, machine.device, run.problem);
  std::vector<PassRun> passes;
  for (plan::Plan& plan : make_plans(planned, run.strategy, run.passes)) {
    join_kv(run.strategy, plan);
    plan::Plan lowered = lower(std::move(plan));
    lowered.problem.mask = run.problem.mask;
    sim::Timeline timeline = sim::simulate(
        lowered, machine, {.record = record, .costs = &costs, .placement = run.placement});
    passes.push_back({.plan = std::move(lowered), .timeline = std::move(timeline)});
  }
  return passes;
}

}  // namespace

std::vector<sim::Timeline> simulate(const PublishedRun& run, const Constants& constants) {
  std::vector<sim::Timeline> timelines;
  for (PassRun& pass : run_passes(run, constants, {}))
    timelines.push_back(std::move(pass.timeline));
  return timelines;
}

std::vector<double> steps_seconds(const PublishedRun& run, const Constants& constants) {
  const PassRun first = std::move(run_passes(run, constants, {.ops = true}).front());
  const int rank = run.shown_rank.value_or(0);
  const std::vector<plan::Op>& ops = first.plan.ranks.at(rank).ops;
  const sim::RankTimeline& times = first.timeline.ranks.at(rank);
  std::vector<double> starts;
  int step = -1;
  double end_s = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (!attends(ops[i])) continue;
    end_s = std::max(end_s, times.ops.at(i).end_s);
    if (ops[i].step == step) continue;
    step = ops[i].step;
    starts.push_back(times.ops.at(i).start_s);
  }
  ARMILLARY_CHECK(!starts.empty());
  starts.push_back(end_s);
  std::vector<double> steps;
  for (std::size_t s = 0; s + 1 < starts.size(); ++s) steps.push_back(starts[s + 1] - starts[s]);
  return steps;
}

double seconds(const PublishedRun& run, const Constants& constants) {
  double sum = 0;
  for (const sim::Timeline& timeline : simulate(run, constants)) {
    sum += run.shown_rank ? timeline.ranks.at(*run.shown_rank).end_s : timeline.end_s;
  }
  return sum;
}

cost::AttentionTime attention_time(const PublishedRun& run, const Constants& constants) {
  return cost::attention_time(simulate(run, constants));
}

}  // namespace armillary::validate

// Plans are made for one mask and costed under another, which the engine permits: it counts pairs
// and bytes, and asks for no proof.
#include "armillary/validate/published_run.h"

#include <utility>

#include "armillary/plan/passes/lower.h"
#include "armillary/sim/engine.h"

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
sim::Device by_blocks(sim::Device device) {
  device.mask_edges = false;
  return device;
}

}  // namespace

PublishedCosts::PublishedCosts(const Constants& constants, const sim::Device& device,
                               const plan::Problem& problem)
    : kernels_(by_blocks(device), problem),
      sum_s_(constants.sum_bytes / device.memory_bytes_per_s) {}

double PublishedCosts::seconds(const sim::Work& work) const {
  // Kernels return partial results in the dtype in which they travel.
  if (work.kind == plan::OpKind::Copy) return 0;
  sim::Work call = work;
  // One kernel call has one mask: blocks that are seen wholly run at its causal rate too.
  if (call.cut_pairs > 0) call.cut_pairs += std::exchange(call.full_pairs, 0);
  return kernels_.seconds(call) + (work.q_sums + work.kv_sums) * sum_s_;
}

std::vector<sim::Timeline> simulate(const PublishedRun& run, const Constants& constants) {
  const sim::Cluster machine = cluster(constants);
  plan::Problem planned = run.problem;
  if (!run.pruned) planned.mask = plan::full_mask({planned.mask.q_len(), planned.mask.kv_len()});
  const PublishedCosts costs(constants, machine.device, run.problem);
  std::vector<sim::Timeline> timelines;
  for (plan::Plan& plan : make_plans(planned, run.strategy, run.passes)) {
    join_kv(run.strategy, plan);
    plan::Plan lowered = lower(std::move(plan));
    lowered.problem.mask = run.problem.mask;
    timelines.push_back(
        sim::simulate(lowered, machine, {.costs = &costs, .placement = run.placement}));
  }
  return timelines;
}

double seconds(const PublishedRun& run, const Constants& constants) {
  double sum = 0;
  for (const sim::Timeline& timeline : simulate(run, constants)) {
    sum += run.shown_rank ? timeline.ranks.at(*run.shown_rank).end_s : timeline.end_s;
  }
  return sum;
}

}  // namespace armillary::validate

// team_gain.cpp: forward and backward of one layer are simulated for each team size and placement;
// the rest of a step is the same for all of them.
#include "armillary/lab/validate/team_gain.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "armillary/lab/validate/check_builders.h"
#include "armillary/lab/validate/model_step.h"
#include "armillary/lab/validate/published_run.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/cost/attention_memory.h"
#include "armillary/predict/cost/step.h"

namespace armillary::validate {
namespace {

constexpr int kZero = 2;
const std::vector<plan::Pass> kBothPasses{plan::Pass::Forward, plan::Pass::Backward};

/// Whether teams of this size divide the ranks.
bool divides(int team, int world) {
  return world % (team * team) == 0;
}

plan::Problem problem_of(const TeamRun& of) {
  plan::Problem problem =
      attention_of(of.world, of.seq, of.model.heads, of.model.head_dim, !of.model.is_dit);
  // Zigzag balances a causal mask; a DiT sees all tokens, so its ranks are balanced anyway.
  if (!of.model.is_dit) problem.layout = {.kind = plan::LayoutKind::Zigzag};
  return problem;
}

plan::Strategy strategy_of(int team, const char* placement) {
  return plan::parse_strategy(
      team == 1 ? "ring" : fmt::format("startrail:c={},placement={}", team, placement));
}

}  // namespace

cost::ModelCost cost(const PaperModel& model) {
  if (!model.is_dit) return gpt_cost(model.layers, model.heads, model.head_dim);
  const int hidden = model.heads * model.head_dim;
  return cost::dit_cost_of({.layers = model.layers,
                            .hidden = hidden,
                            .heads = model.heads,
                            .kv_heads = model.heads,
                            .head_dim = model.head_dim,
                            .ffn = 4 * hidden,
                            .vocab = 1,
                            .gated = false},
                           0);
}

std::string name_of(const TeamRun& run) {
  return fmt::format("{}, {} ranks, {}, {}K", run.cluster, run.world, run.model.name,
                     run.seq / 1024);
}

double team_seconds(const TeamRun& of, int team) {
  PublishedRun run{.problem = problem_of(of), .strategy = {}, .passes = kBothPasses};
  const Constants preset{.id = of.cluster, .preset = of.cluster};
  double best = std::numeric_limits<double>::infinity();
  for (const char* placement : {"p2p_intra", "collect_intra"}) {
    run.strategy = strategy_of(team, placement);
    best = std::min(best, model_step_seconds(cost(of.model), run.problem,
                                             attention_time(run, preset), kZero, preset));
    // Ring has no teams to place.
    if (team == 1) break;
  }
  return best;
}

TeamGain team_gain(const TeamRun& of) {
  const double ring = team_seconds(of, 1);
  TeamGain result;
  for (const int team : {2, 4}) {
    if (!divides(team, of.world)) continue;
    const double gain = ring / team_seconds(of, team);
    if (gain > result.over_ring) result = {.best = team, .over_ring = gain};
  }
  return result;
}

double team_memory(const TeamRun& of, int team) {
  const plan::Planner planner(problem_of(of), strategy_of(team, "p2p_intra"));
  std::int64_t slots = 0;
  for (int rank = 0; rank < of.world; ++rank) {
    slots = std::max(slots, cost::slot_need(planner, kBothPasses, rank));
  }
  return cost::step_memory({.model = cost(of.model), .seq = of.seq},
                           {.mesh = {.cp = of.world},
                            .zero = kZero,
                            .recompute = cost::Recompute::AttentionOutput},
                           static_cast<double>(slots))
      .total();
}

}  // namespace armillary::validate

// overlap_rate.cpp: three layers per strategy take turns: the whole one, one that only computes and
// one that only sends (layer_part.h). Exposed communication is the time of the whole less that of
// compute. The bytes that have nothing to hide behind are those of steps in which a rank does not
// attend.
#include "armillary/lab/bench/overlap_rate.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "armillary/kernel/cpu/isa.h"
#include "armillary/lab/bench/layer_part.h"
#include "armillary/plan/passes/lower.h"

namespace armillary::bench {
namespace {

constexpr std::int64_t kCheckedTokens = 256;
// Longer layers take seconds: they are warm after one run, and need no repeats.
constexpr std::int64_t kShortTokens = 4096;

/// Leaves out all steps in which the rank attends.
plan::RankProgram without_attending(plan::RankProgram program) {
  std::set<int> steps;
  for (const plan::Op& op : program.ops) {
    if (attends(op) || attends_grad(op)) steps.insert(op.step);
  }
  std::erase_if(program.ops, [&](const plan::Op& op) { return steps.contains(op.step); });
  return program;
}

/// Bytes that leave the hosts, by rank.
OverlapFacts facts_of(const plan::Problem& problem, const std::string& strategy,
                      int ranks_per_node) {
  OverlapFacts facts{.strategy = strategy, .sent_bytes = {}, .lone_bytes = {}};
  const plan::Planner planner(problem, plan::parse_strategy(strategy));
  const auto sent_bytes = [&](const plan::RankProgram& program) {
    return plan::sent_between_nodes(problem, planner.blocks(), program, ranks_per_node);
  };
  for (plan::Rank rank = 0; rank < problem.world; ++rank) {
    std::int64_t all = 0;
    std::int64_t lone = 0;
    for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
      const plan::RankProgram program =
          plan::lower(problem, planner.blocks(), planner.program(pass, rank));
      all += sent_bytes(program);
      lone += sent_bytes(without_attending(program));
      const int both = pass == plan::Pass::Backward ? 1 : 0;
      facts.sent_bytes[both].push_back(all);
      facts.lone_bytes[both].push_back(lone);
    }
  }
  return facts;
}

}  // namespace

OverlapRate::OverlapRate(const OverlapCase& spec, const MakeRanks& make_ranks)
    : isa_(kernel::cpu::current_isa().name) {
  const LayerCase& layer = spec.layer;
  // Phase 1 of 2: a short sequence, whose results are checked.
  LayerCase checked = layer;
  checked.tokens = std::min(layer.tokens, kCheckedTokens);
  checked.kernels = false;
  checked.run_folder.clear();
  const LayerRate right(checked, make_ranks);
  // Phase 2 of 2: the layers.
  const plan::Problem problem = problem_of(layer, layer.world);
  const Sample whole = sample({.dtype = layer.dtype,
                               .q_tokens = problem.mask.q_len(),
                               .k_tokens = problem.mask.kv_len(),
                               .heads = layer.heads,
                               .kv_heads = layer.kv_heads,
                               .head_dim = layer.head_dim});
  const auto make = [&](const std::string& strategy, std::unique_ptr<Ranks> ranks) {
    auto result = std::make_unique<Layer>(problem, strategy, whole, std::move(ranks));
    layer.tokens > kShortTokens ? static_cast<void>(result->run(true))
                                : static_cast<void>(result->first_run());
    return result;
  };
  for (const std::string& strategy : layer.strategies) {
    const auto ranks = [&] { return make_ranks(layer.world, 0); };
    facts_.push_back(facts_of(problem, strategy, spec.ranks_per_node));
    layers_.push_back({strategy, make(strategy, ranks()),
                       make(strategy, with_only(LayerPart::Compute, layer.world, ranks())),
                       make(strategy, with_only(LayerPart::Messages, layer.world, ranks()))});
  }
}

std::vector<Side> OverlapRate::sides() {
  std::vector<Side> sides;
  for (const bool backward : {false, true}) {
    const std::string pass = kPassNames[backward ? 1 : 0];
    for (OverlapLayers& layers : layers_) {
      const auto add = [&](const std::string& part, Layer& layer) {
        sides.push_back({fmt::format("{}{} {}", layers.strategy, part, pass),
                         [&layer, backward] { return layer.run(backward); },
                         /*on_all_ranks=*/true});
      };
      add("", *layers.whole);
      add(" compute", *layers.compute);
      add(" messages", *layers.messages);
    }
  }
  return sides;
}

}  // namespace armillary::bench

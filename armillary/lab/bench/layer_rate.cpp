// The constructor makes a layer on one rank as often as there are ranks, and one on all ranks for
// each strategy; each is run once and checked against fp64 over the whole sequence. The sides then
// run these layers again and again, on ranks that stay warm (ranks.h).
#include "armillary/lab/bench/layer_rate.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <cmath>
#include <list>
#include <map>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/threads.h"
#include "armillary/kernel/cpu/isa.h"
#include "armillary/lab/bench/cores.h"
#include "armillary/lab/bench/layer.h"
#include "armillary/lab/bench/peak.h"

namespace armillary::bench {
namespace {

/// The exact output and gradients of the first KV head in fp64, over the whole sequence.
std::vector<at::Tensor> exact_of(const plan::Problem& problem, const Sample& whole) {
  const c10::NoGradGuard no_grad;
  const plan::Runs all{plan::run_of({0, problem.mask.q_len()})};
  const kernel::Pairs pairs{.q_runs = all,
                            .k_runs = all,
                            .mask = &problem.mask,
                            .heads = {.group_size = problem.group_size()}};
  const kernel::Inputs inputs{
      .q_BLHD = whole.q_BLHD,
      .k_BLGD = whole.k_BLGD,
      .v_BLGE = whole.v_BLGD,
      .score = {.scale = 1 / std::sqrt(static_cast<double>(problem.head_dim))}};
  return exact_first_head(pairs, inputs, whole.dout_BLHD, true);
}

}  // namespace

plan::Problem problem_of(const LayerCase& spec, int world) {
  if (spec.tokens < 1 || spec.world < 1 || spec.world > kMaxThreads) {
    fail<InvalidArgument>(
        "bench: {} a rank, world {}; at least 1 each, at most {} ranks, are required",
        count_of(spec.tokens, "token"), spec.world, kMaxThreads);
  }
  const std::int64_t tokens = spec.tokens * spec.world;
  kernel_dtype(spec.dtype);  // refuses a dtype without a kernel
  plan::Problem problem{.world = world,
                        .heads = static_cast<int>(spec.heads),
                        .kv_heads = static_cast<int>(spec.kv_heads),
                        .head_dim = static_cast<int>(spec.head_dim),
                        .value_dim = static_cast<int>(spec.head_dim),
                        .dtype = spec.dtype,
                        .mask = plan::parse_mask(spec.mask, {tokens, tokens}),
                        .layout = plan::parse_layout(spec.layout)};
  plan::validate(problem);
  return problem;
}

/// The layers that take turns. Each has threads of its own, which sleep while others run.
struct LayerRate::Contest {
  LayerCase spec;
  plan::Problem problem;
  std::list<Layer> alone;               ///< World 1, one for every rank; the first is `one_rank`.
  std::map<std::string, Layer> spread;  ///< By strategy.
  std::map<std::string, LayerKernels> kernels;  ///< By strategy.

  /// Mean seconds of a layer on one rank while all cores run one: the ranks share caches and memory
  /// then as those of a strategy do.
  double busy(bool backward) {
    for (Layer& layer : alone) layer.start(backward);
    double sum = 0;
    for (Layer& layer : alone) sum += layer.wait();
    return sum / static_cast<double>(alone.size());
  }
};

LayerRate::LayerRate(const LayerCase& spec, const MakeRanks& make_ranks)
    : contest_(std::make_unique<Contest>(
          Contest{.spec = spec, .problem = problem_of(spec, spec.world)})),
      isa_(kernel::cpu::current_isa().name) {
  Contest& contest = *contest_;
  const plan::Problem& problem = contest.problem;
  // Phase 1 of 3: everything illegal is refused before anything is computed.
  for (const std::string& strategy : spec.strategies) {
    plan::check_legal(problem, plan::parse_strategy(strategy));
  }
  const Sample whole = sample({.dtype = spec.dtype,
                               .q_tokens = problem.mask.q_len(),
                               .k_tokens = problem.mask.kv_len(),
                               .heads = spec.heads,
                               .kv_heads = spec.kv_heads,
                               .head_dim = spec.head_dim});
  const std::vector<at::Tensor> exact = exact_of(problem, whole);
  // Phase 2 of 3: one rank, once for every core.
  const plan::Problem on_one = problem_of(spec, 1);
  for (int i = 0; i < spec.world; ++i) {
    Layer& layer = contest.alone.emplace_back(on_one, "ring", whole, make_ranks(1, i));
    const std::vector<at::Tensor> results = layer.first_run();
    if (!results.empty()) require_right("one rank", error_of(results, exact), spec.dtype);
  }
  // Phase 3 of 3: the strategies.
  for (const std::string& strategy : spec.strategies) {
    Layer& layer = contest.spread
                       .try_emplace(strategy, problem, strategy, whole, make_ranks(spec.world, 0),
                                    spec.run_folder)
                       .first->second;
    LayerFacts facts{.strategy = strategy, .max_error = error_of(layer.first_run(), exact)};
    require_right(strategy, facts.max_error, spec.dtype);
    for (const bool backward : {false, true}) {
      facts.ops[backward ? 1 : 0] = most_ops(problem, strategy, backward);
      facts.allocations[backward ? 1 : 0] = layer.allocations(backward);
    }
    facts_.push_back(facts);
    // Kernel calls alone have no result to check; the layer above has made the same calls.
    if (!spec.kernels) continue;
    contest.kernels.try_emplace(strategy, problem, strategy, whole, make_ranks(spec.world, 0));
  }
}

LayerRate::~LayerRate() = default;

double LayerRate::flops(bool backward) const {
  const plan::Problem& problem = contest_->problem;
  return (backward ? 14.0 : 4.0) * problem.head_dim * problem.heads *
         static_cast<double>(problem.mask.area());
}

std::vector<Side> LayerRate::sides() {
  Contest& contest = *contest_;
  std::vector<Side> sides;
  // The cores are measured first in a turn, so that they are what the later sides run on.
  if (contest.spec.world > 1) sides.push_back(cores_side());
  sides.push_back({"peak", [this, &contest] {
                     return peak_gflops(isa_, contest.spec.dtype, contest.spec.world, 0.1);
                   }});
  const auto add = [&](std::string name, std::function<double()> run) {
    sides.push_back({std::move(name), std::move(run), /*on_all_ranks=*/true});
  };
  for (const bool backward : {false, true}) {
    const std::string pass = kPassNames[backward ? 1 : 0];
    add("one_rank " + pass, [&contest, backward] { return contest.alone.front().run(backward); });
    add("busy_rank " + pass, [&contest, backward] { return contest.busy(backward); });
    for (auto& [strategy, layer] : contest.spread) {
      add(fmt::format("{} {}", strategy, pass),
          [&layer = layer, backward] { return layer.run(backward); });
    }
    for (auto& [strategy, kernels] : contest.kernels) {
      add(fmt::format("{} kernels {}", strategy, pass),
          [&kernels = kernels, backward] { return kernels.run(backward); });
    }
  }
  return sides;
}

}  // namespace armillary::bench

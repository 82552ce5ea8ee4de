// How long planning and proving take. Checks first that what it times is right: every plan must
// verify.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "armillary/plan/strategy.h"
#include "armillary/plan/verify.h"

namespace armillary::plan {
namespace {

constexpr const char* kStrategies[] = {"ring", "allgather", "ulysses", "usp:u=4"};

Problem causal_zigzag(int world) {
  const std::int64_t tokens = std::int64_t{1024} * world;
  return {.world = world,
          .heads = 64,
          .kv_heads = 8,
          .head_dim = 128,
          .value_dim = 128,
          .dtype = Dtype::Bf16,
          .mask = parse_mask("causal", {tokens, tokens}),
          .layout = parse_layout("zigzag")};
}

void make_plans(benchmark::State& state) {
  const Strategy strategy = parse_strategy(kStrategies[state.range(0)]);
  const Problem problem = causal_zigzag(static_cast<int>(state.range(1)));
  for (auto _ : state) benchmark::DoNotOptimize(make_plan(problem, strategy, Pass::Forward));
  state.SetLabel(to_string(strategy));
}

void verify_plans(benchmark::State& state) {
  const Strategy strategy = parse_strategy(kStrategies[state.range(0)]);
  const Pass pass = state.range(2) == 0 ? Pass::Forward : Pass::Backward;
  const Plan plan = make_plan(causal_zigzag(static_cast<int>(state.range(1))), strategy, pass);
  for (auto _ : state) {
    if (!verify(plan).empty()) {
      std::fputs("plan_bench: a plan is wrong\n", stderr);
      std::exit(1);
    }
  }
  state.SetLabel(to_string(strategy) + " " + std::string(to_string(pass)));
}

BENCHMARK(make_plans)
    ->ArgsProduct({{0, 1, 2, 3}, {8, 64}})
    ->ArgNames({"strategy", "world"})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(verify_plans)
    ->ArgsProduct({{0, 1, 2, 3}, {8, 64}, {0, 1}})
    ->ArgNames({"strategy", "world", "pass"})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace armillary::plan

BENCHMARK_MAIN();

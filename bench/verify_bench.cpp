// How long planning and proving take. Checks first that what it times is right: every plan must
// verify.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "armillary/core/error.h"
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

constexpr Pass kPasses[] = {Pass::Forward, Pass::Backward};

/// What one benchmark is about. A problem that the strategy cannot solve is a result with the
/// reason.
struct Case {
  explicit Case(benchmark::State& state)
      : problem(causal_zigzag(static_cast<int>(state.range(0)))),
        strategy(parse_strategy(kStrategies[state.range(1)])),
        pass(kPasses[state.range(2)]) {
    state.SetLabel(to_string(strategy) + " " + std::string(to_string(pass)));
    try {
      check_legal(problem, strategy);
      legal = true;
    } catch (const InvalidArgument& error) {
      state.SkipWithError(error.what());
    }
  }
  Plan make() const { return make_plan(problem, strategy, pass); }

  Problem problem;
  Strategy strategy;
  Pass pass;
  bool legal = false;
};

void plan(benchmark::State& state) {
  const Case given(state);
  if (!given.legal) return;
  for (auto _ : state) benchmark::DoNotOptimize(given.make());
}

void verify(benchmark::State& state) {
  const Case given(state);
  if (!given.legal) return;
  const Plan made = given.make();
  for (auto _ : state) {
    if (!verify(made).empty()) {
      std::fputs("verify_bench: a plan is wrong\n", stderr);
      std::exit(1);
    }
  }
}

void all(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgsProduct({{8, 64, 1024}, {0, 1, 2, 3}, {0, 1}})
      ->ArgNames({"world", "strategy", "pass"})
      ->Unit(benchmark::kMillisecond);
}

BENCHMARK(plan)->Apply(all);
BENCHMARK(verify)->Apply(all);

}  // namespace
}  // namespace armillary::plan

BENCHMARK_MAIN();

// How long planning and proving take. Checks first that what it times is right: every plan must
// verify.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "armillary/bench/cores.h"
#include "armillary/core/error.h"
#include "armillary/plan/strategy.h"
#include "armillary/plan/verify.h"

namespace armillary::plan {
namespace {

/// The first four are timed in every world, with zigzag. Of 64 ranks all are, with the most blocks
/// of all layouts; the last, with zigzag and a KV head for every query head, has a million ops.
constexpr const char* kStrategies[] = {"ring",
                                       "allgather",
                                       "ulysses",
                                       "usp:u=4",
                                       "usp:u=8",
                                       "allgather:slices=8",
                                       "double_ring:window=8",
                                       "bidirectional_ring",
                                       "tokenring",
                                       "attention2d:rows=8",
                                       "startrail:c=4",
                                       "grid:rk=4,rq=4,u=4",
                                       "auto:traffic",
                                       "allgather:slices=16"};
constexpr int kMostOps = 13;
constexpr const char* kLayouts[] = {"zigzag", "balanced"};

Problem causal(int world, const char* layout, int kv_heads) {
  const std::int64_t tokens = std::int64_t{1024} * world;
  return {.world = world,
          .heads = 64,
          .kv_heads = kv_heads,
          .head_dim = 128,
          .value_dim = 128,
          .dtype = Dtype::Bf16,
          .mask = parse_mask("causal", {tokens, tokens}),
          .layout = parse_layout(layout)};
}

constexpr Pass kPasses[] = {Pass::Forward, Pass::Backward};

/// What one benchmark is about. A problem that the strategy cannot solve is a result with the
/// reason.
struct Case {
  explicit Case(benchmark::State& state)
      : problem(causal(static_cast<int>(state.range(0)), kLayouts[state.range(3)],
                       state.range(1) == kMostOps ? 64 : 8)),
        strategy(parse_strategy(kStrategies[state.range(1)])),
        pass(kPasses[state.range(2)]) {
    state.SetLabel(to_string(strategy) + " " + std::string(to_string(pass)) + " " +
                   to_string(problem.layout));
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

/// Planning and proving use all cores: bench/verify.py leaves out what had no second one.
void note_cores(benchmark::State& state) {
  state.counters[bench::kCoresSide] = bench::core_ratio();
}

void plan(benchmark::State& state) {
  const Case given(state);
  if (!given.legal) return;
  note_cores(state);
  for (auto _ : state) benchmark::DoNotOptimize(given.make());
}

void verify(benchmark::State& state) {
  const Case given(state);
  if (!given.legal) return;
  const Plan made = given.make();
  note_cores(state);
  for (auto _ : state) {
    if (!verify(made).empty()) {
      std::fputs("verify_bench: a plan is wrong\n", stderr);
      std::exit(1);
    }
  }
}

void all(benchmark::internal::Benchmark* benchmark) {
  const std::vector<std::string> names{"world", "strategy", "pass", "layout"};
  benchmark->ArgNames(names)->Unit(benchmark::kMillisecond);
  const auto every = benchmark::CreateDenseRange(0, kMostOps - 1, 1);
  benchmark->ArgsProduct({{8, 64, 1024}, {0, 1, 2, 3}, {0, 1}, {0}});
  benchmark->ArgsProduct({{64}, every, {0, 1}, {1}});
  benchmark->ArgsProduct({{64}, {kMostOps}, {0, 1}, {0}});
}

BENCHMARK(plan)->Apply(all);
BENCHMARK(verify)->Apply(all);

}  // namespace
}  // namespace armillary::plan

BENCHMARK_MAIN();

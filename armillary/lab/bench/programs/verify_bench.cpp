// Measures how long planning and proving take. Every plan that is timed must verify, or the program
// ends with 1. Repetitions of all benchmarks are interleaved by Google Benchmark; here they are the
// turns of armillary/lab/bench/interleaved_timing.h, so those without a second core are left out.
// Prints one JSON line for each strategy, pass and thing that is timed: a row of
// lab/bench/verify.py.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/lab/bench/cores.h"
#include "armillary/lab/bench/result_json.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/plan/verify/verify.h"

namespace armillary::plan {
namespace {

using Json = nlohmann::ordered_json;

/// The first four are timed in every world, with zigzag. With 64 ranks all but the last are timed
/// with the layout of most blocks too. The last has a million ops: it is timed with 64 ranks,
/// zigzag and a KV head for every query head.
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

/// The problem, strategy and pass of one benchmark. A problem that the strategy cannot solve is a
/// row with the reason. The label of a benchmark is the beginning of its row, in JSON.
struct Case {
  explicit Case(benchmark::State& state)
      : problem(causal(static_cast<int>(state.range(0)), kLayouts[state.range(3)],
                       state.range(1) == kMostOps ? 64 : 8)),
        strategy(parse_strategy(kStrategies[state.range(1)])),
        pass(kPasses[state.range(2)]) {
    Json row{{"bench", "verify"},
             {"strategy", to_string(strategy)},
             {"world", problem.world},
             {"layout", to_string(problem.layout)},
             {"pass", to_string(pass)}};
    try {
      check_legal(problem, strategy);
      legal = true;
    } catch (const InvalidArgument& error) {
      row["reasons"]["ms"] = error.what();
      state.SkipWithError(error.what());
    }
    state.SetLabel(row.dump());
  }
  Plan make() const { return make_plan(problem, strategy, pass); }

  Problem problem;
  Strategy strategy;
  Pass pass;
  bool legal = false;
};

/// Planning and proving use all cores: a repetition without a second core is left out.
void note_cores(benchmark::State& state) {
  state.counters[bench::kCoresSide] = bench::core_ratio();
}

/// Times the plan of all ranks, without lowering.
void plan(benchmark::State& state) {
  const Case spec(state);
  if (!spec.legal) return;
  note_cores(state);
  for (auto _ : state) benchmark::DoNotOptimize(spec.make());
}

/// Times the proof of such a plan.
void verify(benchmark::State& state) {
  const Case spec(state);
  if (!spec.legal) return;
  const Plan plan = spec.make();
  note_cores(state);
  for (auto _ : state) {
    if (!verify(plan).empty()) {
      std::fputs("verify_bench: a plan is wrong\n", stderr);
      std::exit(1);
    }
  }
}

/// The cases of both benchmarks: indices of world, strategy, pass and layout.
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

/// Makes a row of the repetitions of each benchmark, and prints all rows in the order of the
/// program: benchmarks end in a random order.
class RowReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& /*context*/) override { return true; }

  /// Called twice for each benchmark: with its repetitions, then with means over them.
  void ReportRuns(const std::vector<Run>& runs) override {
    std::vector<bench::Turn> turns;
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration) continue;
      bench::Turn& turn = turns.emplace_back();
      turn["ms"] = run.GetAdjustedRealTime();
      const auto cores = run.counters.find(bench::kCoresSide);
      if (cores != run.counters.end()) turn[bench::kCoresSide] = cores->second;
    }
    if (turns.empty()) return;
    const Run& run = runs.front();
    const bench::TurnSummary summary = bench::summarize(turns);
    Json row = Json::parse(run.report_label);
    row["what"] = run.run_name.function_name;
    row.update(bench::turn_counts(summary));
    if (!row.contains("reasons")) row["ms"] = summary.medians.at("ms");
    rows_.push_back({{run.family_index, run.per_family_instance_index}, row});
  }

  /// Called once, behind the last benchmark.
  void Finalize() override {
    std::sort(rows_.begin(), rows_.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [place, row] : rows_) fmt::print("{}\n", row.dump());
  }

 private:
  /// Rows with their places in the program.
  std::vector<std::pair<std::pair<std::int64_t, std::int64_t>, Json>> rows_;
};

}  // namespace
}  // namespace armillary::plan

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  armillary::plan::RowReporter rows;
  benchmark::RunSpecifiedBenchmarks(&rows);
  benchmark::Shutdown();
}

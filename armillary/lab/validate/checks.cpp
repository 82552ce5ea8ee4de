// Statements of the papers that need no fitted number: ratios by simulation on an ideal device, and
// lengths and times by the terms of a step. Volumes are in volume_checks.cpp, gains of steps in
// step_checks.cpp.
#include "armillary/lab/validate/checks.h"

#include <fmt/format.h>

#include "armillary/lab/validate/check_builders.h"
#include "armillary/lab/validate/published_run.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/cost/known_models.h"
#include "armillary/predict/cost/step.h"
#include "armillary/predict/sim/engine.h"

namespace armillary::validate {
namespace {

/// A machine on which only the visible pairs take time.
constexpr const char* kIdealCluster = R"(name = "ideal"
[nodes]
count = 1
devices = 16
[device]
name = "ideal"
memory_GiB = 1024
memory_GBps = 1e9
peak_TFLOPs = 100
[[device.kernel]]
pass = "both"
mask = "both"
head_dim = 128
dtype = "bf16"
TFLOPs = 100
half_tokens = 0
[[link]]
from = "device"
to = "switch"
GBps = 1e6
)";

double ring_seconds(const sim::Cluster& cluster, int world, plan::LayoutKind layout) {
  plan::Problem problem = attention_of(world, 65536, 8, 128, /*causal=*/true);
  problem.layout = {.kind = layout};
  return simulate(plan::Planner(problem, plan::parse_strategy("ring")), plan::Pass::Forward,
                  cluster)
      .end_s;
}

/// Longest length in thousands of tokens, in steps of two, with which so many sequences fit 80 GiB.
int longest_k(const char* model, const MeshShape& mesh, std::int64_t sequences = 1) {
  int k = 0;
  const cost::ModelCost cost = cost_of(cost::parse_shape(model));
  const auto bytes = [&](int of) {
    return cost::step_memory({.model = cost, .seq = of * 1024LL, .batch = sequences},
                             {.mesh = mesh, .zero = 1, .microbatch = 0})
        .total();
  };
  while (bytes(k + 2) <= 80 * kGiB) k += 2;
  return k;
}

/// Seconds of a step of Llama 2 7B on 8 A800 with 8 sequences of this length: one on each rank, or
/// all on all of them.
double llama2_seconds(std::int64_t seq, bool replicas) {
  const Constants preset{.id = "c5a", .preset = "c5a"};
  const int ranks = replicas ? 1 : 8;
  PublishedRun run{.problem = attention_of(ranks, seq, 32, 128, /*causal=*/true),
                   .strategy = plan::parse_strategy(replicas ? "ring" : "ulysses"),
                   .passes = {plan::Pass::Forward, plan::Pass::Backward}};
  run.problem.batch = ranks;
  const cost::Step step{.model = cost_of(cost::parse_shape("llama2-7b")), .seq = seq, .batch = 8};
  const MeshShape mesh{.dp = 8 / ranks, .cp = ranks};
  return step_time(step, {.mesh = mesh, .zero = 1, .microbatch = 0}, cluster(preset),
                   attention_time(run, preset))
      .total();
}

}  // namespace

std::vector<Check> ring_balance() {
  const sim::Cluster cluster = sim::parse_cluster(kIdealCluster, "ideal");
  std::vector<Check> checks;
  for (const int r : {2, 4, 8, 16}) {
    const double count = ring_seconds(cluster, r, plan::LayoutKind::Zigzag) /
                         ring_seconds(cluster, r, plan::LayoutKind::Contiguous);
    checks.push_back(
        near(fmt::format("causal ring of {0}, contiguous over zigzag: {0}/{1}", r, 2 * r - 1),
             count, static_cast<double>(r) / (2 * r - 1), 0.02, ""));
  }
  return checks;
}

std::vector<Check> longest_sequences() {
  std::vector<Check> checks;
  const auto longest = [&](const char* name, int tp, int published) {
    Check check = within(fmt::format("USP table 7, {}: longest sequence", name),
                         longest_k("llama3-8b", {.cp = 16 / tp, .tp = tp}), published - 16,
                         published + 16, "K");
    check.published = fmt::format("{} K, within 16", published);
    checks.push_back(check);
  };
  longest("tp 8, ring 2", 8, 208);
  longest("tp 4, ring 4", 4, 190);
  const auto fits = [&](const char* name, const char* model, int sp, int k, std::int64_t sequences,
                        bool yes) {
    checks.push_back(agrees(fmt::format("USP {}: tp 1 fits {} x {}K", name, sequences, k),
                            longest_k(model, {.cp = sp}, sequences) >= k, yes));
  };
  fits("table 6, 16 GPUs", "llama3-8b", 16, 80, 1, true);
  fits("table 6, 16 GPUs", "llama3-8b", 16, 120, 1, false);
  fits("section 5.4, 16 GPUs", "llama3-8b", 16, 64, 2, false);
  fits("section 5.4, 16 GPUs", "llama3-8b", 16, 80, 2, false);
  fits("table 5, 8 GPUs", "llama2-7b", 8, 64, 1, false);
  return checks;
}

std::vector<Check> replicas() {
  bool always = true;
  std::string text;
  for (const std::int64_t k : {4, 8, 16, 30}) {
    const double ratio = llama2_seconds(k * 1024, false) / llama2_seconds(k * 1024, true);
    always &= ratio > 1;
    text += fmt::format("{}{:.3f}", text.empty() ? "" : ", ", ratio);
  }
  Check check =
      agrees("USP figure 5: a step of SP over one of DP, 8 sequences of 4K to 30K", always, true);
  check.value_text = text;
  check.published = "DP outperforms SP";
  return {check};
}

std::vector<Check> all_checks() {
  std::vector<Check> checks;
  for (const auto& some :
       {ring_balance(), model_m(), startrail_volumes(), startrail_steps(), attention2d_volumes(),
        attention2d_steps(), longest_sequences(), replicas(), xdit_volumes(), million_tokens()}) {
    checks.insert(checks.end(), some.begin(), some.end());
  }
  return checks;
}

std::string checks_table(const std::vector<Check>& checks) {
  std::string text = "| statement | found | published | |\n|---|---:|---:|---|\n";
  for (const Check& check : checks) {
    std::string outside =
        fmt::format("**outside**: {}", check.cause.empty() ? "not known before" : check.cause);
    if (check.drifted())
      outside = fmt::format("**drifted** from {:.4g}: {}", check.known, check.cause);
    text += fmt::format("| {} | {} | {} | {} |\n", check.statement, check.value_text,
                        check.published, check.holds() && !check.drifted() ? "holds" : outside);
  }
  return text;
}

}  // namespace armillary::validate

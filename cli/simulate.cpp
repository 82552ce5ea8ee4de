// The verb `simulate`: times of plans on a described cluster. It prints a table for each pass,
// JSON, a comparison of all strategies, or the list of presets, and writes a trace. Ranges of
// problems and published measurements are in files of their own.
#include "cli/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/predict/cost/inference.h"
#include "armillary/predict/sim/compare.h"
#include "armillary/predict/sim/engine.h"
#include "armillary/predict/sim/trace.h"
#include "cli/inference_text.h"
#include "cli/output_file.h"
#include "cli/problem_flags.h"
#include "cli/serve_flags.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

constexpr const char* kSimulateExamples = R"(Examples:
  armillary simulate --clusters
  armillary simulate --cluster c6 --world 8 --seq 65536 --heads 32 --head-dim 128
  armillary simulate --cluster c1 --strategy usp:u=8 --world 64 --seq 524288 --heads 32 --head-dim 128 --layout zigzag
  armillary simulate --cluster c3 --compare --world 32 --seq 131072 --heads 32 --kv-heads 8
  armillary simulate --cluster my.toml --world 4 --trace trace.json
  armillary simulate --cluster c3 --world 8..64 --seq 32768..1048576 --heads 32 --head-dim 128 --csv c3.csv
  armillary simulate --cluster c1 --weak --world 8..64 --seq 65536 --heads 32 --head-dim 128 --csv weak.csv
  armillary simulate --serve llama3-70b --cluster c1:nodes=16 --tp 8 --seq 1048576
  armillary simulate recipes/llama.toml --cluster c6 --set training.mixed_precision_param=bfloat16
  armillary simulate --published
  armillary simulate --rows my_rows.json --json

Charts of a CSV file: docs/simulation.md. Exit code with --published and --rows: 1 a statement is outside of its
bounds and not known to be, or not where it is known to be, 2 a row or a file is refused (the others are printed).)";

constexpr double kMilli = 1e-3;
constexpr double kMebibyte = 1 << 20;

/// The flags of the verb.
struct SimulateFlags : ProblemFlags {
  std::string cluster;
  std::string trace;
  bool json = false;
  bool compare = false;
  bool clusters = false;
  bool fold = false;
  RangeFlags ranges;
  ServeFlags serve;
  PublishedFlags published;
};

/// Above so many ranks those that behave alike are simulated once, unless every op is asked for.
constexpr int kUnfolded = 256;

bool folds(const SimulateFlags& flags, int world) {
  return flags.fold || (world > kUnfolded && !flags.json && flags.trace.empty());
}

/// One line for each preset.
void print_clusters() {
  std::size_t width = 0;
  for (const std::string& name : sim::preset_names()) width = std::max(width, name.size());
  for (const std::string& name : sim::preset_names()) {
    fmt::print("{:<{}}  {}\n", name, width, sim::load_cluster(name).summary);
  }
}

/// Mean and largest value of a number over the ranks of a timeline.
struct MeanAndMost {
  double mean = 0;
  double most = 0;
};
template <class Of>
MeanAndMost spread(const sim::Timeline& timeline, const Of& of) {
  MeanAndMost spread;
  for (const sim::RankTimeline& rank : timeline.ranks) {
    const auto value = static_cast<double>(of(rank));
    spread.mean += value / static_cast<double>(timeline.ranks.size());
    spread.most = std::max(spread.most, value);
  }
  return spread;
}

/// Lines with the seconds of compute by kind of op, the longest first.
void print_phases(const sim::Timeline& timeline) {
  std::vector<std::pair<double, std::size_t>> phases;
  for (std::size_t kind = 0; kind < timeline.words->kinds.size(); ++kind) {
    const double mean =
        spread(timeline, [&](const auto& rank) { return rank.compute_by_kind_s[kind]; }).mean;
    if (mean > 0) phases.emplace_back(-mean, kind);
  }
  std::sort(phases.begin(), phases.end());
  for (const auto& [seconds, kind] : phases) {
    fmt::print("    {:<18} {:>10.3f} ms\n", timeline.words->kinds[kind].name, -seconds / kMilli);
  }
}

/// The channels that are used most.
void print_channels(const sim::Timeline& timeline) {
  constexpr std::size_t kShown = 4;
  std::vector<sim::ChannelUse> channels = timeline.channels;
  std::stable_sort(channels.begin(), channels.end(),
                   [](const auto& a, const auto& b) { return a.busy_share > b.busy_share; });
  if (channels.empty()) return;
  fmt::print("  links               {} in use, the busiest:\n", channels.size());
  for (std::size_t c = 0; c < std::min(kShown, channels.size()); ++c) {
    fmt::print("    {:<18} {:>10.2f} MiB, {:.1f} % of {:.1f} GB/s\n", channels[c].name,
               channels[c].bytes / kMebibyte, 100 * channels[c].busy_share,
               channels[c].bytes_per_s / 1e9);
  }
}

/// Visible pairs over all heads and batch entries: the work of a pass.
double visible_pairs(const plan::Problem& problem) {
  return static_cast<double>(problem.mask.area()) * problem.heads *
         static_cast<double>(problem.batch);
}

/// FLOP/s of one rank, counting visible pairs only; 0 for a pass without attention.
double flops_per_rank(const plan::Problem& problem, const sim::Timeline& timeline) {
  const double d = problem.head_dim;
  const double e = problem.value_dim;
  const double per_pair = timeline.pass == plan::Pass::Forward    ? 2 * (d + e)
                          : timeline.pass == plan::Pass::Backward ? 6 * d + 4 * e
                                                                  : 0;
  return timeline.end_s == 0 ? 0
                             : per_pair * visible_pairs(problem) / problem.world / timeline.end_s;
}

void print_timeline(const plan::Problem& problem, const sim::Cluster& cluster,
                    const sim::Timeline& timeline) {
  const bool folded = std::ssize(timeline.ranks) < timeline.world;
  fmt::print("{} {} on {}: {}{}\n", timeline.strategy, to_string(timeline.pass), cluster.name,
             count_of(timeline.world, "rank"),
             folded
                 ? fmt::format("; folded: {} simulated, which stand for all", timeline.ranks.size())
                 : "");
  fmt::print("  time                {:>10.3f} ms, {:.1f} TFLOP/s a rank\n", timeline.end_s / kMilli,
             flops_per_rank(problem, timeline) / 1e12);
  const auto line = [&](const char* name, const auto& of) {
    const MeanAndMost s = spread(timeline, of);
    fmt::print("  {:<18}  {:>10.3f} ms, most on a rank {:.3f}\n", name, s.mean / kMilli,
               s.most / kMilli);
  };
  line("compute", [](const auto& rank) { return rank.compute_s; });
  print_phases(timeline);
  line("exposed messages", [](const auto& rank) { return rank.exposed_s; });
  line("hidden messages", [](const auto& rank) { return rank.messages_s - rank.exposed_s; });
  line("idle at the end", [&](const auto& rank) { return timeline.end_s - rank.end_s; });
  const MeanAndMost sent_bytes = spread(timeline, [](const auto& rank) { return rank.sent_bytes; });
  fmt::print("  sent                {:>10.2f} MiB, most by a rank {:.2f}\n",
             sent_bytes.mean / kMebibyte, sent_bytes.most / kMebibyte);
  const MeanAndMost slots = spread(timeline, [](const auto& rank) { return rank.slot_bytes; });
  const MeanAndMost external =
      spread(timeline, [](const auto& rank) { return rank.external_bytes; });
  fmt::print("  memory              {:>10.2f} MiB of tensors, {:.2f} of slots, {:.1f} GiB there\n",
             external.most / kMebibyte, slots.most / kMebibyte,
             cluster.device.memory_bytes / (1 << 30));
  print_channels(timeline);
}

/// A Markdown table of all strategies that solve the problem, the fastest first.
void print_comparison(const plan::Problem& problem, const sim::Cluster& cluster,
                      const std::vector<plan::Pass>& passes) {
  fmt::print("| strategy | total ms ");
  for (const plan::Pass pass : passes) {
    fmt::print("| {} ms | exposed ms | sent MiB ", to_string(pass));
  }
  fmt::print("| memory MiB |\n|---|---|");
  for (std::size_t p = 0; p < passes.size(); ++p) fmt::print("---|---|---|");
  fmt::print("---|\n");
  for (const sim::StrategyTimes& row : compare_strategies(problem, cluster, passes)) {
    fmt::print("| {} | {:.3f} ", to_string(row.strategy), row.total_s() / kMilli);
    for (const sim::PassTime& pass : row.passes) {
      fmt::print("| {:.3f} | {:.3f} | {:.2f} ", pass.end_s / kMilli, pass.exposed_s / kMilli,
                 static_cast<double>(pass.sent_bytes) / kMebibyte);
    }
    fmt::print("| {:.2f}{} |\n", static_cast<double>(row.memory_bytes) / kMebibyte,
               row.fits ? "" : " does not fit");
  }
  fmt::print("\nexposed: mean over ranks; sent, memory: on the busiest rank.\n");
}

void write_trace(const std::string& path, const std::vector<plan::Plan>& plans,
                 const std::vector<sim::Timeline>& timelines) {
  std::vector<sim::TracedPass> traced;
  traced.reserve(plans.size());
  for (std::size_t p = 0; p < plans.size(); ++p) traced.push_back({plans[p], timelines[p]});
  write_file("simulate", path, sim::to_trace(traced) + "\n");
}

/// Simulates the passes of one strategy. With a trace the plans are kept whole.
void run_strategy(const SimulateFlags& flags, const sim::Cluster& cluster) {
  const plan::Problem of_flags = problem(flags);
  const plan::Strategy strategy = plan::parse_strategy(flags.strategy);
  check_legal(of_flags, strategy);
  if (!flags.trace.empty()) check_writable("simulate", flags.trace);
  std::vector<plan::Plan> plans;
  std::vector<sim::Timeline> timelines;
  const plan::Planner planner(of_flags, strategy);
  const sim::TimelineParts record{.ops = flags.json || !flags.trace.empty(), .flows = flags.json};
  if (!flags.trace.empty()) plans = lowered_plans(flags);
  // Backward, which needs more memory, goes first: what does not fit is refused before any event.
  const std::vector<plan::Pass> all_passes = passes(flags);
  for (auto pass = all_passes.rbegin(); pass != all_passes.rend(); ++pass) {
    timelines.push_back(simulate(planner, *pass, cluster,
                                 {.record = record,
                                  .fold = folds(flags, of_flags.world),
                                  .on_too_large = [&] { check_fits(flags, cluster); }}));
  }
  std::reverse(timelines.begin(), timelines.end());
  if (!flags.trace.empty()) write_trace(flags.trace, plans, timelines);
  for (const sim::Timeline& timeline : timelines) {
    if (flags.json) {
      fmt::print("{}\n", to_json(timeline));
    } else {
      print_timeline(of_flags, cluster, timeline);
    }
  }
}

/// Refuses flags whose output is that of one problem.
void refuse_with_ranges(const CLI::App& verb) {
  for (const char* flag : {"--json", "--trace", "--compare", "--fold", "--lower"}) {
    if (verb.count(flag) == 0) continue;
    fail<InvalidArgument>(
        "simulate: {} with ranges, which give CSV; one value each of --world, --seq and --heads, "
        "without --bandwidth, --weak, --strategies and --csv, is required",
        flag);
  }
}

/// Prints times and memory of a prompt of a model.
void run_inference(const CLI::App& verb, const SimulateFlags& flags) {
  const sim::Cluster cluster = sim::load_cluster(flags.cluster);
  const cost::Inference inference = inference_of(verb, flags.serve, flags, cluster);
  const cost::InferenceCost cost = inference_cost(inference, cluster);
  check_inference_fits("simulate", inference, cost, cluster);
  if (flags.json) {
    fmt::print("{}\n", to_json(inference, cost));
  } else {
    print_inference(flags.serve.model, inference, cost, cluster);
  }
}

void run(const CLI::App& verb, const SimulateFlags& flags) {
  if (flags.clusters) return print_clusters();
  if (flags.cluster.empty()) {
    fail<InvalidArgument>(
        "--cluster: none given; a preset (`armillary simulate --clusters`) or a .toml file is "
        "required");
  }
  if (!flags.serve.model.empty()) return run_inference(verb, flags);
  if (has_ranges(flags, flags.ranges)) {
    refuse_with_ranges(verb);
    RangeFlags ranges = flags.ranges;
    if (verb.count("--strategy") > 0) ranges.strategies = {flags.strategy};
    return run_ranges(flags, ranges, flags.cluster);
  }
  const sim::Cluster cluster = sim::load_cluster(flags.cluster);
  if (flags.compare) return print_comparison(problem(flags), cluster, passes(flags));
  run_strategy(flags, cluster);
}

}  // namespace

void add_simulate(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("simulate", "Times of a plan on a described cluster");
  auto flags = std::make_shared<SimulateFlags>();
  flags->pass = "both";
  add_problem_flags(*verb, *flags);
  verb->add_option("--cluster", flags->cluster,
                   "PRESET, PRESET:nodes=N, or a .toml file; ranges add nodes as ranks need them")
      ->check(not_empty());
  CLI::Option* const json = verb->add_flag(
      "--json", flags->json, "Timelines as JSON, one object per pass and line, with every op");
  CLI::Option* const trace =
      verb->add_option("--trace", flags->trace,
                       "Write a trace for Perfetto (ui.perfetto.dev) or chrome://tracing")
          ->check(not_empty());
  CLI::Option* const compare = verb->add_flag("--compare", flags->compare,
                                              "A table of the strategies that solve the problem")
                                   ->excludes(json)
                                   ->excludes(trace)
                                   ->excludes("--strategy");
  verb->add_flag("--fold", flags->fold,
                 "Simulate one of the ranks that behave alike; above 256 ranks always, if no op is "
                 "asked for")
      ->excludes(trace)
      ->excludes(compare);
  verb->add_flag("--clusters", flags->clusters, "All presets")->excludes(json)->excludes(compare);
  add_range_flags(*verb, flags->ranges);
  add_serve_flags(*verb, flags->serve);
  add_published_flags(*verb, flags->published);
  verb->footer(kSimulateExamples);
  verb->callback([verb, flags, &exit_code] {
    if (flags->published.all || !flags->published.rows.empty()) {
      exit_code = run_published(flags->published, flags->json);
      return;
    }
    run(*verb, *flags);
    exit_code = kDone;
  });
}

}  // namespace armillary::cli

// The verb `tune`: the fastest strategy, layout and placement for a problem on a described cluster.
// It turns flags into a question, and an answer into a table, JSON and explanations.
#include "cli/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"
#include "armillary/predict/tune/cache.h"
#include "armillary/predict/tune/explain.h"
#include "armillary/predict/tune/search.h"
#include "armillary/predict/tune/space.h"
#include "cli/problem_flags.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

double milliseconds(double seconds) {
  return seconds * 1e3;
}

double mebibytes(std::int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

/// The flags of the verb. `--layout`, `--transfer-dtype` and `--placement` may be `any`.
struct TuneFlags : ProblemFlags {
  std::string cluster;
  std::string placement = "any";
  std::string top = "10";
  std::string strategies;  ///< Empty: all.
  std::vector<std::string> against;
  bool json = false;
  bool exhaustive = false;
  bool explain = false;
  bool no_cache = false;
  MeasureFlags measure;
};

/// Names of strategies from a list with commas; all of them if it is empty.
std::vector<std::string> strategy_names(const std::string& list) {
  std::vector<std::string> known;
  for (const plan::StrategyInfo& info : plan::strategies()) {
    if (info.name != "auto") known.push_back(info.name);
  }
  std::vector<std::string> names;
  if (list.empty()) return names;
  for (const std::string_view name : split(list, ',')) {
    if (std::ranges::find(known, name) == known.end()) {
      plan::refuse_stale("--strategies", name.substr(0, name.find(':')));
      const std::string nearest = nearest_name(name.substr(0, name.find(':')), known);
      fail<InvalidArgument>("--strategies: {} is no name of a strategy; {} is required{}",
                            quote(name), list_names(known),
                            nearest.empty() ? "" : "; nearest: " + nearest);
    }
    names.emplace_back(name);
  }
  return names;
}

/// The question of the flags. A part that is `any` is free.
tune::Question question(TuneFlags flags) {
  tune::Question question;
  question.free = {.layout = flags.layout == "any",
                   .transfer_dtype = flags.transfer_dtype == "any",
                   .placement = flags.placement == "any"};
  if (!question.free.placement) {
    parse_choice("--placement", flags.placement, std::vector<std::string_view>{"any", "by_node"});
  }
  if (question.free.layout) flags.layout = "contiguous";
  if (question.free.transfer_dtype) flags.transfer_dtype = "accumulator";
  if (flags.cluster.empty()) {
    fail<InvalidArgument>(
        "--cluster: none given; a preset (`armillary simulate --clusters`) or a .toml file is "
        "required");
  }
  question.cluster = sim::load_cluster(flags.cluster);
  question.problem = problem(flags);
  question.passes = passes(flags);
  question.names = strategy_names(flags.strategies);
  for (const std::string& text : flags.against) {
    question.against.push_back(plan::parse_strategy(text));
    check_legal(question.problem, question.against.back());
  }
  question.with_length = [flags](std::int64_t seq) { return with_length(flags, seq); };
  return question;
}

/// A row of the table of evaluations. `measured`: with the column of measured times.
void print_row(const tune::Evaluation& evaluation, bool measured) {
  const std::string simulated =
      evaluation.simulated()
          ? fmt::format("{:.3f} | {:.3f} | {:.3f}", milliseconds(evaluation.times.total_s),
                        milliseconds(evaluation.times.compute_s),
                        milliseconds(evaluation.times.exposed_s))
          : "- | - | -";
  const std::string run = !measured ? ""
                          : evaluation.measured_s > 0
                              ? fmt::format(" {:.3f} |", milliseconds(evaluation.measured_s))
                              : " - |";
  fmt::print("| {} |{} {} | {:.3f} | {:.2f} | {:.2f} | {} |\n", to_string(evaluation.candidate),
             run, simulated, milliseconds(evaluation.estimate_s), mebibytes(evaluation.sent_bytes),
             mebibytes(evaluation.memory_bytes), to_string(evaluation.outcome));
}

void print_answer(const tune::Question& question, const tune::Answer& answer, std::size_t top) {
  const tune::Evaluation& choice = answer.choice();
  const auto simulated =
      std::count_if(answer.evaluations.begin(), answer.evaluations.end(),
                    [](const tune::Evaluation& evaluation) { return evaluation.simulated(); });
  fmt::print("{} on {}: {}, {}, {} simulated\n", to_string(choice.candidate), question.cluster.name,
             count_of(question.problem.world, "rank"),
             count_of(answer.evaluations.size(), "candidate"), simulated);
  if (choice.measured_s > 0) fmt::print("  {:.3f} ms measured\n", milliseconds(choice.measured_s));
  if (choice.simulated()) {
    fmt::print(
        "  {:.3f} ms{}, {:.3f} of it compute, {:.3f} exposed messages; nothing takes less than "
        "{:.3f} ms here\n",
        milliseconds(choice.times.total_s), choice.measured_s > 0 ? " simulated" : "",
        milliseconds(choice.times.compute_s), milliseconds(choice.times.exposed_s),
        milliseconds(answer.floor_s));
  }
  for (const std::string& reason : tune::left_out(question)) fmt::print("  left out: {}\n", reason);
  const double ratio = choice.simulated() ? choice.measured_s / choice.times.total_s : 0;
  constexpr double kFar = 2;
  if (ratio > 0 && (ratio > kFar || ratio * kFar < 1)) {
    fmt::print(
        "  measured and simulated are far apart: is --cluster what `armillary calibrate` writes on "
        "these ranks?\n");
  }
  fmt::print("\n");
  const bool measured = choice.measured_s > 0;
  fmt::print(
      "| candidate |{} ms | compute ms | exposed ms | estimated ms | sent MiB | memory MiB | |\n"
      "|---|{}---|---|---|---|---|---|---|\n",
      measured ? " measured ms |" : "", measured ? "---|" : "");
  for (std::size_t r = 0; r < std::min(top, answer.evaluations.size()); ++r) {
    print_row(answer.evaluations[r], measured);
  }
}

/// The answer of the cache, or of a search; nothing if another process prints it.
std::optional<tune::Answer> answer_of(const TuneFlags& flags, const tune::Question& query,
                                      MeasureAnswer measure) {
  if (flags.measure.active) {
    if (measure == nullptr) {
      fail<InvalidArgument>(
          "--measure: this program was built without libtorch; a build with libtorch is required: "
          "./dev build");
    }
    return measure(query, flags.measure, !flags.no_cache);
  }
  if (flags.exhaustive) return tune::search_exhaustively(query);
  return flags.no_cache ? tune::search(query) : tune::tune(query).answer;
}

void run(TuneFlags flags, MeasureAnswer measure) {
  const int top = parse_count("--top", flags.top);
  if (flags.measure.active) {
    // Ranks are where their launcher put them.
    if (flags.placement == "any") flags.placement = "by_node";
    if (flags.exhaustive) {
      fail<InvalidArgument>("--measure with --exhaustive; one of them is required");
    }
  }
  const tune::Question query = question(flags);
  const std::optional<tune::Answer> reply = answer_of(flags, query, measure);
  if (!reply) return;
  const tune::Answer& answer = *reply;
  std::vector<tune::Explanation> explanations;
  if (flags.explain) explanations = tune::explain(query, answer);
  if (flags.json) {
    fmt::print("{}\n", to_json(answer));
    if (flags.explain) fmt::print("{}\n", to_json(explanations));
  } else {
    print_answer(query, answer, static_cast<std::size_t>(top));
    if (flags.explain) fmt::print("\n{}", to_text(explanations));
  }
}

}  // namespace

CLI::App* add_tune_with(CLI::App& app, int& exit_code, MeasureAnswer measure,
                        launch::EngineFlags*& engine) {
  CLI::App* verb = app.add_subcommand("tune", "The fastest strategy for a problem on a cluster");
  auto flags = std::make_shared<TuneFlags>();
  flags->pass = "both";
  flags->layout = "any";
  add_problem_flags(*verb, *flags);
  for (const char* name : {"--strategy", "--lower"}) verb->remove_option(verb->get_option(name));
  verb->get_option("--layout")
      ->description("any, contiguous, zigzag, striped[:W] or balanced [any]");
  verb->get_option("--transfer-dtype")
      ->description(
          "any, accumulator or input: dtype in which partial outputs and gradients travel\n"
          "[accumulator]");
  verb->get_option("--pass")->description("forward, backward, replay or both [both]");
  verb->add_option("--cluster", flags->cluster, "PRESET, PRESET:nodes=N, or a .toml file")
      ->check(not_empty());
  verb->add_option("--placement", flags->placement,
                   "any, or by_node: neighbouring ranks on neighbouring devices [any]")
      ->check(not_empty());
  verb->add_option("--top", flags->top, "Rows of the table [10]")->check(not_empty());
  verb->add_flag("--json", flags->json, "The answer with all evaluations as one JSON object");
  verb->add_flag("--explain", flags->explain,
                 "Why the best candidate of each strategy lost, and what would have to change\n"
                 "for it to win; with --json as a second line, an array");
  verb->add_option("--strategies", flags->strategies,
                   "NAME[,NAME..]: search among these alone; each C and placement with startrail\n"
                   "[all]")
      ->check(not_empty());
  verb->add_option("--against", flags->against,
                   "STRATEGY[:key=value,..] that is simulated in any case; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(not_empty());
  verb->add_flag("--exhaustive", flags->exhaustive,
                 "Simulate every combination of choices; for a few ranks");
  verb->add_flag("--measure", flags->measure.active,
                 "Run the best candidates on ranks: threads, or the processes of a launcher;\n"
                 "--cluster is the file of `armillary calibrate` for them");
  verb->add_option("--candidates", flags->measure.count, "How many --measure runs [4]")
      ->check(not_empty());
  verb->add_option("--seconds", flags->measure.seconds, "How long --measure runs them [2]")
      ->check(not_empty());
  verb->add_flag("--no-cache", flags->no_cache,
                 "Search also if the answer is known, and do not keep it");
  verb->footer(
      "Examples:\n"
      "  armillary tune --cluster c6 --world 8 --seq 65536 --heads 32 --head-dim 128 --explain\n"
      "  armillary tune --cluster c1:nodes=64 --world 512 --seq 1048576 --heads 32 --kv-heads 8 "
      "--head-dim 128\n"
      "  armillary tune --cluster c3 --world 32 --seq 131072 --mask full --transfer-dtype any "
      "--top 30\n"
      "  armillary tune --cluster my.toml --world 4 --layout zigzag --json\n"
      "  armillary tune --cluster c3 --world 32 --seq 131072 --strategies startrail,ring\n"
      "  armillary tune --cluster here.toml --world 2 --dtype fp32 --measure");
  verb->callback([flags, &exit_code, measure] {
    run(*flags, measure);
    exit_code = kDone;
  });
  engine = &flags->measure.engine;
  return verb;
}

void add_tune(CLI::App& app, int& exit_code) {
  launch::EngineFlags* unused = nullptr;
  add_tune_with(app, exit_code, nullptr, unused);
}

}  // namespace armillary::cli

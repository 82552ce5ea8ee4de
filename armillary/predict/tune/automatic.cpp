// automatic.cpp: a text names a cluster; the strategy alone is free. Choices are kept by cluster
// and problem behind a lock, so that ranks which are threads search once.
#include "armillary/predict/tune/automatic.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/recent.h"
#include "armillary/predict/tune/cache.h"

namespace armillary::tune {
namespace {

constexpr std::string_view kWithCluster = "auto:cluster=";

std::optional<std::string> named_by_environment() {
  const char* const variable = std::getenv("ARMILLARY_CLUSTER");
  if (variable == nullptr || *variable == '\0') return std::nullopt;
  return variable;
}

/// The name of the cluster that a text asks for.
std::string cluster_name(std::string_view text) {
  if (text.starts_with(kWithCluster)) return std::string(text.substr(kWithCluster.size()));
  if (const auto variable = named_by_environment()) return *variable;
  fail<InvalidArgument>(
      "strategy: auto without a cluster; auto:cluster=NAME (a preset or a .toml file), the "
      "environment variable ARMILLARY_CLUSTER, or auto:traffic is required");
}

/// An answer that this process has given before.
struct KnownChoice {
  std::string cluster;
  plan::Problem problem;
  AutomaticChoice choice;
};

/// Choices of this process: a model has few problems, but documents may make one of every batch.
/// Held under the lock.
struct KnownChoices {
  std::mutex mutex;
  Recent<KnownChoice> choices{64};

  KnownChoice* find(const std::string& cluster, const plan::Problem& problem) {
    return choices.find(
        [&](const KnownChoice& one) { return one.cluster == cluster && one.problem == problem; });
  }
};

KnownChoices& known_choices() {
  static KnownChoices known;
  return known;
}

/// Calls that differ in return_lse alone run one strategy: keep and replay do.
plan::Problem without_lse(plan::Problem problem) {
  problem.return_lse = false;
  return problem;
}

/// Origin of an answer, as the line says it.
std::string origin_of(const Tuned& tuned) {
  const bool measured = tuned.answer.choice().measured_s > 0;
  if (tuned.file.empty()) return measured ? "measured" : "simulated";
  return fmt::format("{}, {}", measured ? "measured" : "simulated before", tuned.file);
}

/// `; ring takes 1.200 times as long: ..`, about the next best of another name; a plan that has two
/// names is no other choice: on two ranks most rings are one.
std::string next_best(const Answer& answer) {
  const Evaluation& best = answer.choice();
  for (const Evaluation& evaluation : answer.evaluations) {
    const std::string& name = evaluation.candidate.strategy.name;
    const bool measured = evaluation.measured_s > 0 && best.measured_s > 0;
    const bool is_same = !measured && evaluation.times == best.times;
    if (is_same || name == best.candidate.strategy.name || !evaluation.can_run()) continue;
    const std::string text = to_string(evaluation.candidate.strategy);
    const bool simulated = evaluation.simulated() && best.simulated();
    if (!measured && !simulated) {
      const double chosen_s = best.simulated() ? best.times.total_s : best.estimate_s;
      return fmt::format("; {} is estimated to take {:.3f} times as long", text,
                         evaluation.estimate_s / chosen_s);
    }
    std::string line = fmt::format("; {} takes {:.3f} times as long", text,
                                   measured ? evaluation.measured_s / best.measured_s
                                            : evaluation.times.total_s / best.times.total_s);
    if (!simulated) return line;
    const double compute_s = evaluation.times.compute_s - best.times.compute_s;
    const double exposed_s = evaluation.times.exposed_s - best.times.exposed_s;
    return line + fmt::format(": {:.3f} ms {} compute, {:.3f} ms {} exposed messages",
                              std::abs(compute_s) * 1e3, compute_s < 0 ? "less" : "more",
                              std::abs(exposed_s) * 1e3, exposed_s < 0 ? "less" : "more");
  }
  return "";
}

/// Asks the tuner, and says in a line what it chose and what the next best would have cost.
AutomaticChoice search_for(std::string_view text, const std::string& cluster,
                           const plan::Problem& problem) {
  const Question question{.problem = problem,
                          .cluster = sim::load_cluster(cluster),
                          .free = {.layout = false, .transfer_dtype = false, .placement = false}};
  const Tuned tuned = tune(question);
  const Evaluation& best = tuned.answer.choice();
  AutomaticChoice choice{.strategy = best.candidate.strategy, .line = {}};
  choice.line =
      fmt::format("strategy {} on {}: {}, {:.3f} ms a layer ({})", text, question.cluster.name,
                  to_string(choice.strategy), best.seconds() * 1e3, origin_of(tuned));
  choice.line += next_best(tuned.answer);
  return choice;
}

}  // namespace

bool is_automatic(std::string_view text) {
  return text == "auto" || text.starts_with(kWithCluster);
}

AutomaticChoice choose(std::string_view text, const plan::Problem& problem) {
  const std::string cluster = cluster_name(text);
  const plan::Problem tuner_problem = without_lse(problem);
  KnownChoices& known = known_choices();
  const std::lock_guard lock(known.mutex);
  if (const KnownChoice* const one = known.find(cluster, tuner_problem)) return one->choice;
  AutomaticChoice choice = search_for(text, cluster, tuner_problem);
  known.choices.add({.cluster = cluster, .problem = tuner_problem, .choice = choice});
  choice.is_new = true;
  return choice;
}

void remember(std::string_view text, const plan::Problem& problem, const AutomaticChoice& choice) {
  if (text == "auto" && !named_by_environment()) return;
  KnownChoice entry{
      .cluster = cluster_name(text), .problem = without_lse(problem), .choice = choice};
  entry.choice.is_new = false;
  KnownChoices& known = known_choices();
  const std::lock_guard lock(known.mutex);
  if (KnownChoice* const one = known.find(entry.cluster, entry.problem)) {
    *one = std::move(entry);
  } else {
    known.choices.add(std::move(entry));
  }
}

plan::Strategy strategy_of(std::string_view text, const plan::Problem& problem) {
  return is_automatic(text) ? choose(text, problem).strategy : plan::parse_strategy(text);
}

void check_strategy_text(std::string_view text) {
  if (is_automatic(text)) {
    sim::load_cluster(cluster_name(text));
  } else {
    plan::parse_strategy(text);
  }
}

}  // namespace armillary::tune

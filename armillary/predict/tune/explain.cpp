// explain.cpp: evaluations under altered questions. An alteration makes its evaluator and the time
// of the chosen candidate when the first evaluation asks for them, and keeps them for the others.
// Alterations of one kind are ordered from small to large, and the first that helps is named.
#include "armillary/predict/tune/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/predict/cost/attention_memory.h"
#include "armillary/predict/sim/topology.h"
#include "armillary/predict/tune/evaluator.h"
#include "armillary/predict/tune/search.h"

namespace armillary::tune {
namespace {

/// Larger worlds are compared by estimates.
constexpr int kMostSimulated = 32;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::string_view kLosesAlso = "loses also with ";

/// A question that differs in one thing, and the time of the chosen candidate under it.
class Alteration {
 public:
  /// The words before and after the number that is altered: `links`, `4`, `times as fast`.
  struct AlterationWords {
    std::string before, number, after;
  };
  /// `kind` joins alterations of which only the smallest that works is named.
  Alteration(std::string kind, AlterationWords words, Question question)
      : kind_(std::move(kind)),
        words_(std::move(words)),
        question_(std::make_unique<Question>(std::move(question))) {}

  const std::string& kind() const { return kind_; }
  const AlterationWords& words() const { return words_; }

  /// Seconds of a candidate; infinite if it does not solve the altered problem, does not fit or
  /// has a plan that is wrong.
  double seconds(const Candidate& candidate) {
    try {
      if (!evaluator_) evaluator_ = std::make_unique<Evaluator>(*question_);
      Evaluation evaluation = evaluator_->estimate({candidate}).front();
      if (static_cast<double>(evaluation.memory_bytes) > evaluator_->memory_limit()) return kNever;
      if (question_->problem.world > kMostSimulated) return evaluation.estimate_s;
      evaluator_->simulate(evaluation);
      if (!evaluation.error.empty()) return kNever;
      return evaluation.times.total_s;
    } catch (const InvalidArgument&) {
      return kNever;
    }
  }
  double seconds_of_chosen(const Candidate& best) {
    if (chosen_s_ < 0) chosen_s_ = seconds(best);
    return chosen_s_;
  }

 private:
  std::string kind_;
  AlterationWords words_;
  std::unique_ptr<Question> question_;  ///< The evaluator refers to it.
  std::unique_ptr<Evaluator> evaluator_;
  double chosen_s_ = -1;
};

/// The rules of links that messages between nodes cross, and those within a node do not.
std::set<int> rules_between_nodes(const Question& question) {
  std::set<int> between;
  const int per_node = question.cluster.devices_per_node;
  if (question.problem.world <= per_node) return between;
  const sim::Topology topology(question.cluster, question.problem.world);
  for (const int channel : topology.route(0, per_node).channels) {
    between.insert(topology.channels()[channel].rule);
  }
  if (per_node == 1) return between;
  for (const int channel : topology.route(0, 1).channels) {
    between.erase(topology.channels()[channel].rule);
  }
  return between;
}

sim::Cluster with_links(sim::Cluster cluster, const std::set<int>& rules, double factor) {
  for (const int rule : rules) {
    sim::LinkRule& link = cluster.links[rule];
    link.bytes_per_s *= factor;
    link.flow_bytes_per_s *= factor;
    for (sim::RatePoint& point : link.flow_rates) point.rate *= factor;
  }
  return cluster;
}

/// `4`, `1/4`.
std::string number_text(double factor) {
  return factor >= 1 ? fmt::format("{:g}", factor) : fmt::format("1/{:g}", 1 / factor);
}

/// `links between nodes 2, 4 times as fast, 8192 tokens`: numbers with the same words stand
/// together.
std::string words_text(const std::vector<Alteration::AlterationWords>& all) {
  std::string text;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool goes_on =
        i > 0 && all[i].before == all[i - 1].before && all[i].after == all[i - 1].after;
    const bool ends = i + 1 == all.size() || all[i].before != all[i + 1].before ||
                      all[i].after != all[i + 1].after;
    if (i > 0) text += ", ";
    if (!goes_on && !all[i].before.empty()) text += all[i].before;
    if (!goes_on && !all[i].before.empty() && !all[i].number.empty()) text += ' ';
    text += all[i].number;
    if (ends && !all[i].after.empty()) text += " " + all[i].after;
  }
  return text;
}

constexpr std::array kFactors{2.0, 0.5, 4.0, 0.25, 16.0, 1.0 / 16};

void add_links(const Question& question, std::vector<Alteration>& all) {
  const std::set<int> between = rules_between_nodes(question);
  std::set<int> within;
  for (int r = 0; r < static_cast<int>(question.cluster.links.size()); ++r) {
    if (!between.contains(r)) within.insert(r);
  }
  // Faster and slower links are different kinds.
  const auto add = [&](const char* what, const std::set<int>& rules, double factor) {
    if (rules.empty()) return;
    Question other = question;
    other.cluster = with_links(question.cluster, rules, factor);
    all.emplace_back(fmt::format("{}{}", what, factor > 1),
                     Alteration::AlterationWords{what, number_text(factor), "times as fast"},
                     std::move(other));
  };
  for (const double factor : kFactors) {
    add("links between nodes", between, factor);
    add(between.empty() ? "links" : "links within nodes", within, factor);
  }
  // Neither links nor the engine nor kernels take time to start.
  Question at_once = question;
  at_once.cluster.messages.latency_s = at_once.cluster.device.launch_s = 0;
  for (sim::LinkRule& link : at_once.cluster.links) link.latency_s = 0;
  all.emplace_back("latency",
                   Alteration::AlterationWords{"messages and kernels that start at once", "", ""},
                   std::move(at_once));
}

/// Other lengths and other KV heads.
void add_problems(const Question& question, std::vector<Alteration>& all) {
  const std::int64_t seq = question.problem.mask.q_len();
  for (const double factor : kFactors) {
    const auto length = static_cast<std::int64_t>(std::llround(static_cast<double>(seq) * factor));
    if (!question.with_length || length < question.problem.world) continue;
    const std::optional<plan::Problem> problem = question.with_length(length);
    if (!problem) continue;
    Question other = question;
    other.problem = *problem;
    all.emplace_back(fmt::format("length{}", factor > 1),
                     Alteration::AlterationWords{"", std::to_string(length), "tokens"},
                     std::move(other));
  }
  for (const int kv_heads : {question.problem.heads, 1}) {
    if (kv_heads == question.problem.kv_heads) continue;
    Question other = question;
    other.problem.kv_heads = kv_heads;
    all.emplace_back("kv_heads",
                     Alteration::AlterationWords{"", std::to_string(kv_heads), "KV heads"},
                     std::move(other));
  }
}

/// The difference to a simulated evaluation: where its time goes. The ratio is that of measured
/// times if both have one. Requires that both are simulated.
std::string lost(const Evaluation& best, const Evaluation& evaluation) {
  const auto more = [](double seconds, const char* what) {
    return fmt::format("{:.3f} ms {} {}", std::abs(seconds) * 1e3, seconds < 0 ? "less" : "more",
                       what);
  };
  const bool measured = evaluation.measured_s > 0 && best.measured_s > 0;
  const double simulated = evaluation.times.total_s / best.times.total_s;
  const std::string ratio =
      measured ? fmt::format("{:.3f} times as long, measured; simulated {:.3f} times as long",
                             evaluation.measured_s / best.measured_s, simulated)
               : fmt::format("{:.3f} times as long", simulated);
  return fmt::format("{}: {}, {}; sends {:.2f} MiB where the chosen one sends {:.2f}", ratio,
                     more(evaluation.times.compute_s - best.times.compute_s, "compute"),
                     more(evaluation.times.exposed_s - best.times.exposed_s, "exposed messages"),
                     static_cast<double>(evaluation.sent_bytes) / (1 << 20),
                     static_cast<double>(best.sent_bytes) / (1 << 20));
}

/// The smallest alteration of each kind with which the evaluation is not slower than the chosen
/// one; or all that were tested. Those that make an illegal problem, or one that neither of both
/// fits, were not.
std::string change(const Question& question, const Evaluation& best, const Evaluation& evaluation,
                   std::vector<Alteration>& alterations) {
  if (evaluation.times.total_s <= best.times.total_s) {
    if (best.measured_s > 0) return "as fast as the chosen one in simulation";
    if (evaluation.times.total_s == best.times.total_s) return "as fast as the chosen one";
    return "faster by less than another layout must gain, or than the search looks for";
  }
  const bool estimated = question.problem.world > kMostSimulated;
  if (estimated && evaluation.estimate_s <= best.estimate_s) {
    return "no change is named: estimates, by which so many ranks are compared, put it first as it "
           "is";
  }
  std::set<std::string> kinds;
  std::vector<Alteration::AlterationWords> tested;
  std::string text;
  for (Alteration& alteration : alterations) {
    if (kinds.contains(alteration.kind())) continue;
    const double seconds = alteration.seconds(evaluation.candidate);
    const double of_chosen = alteration.seconds_of_chosen(best.candidate);
    if (seconds == kNever && of_chosen == kNever) continue;
    tested.push_back(alteration.words());
    if (seconds > of_chosen) continue;
    kinds.insert(alteration.kind());
    text += (text.empty() ? "wins with " : ", or ") + words_text({alteration.words()});
  }
  if (text.empty()) {
    // Numbers with the same words stand together.
    std::stable_sort(tested.begin(), tested.end(), [](const auto& a, const auto& b) {
      return std::pair(a.before, a.after) < std::pair(b.before, b.after);
    });
    text = tested.empty() ? "loses; nothing else could be tested"
                          : std::string(kLosesAlso) + words_text(tested);
  }
  return text + (estimated ? " (estimated)" : "");
}

/// The best evaluation of each strategy, and of each layout of the chosen one.
std::vector<Evaluation> shown(const Answer& answer) {
  std::vector<Evaluation> evaluations;
  std::set<std::string> known;
  const Evaluation& best = answer.choice();
  for (const Evaluation& evaluation : answer.evaluations) {
    const std::string& name = evaluation.candidate.strategy.name;
    const bool own = name == best.candidate.strategy.name;
    const std::string kind = own ? name + to_string(evaluation.candidate.layout) : name;
    if (known.insert(kind).second && !(evaluation == best)) evaluations.push_back(evaluation);
  }
  return evaluations;
}

/// The best evaluation of its kind: of its strategy, and for the chosen strategy of its layout. The
/// search of all strategies leaves candidates far from the best to their estimates, whose order
/// need not be that of simulations, so the kind is searched by itself unless bounds say that no
/// other candidate is better.
Evaluation best_of_kind(const Question& question, const Answer& answer, const Evaluation& known) {
  if (known.measured_s > 0) return known;
  const std::string& name = known.candidate.strategy.name;
  const bool own = name == answer.choice().candidate.strategy.name;
  Question alone = question;
  alone.names = {name};
  alone.against = {};
  if (own) {
    alone.free.layout = false;
    alone.problem.layout = known.candidate.layout;
  }
  const auto may_win = [&](const Evaluation& evaluation) {
    const bool is_kind = evaluation.candidate.strategy.name == name &&
                         (!own || evaluation.candidate.layout == known.candidate.layout);
    return is_kind && evaluation.can_run() && !evaluation.simulated() &&
           evaluation.bound_s < known.times.total_s;
  };
  if (known.simulated() && std::ranges::none_of(answer.evaluations, may_win)) return known;
  try {
    Evaluation evaluation = search(alone).choice();
    // A search prefers layouts that are not faster by much; the table that is explained does not.
    const bool is_best = known.simulated() && known.times.total_s <= evaluation.times.total_s;
    return is_best ? known : evaluation;
  } catch (const Error&) {  // none of its kind fits, or all have wrong plans
    return known;
  }
}

/// Values of the required keys of a strategy, each a divisor of the world, with which it solves the
/// problem; nothing if there are none. The tuner leaves such values out where they make the plan of
/// another name: usp with u = 1 is ring.
std::optional<plan::Strategy> border_case(const plan::Problem& problem,
                                          const plan::StrategyInfo& info) {
  std::vector<std::string> texts{info.name};
  for (const plan::StrategyKey& key : info.keys) {
    if (!key.required) continue;
    std::vector<std::string> longer;
    for (const std::string& text : texts) {
      for (int value = 1; value <= problem.world; ++value) {
        if (problem.world % value != 0) continue;
        const char separator = text == info.name ? ':' : ',';
        longer.push_back(fmt::format("{}{}{}={}", text, separator, key.name, value));
      }
    }
    texts = std::move(longer);
  }
  for (const std::string& text : texts) {
    try {
      plan::Strategy strategy = plan::parse_strategy(text);
      check_legal(problem, strategy);
      return strategy;
    } catch (const InvalidArgument&) {  // another value may be legal
    }
  }
  return std::nullopt;
}

/// Strategies without a candidate, each with its reason.
void add_others(const Question& question, const Answer& answer, std::vector<Explanation>& all) {
  std::set<std::string> known{"auto"};
  for (const Evaluation& evaluation : answer.evaluations)
    known.insert(evaluation.candidate.strategy.name);
  for (const plan::StrategyInfo& info : plan::strategies()) {
    const bool is_relevant =
        question.names.empty() ||
        std::find(question.names.begin(), question.names.end(), info.name) != question.names.end();
    if (!is_relevant || known.contains(info.name)) continue;
    if (const auto border = border_case(question.problem, info)) {
      all.push_back(
          {.candidate = usage(info),
           .lost = "is no candidate of its own",
           .change = fmt::format("it solves the problem, as {} does, but each value of its "
                                 "keys makes a plan that has another name",
                                 to_string(*border))});
      continue;
    }
    std::string reason = "no values of its keys solve the problem";
    try {
      check_legal(question.problem, {.name = info.name});
    } catch (const InvalidArgument& error) {
      const bool of_problem = std::none_of(info.keys.begin(), info.keys.end(),
                                           [](const auto& key) { return key.required; });
      if (of_problem) reason = error.what();
    }
    all.push_back({.candidate = usage(info), .lost = "cannot solve the problem", .change = reason});
  }
}

}  // namespace

std::vector<Explanation> explain(const Question& question, const Answer& answer) {
  Evaluator evaluator(question);
  std::vector<Alteration> alterations;
  add_links(question, alterations);
  add_problems(question, alterations);
  std::vector<Explanation> all;
  // A choice by measurement may be one that the search had no need to simulate.
  Evaluation best = answer.choice();
  if (!best.simulated()) evaluator.simulate(best);
  for (const Evaluation& known : shown(answer)) {
    Evaluation evaluation = best_of_kind(question, answer, known);
    Explanation& one = all.emplace_back();
    one.candidate = to_string(evaluation.candidate);
    // Only a measured one need not be simulated yet.
    if (!evaluation.simulated() && evaluation.can_run()) evaluator.simulate(evaluation);
    if (!evaluation.error.empty()) {
      one.lost = "its plan is wrong";
      one.change = evaluation.error;
      continue;
    }
    const auto bytes = static_cast<double>(evaluation.memory_bytes);
    if (bytes > evaluator.memory_limit()) {
      one.lost = cost::does_not_fit(bytes, evaluator.memory_limit());
      // Memory grows with the tokens.
      one.change = fmt::format(
          "may win with {0:.2f} times the memory of a device, or {0:.2f} times fewer tokens a rank",
          std::ceil(100 * bytes / evaluator.memory_limit()) / 100);
      continue;
    }
    one.lost = lost(best, evaluation);
    one.change = change(question, best, evaluation, alterations);
  }
  add_others(question, answer, all);
  return all;
}

std::string to_text(const std::vector<Explanation>& explanations) {
  std::map<std::string, std::string> listed;  // tested changes, and the first that lost with them
  std::string text;
  for (const Explanation& one : explanations) {
    std::string change = one.change;
    if (change.starts_with(kLosesAlso)) {
      const auto [first, is_new] = listed.try_emplace(change, one.candidate);
      if (!is_new) change = fmt::format("{}every change tested for {}", kLosesAlso, first->second);
    }
    text += fmt::format("{}\n  {}\n  {}\n", one.candidate, one.lost, change);
  }
  return text;
}

std::string to_json(const std::vector<Explanation>& explanations) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Explanation& one : explanations) {
    json.push_back({{"candidate", one.candidate}, {"lost", one.lost}, {"change", one.change}});
  }
  return json.dump();
}

}  // namespace armillary::tune

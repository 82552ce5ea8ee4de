// The registry of strategies, the texts that name them, and Planner. A text becomes options here,
// for all strategies alike; values that depend on the problem are refused by the strategy's
// `check`.
#include "armillary/plan/strategies/strategy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"
#include "armillary/plan/passes/replay.h"
#include "armillary/plan/program/parallel_for_ranks.h"
#include "armillary/plan/strategies/presets.h"
#include "armillary/plan/strategies/schedule.h"

namespace armillary::plan {
namespace {

/// All strategies known so far: the named ones, then those of add_strategy().
std::vector<StrategyDefinition>& registry() {
  static std::vector<StrategyDefinition> all = named_strategies();
  return all;
}

/// A published method whose ranks attend to K and V of an earlier denoising step, and the strategy
/// that moves the same tiles and waits for them.
struct StaleMethod {
  std::string_view name;
  std::string_view exact;
};
constexpr std::array<StaleMethod, 3> kStaleMethods{{
    {"distrifusion", "allgather"},  // Li et al., arXiv:2402.19481
    {"pipefusion", "ring"},         // Fang et al., arXiv:2405.14430
    {"asyncdiff", "ring"},          // Chen et al., arXiv:2406.06911
}};

/// The strategy of that name, or an error with the nearest name.
const StrategyDefinition& definition(const std::string& name) {
  std::vector<std::string> names;
  for (const StrategyDefinition& candidate : registry()) {
    if (candidate.info.name == name) return candidate;
    names.push_back(candidate.info.name);
  }
  refuse_stale("strategy", name);
  const std::string nearest = nearest_name(name, names);
  fail<InvalidArgument>("strategy: unknown name {}; one of {}{}", quote(name), list_names(names),
                        nearest.empty() ? "" : "; nearest: " + nearest);
}

using KeyTexts = std::map<std::string, std::string>;  ///< Values by key; "" for none.

/// Adds `key=value` or `key`; `text` is all that was given, for the error.
void add_key(KeyTexts& keys, std::string_view text, std::string_view part) {
  const std::optional<KeyValue> pair = split_key_value(part);
  if (part.empty() || (pair && (pair->key.empty() || pair->value.empty()))) {
    fail<InvalidArgument>("strategy: {} has the part {}; write NAME:key=value,...", quote(text),
                          quote(part));
  }
  const std::string key(pair ? pair->key : part);
  const std::string value(pair ? pair->value : "");
  if (!keys.emplace(key, value).second) {
    fail<InvalidArgument>("strategy: {} gives the key {} twice; once is enough", quote(text),
                          quote(key));
  }
}

/// The key of that name. @throws InvalidArgument that lists those of the strategy.
const StrategyKey& key_of(const StrategyInfo& info, const std::string& name) {
  std::vector<std::string> names;
  for (const StrategyKey& key : info.keys) {
    if (key.name == name) return key;
    names.push_back(key.name);
  }
  if (names.empty()) {
    fail<InvalidArgument>("strategy: {} was given the key {}; it takes no keys", info.name,
                          quote(name));
  }
  fail<InvalidArgument>("strategy: {} was given the key {}; its keys are {}", info.name,
                        quote(name), list_names(names));
}

/// The keys of the options that are not at their defaults. Refuses options that no text gives.
KeyTexts texts_of(const StrategyInfo& info, const Options& options) {
  if (info.keys.empty() && options.has_value()) refuse_options();
  KeyTexts texts;
  for (const StrategyKey& key : info.keys) {
    if (const std::optional<std::string> text = key.text(options)) {
      texts.emplace(key.name, *text);
    } else if (key.required) {
      fail<InvalidArgument>("strategy: {} needs the key '{}'; write {}", info.name, key.name,
                            usage(info));
    }
  }
  return texts;
}

/// A strategy with each set of its keys that is worth comparing, legal or not.
std::vector<Strategy> candidates(const Problem& problem, const StrategyDefinition& entry) {
  std::vector<Options> variants(1);
  if (entry.variants) variants = entry.variants(problem);
  std::vector<Strategy> all;
  all.reserve(variants.size());
  for (Options& options : variants) {
    all.push_back({.name = entry.info.name, .options = std::move(options)});
  }
  return all;
}

/// The reason why a strategy is not legal for a problem; empty if it is.
std::string refusal(const Problem& problem, const Strategy& strategy) {
  try {
    check_legal(problem, strategy);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

}  // namespace

// NAME, or NAME and a colon with at least one key.
Strategy parse_strategy(std::string_view text) {
  const std::size_t colon = text.find(':');
  Strategy strategy{.name = std::string(text.substr(0, colon))};
  const std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (colon != std::string_view::npos && rest.empty()) {
    fail<InvalidArgument>("strategy: {} ends with a colon; write NAME or NAME:key=value,...",
                          quote(text));
  }
  KeyTexts keys;
  if (!rest.empty()) {
    for (const std::string_view part : split(rest, ',')) add_key(keys, text, part);
  }
  const StrategyInfo& info = definition(strategy.name).info;
  for (const auto& [name, value] : keys) {
    const std::string what = fmt::format("strategy {}: {}", info.name, name);
    key_of(info, name).set(strategy.options, what, value);
  }
  // Required keys are checked last: a misspelled key is the better explanation.
  texts_of(info, strategy.options);
  return strategy;
}

std::string to_string(const Strategy& strategy) {
  std::string text = strategy.name;
  char separator = ':';
  for (const auto& [key, value] : texts_of(definition(strategy.name).info, strategy.options)) {
    text += fmt::format("{}{}{}{}", separator, key, value.empty() ? "" : "=", value);
    separator = ',';
  }
  return text;
}

bool Strategy::operator==(const Strategy& other) const {
  return name == other.name && to_string(*this) == to_string(other);
}

void refuse_stale(std::string_view where, std::string_view name) {
  std::string letters;
  for (const char c : name) {
    if (c != '-' && c != '_')
      letters += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  const auto* const stale = std::ranges::find(kStaleMethods, letters, &StaleMethod::name);
  if (stale == kStaleMethods.end()) return;
  fail<InvalidArgument>(
      "{}: {} attends to K and V of an earlier denoising step, which are stale; exact attention is "
      "required; nearest: {}",
      where, quote(name), stale->exact);
}

void refuse_options() {
  fail<InvalidArgument>("strategy: options of another strategy; its own or none are required");
}

// Keys that are not required stand in brackets, with their comma.
std::string usage(const StrategyInfo& info) {
  std::string text = info.name;
  char separator = ':';
  for (const StrategyKey& key : info.keys) {
    const std::string part =
        fmt::format("{}{}{}{}", separator, key.name, key.values.empty() ? "" : "=", key.values);
    text += key.required ? part : fmt::format("[{}]", part);
    separator = ',';
  }
  return text;
}

std::vector<StrategyInfo> strategies() {
  std::vector<StrategyInfo> infos;
  for (const StrategyDefinition& entry : registry()) infos.push_back(entry.info);
  return infos;
}

void add_strategy(StrategyDefinition added) {
  for (const StrategyDefinition& known : registry()) {
    if (known.info.name == added.info.name) {
      fail<InvalidArgument>("strategy: the name '{}' is taken; another one is required",
                            added.info.name);
    }
  }
  registry().push_back(std::move(added));
}

void check_legal(const Problem& problem, const Strategy& strategy) {
  const StrategyDefinition& known = definition(strategy.name);
  texts_of(known.info, strategy.options);
  known.check(problem, strategy);
}

// Candidates that a strategy refuses are left out; the reason is given when they are asked for by
// name.
std::vector<Strategy> legal_strategies(const Problem& problem) {
  std::vector<Strategy> legal;
  for (const StrategyDefinition& entry : registry()) {
    for (Strategy& candidate : candidates(problem, entry)) {
      if (refusal(problem, candidate).empty()) legal.push_back(std::move(candidate));
    }
  }
  return legal;
}

std::string why_none_legal(const Problem& problem, const std::string& name) {
  const StrategyDefinition& entry = definition(name);
  std::string first = fmt::format("strategy: no value of the keys of {} fits world {}",
                                  usage(entry.info), problem.world);
  bool tried = false;
  for (const Strategy& candidate : candidates(problem, entry)) {
    const std::string reason = refusal(problem, candidate);
    if (reason.empty()) return "";
    if (!tried) first = reason;
    tried = true;
  }
  return first;
}

/// The data that the ranks of a problem share. The schedule refers to the other members, so their
/// order here is the order in which they are made.
struct Planner::Shared {
  Shared(const Problem& source, const Strategy& strategy)
      : problem(source),
        blocks(make_blocks(problem)),
        visibility(problem.mask, blocks),
        schedule(definition(strategy.name).schedule({problem, blocks, visibility}, strategy)) {}

  Problem problem;
  Blocks blocks;
  Visibility visibility;
  std::unique_ptr<const Schedule> schedule;
};

Planner::Planner(const Problem& problem, Strategy strategy) : strategy_(std::move(strategy)) {
  // Blocks and their visibility are the expensive part, so they come after all checks.
  validate(problem);
  check_legal(problem, strategy_);
  shared_ = std::make_shared<const Shared>(problem, strategy_);
}

const Problem& Planner::problem() const {
  return shared_->problem;
}

const Blocks& Planner::blocks() const {
  return shared_->blocks;
}

RankProgram Planner::program(Pass pass, Rank rank) const {
  if (rank < 0 || rank >= problem().world) {
    fail<InvalidArgument>("planner: rank {}; world {} has ranks 0 to {}", rank, problem().world,
                          problem().world - 1);
  }
  // Strategies know forward and backward; a replay is made from forward.
  if (pass != Pass::Replay) return shared_->schedule->program(pass, rank);
  return replay(problem(), blocks(), shared_->schedule->program(Pass::Forward, rank));
}

// A replay repeats messages of forward.
std::optional<Fold> Planner::fold(Pass pass) const {
  const Pass base = pass == Pass::Replay ? Pass::Forward : pass;
  return Fold::find(problem(), blocks(), shared_->visibility, shared_->schedule->rotations(base));
}

// The planner is made once for all passes, and the ranks of each pass are made on all cores.
std::vector<Plan> make_plans(const Problem& problem, const Strategy& strategy,
                             const std::vector<Pass>& passes) {
  // A ring of 1024 ranks has some ten million ops, which take gigabytes.
  if (problem.world > kMostTogether) {
    fail<InvalidArgument>("plan: world {}; the programs of at most {} ranks can be made together",
                          problem.world, kMostTogether);
  }
  const Planner planner(problem, strategy);
  std::vector<Plan> plans;
  for (const Pass pass : passes) {
    plans.push_back({.problem = problem,
                     .strategy = to_string(strategy),
                     .pass = pass,
                     .blocks = planner.blocks(),
                     .ranks = {}});
    plans.back().ranks.resize(problem.world);
    parallel_for_ranks(problem.world,
                       [&](Rank rank) { plans.back().ranks[rank] = planner.program(pass, rank); });
  }
  return plans;
}

Plan make_plan(const Problem& problem, const Strategy& strategy, Pass pass) {
  return std::move(make_plans(problem, strategy, {pass})[0]);
}

}  // namespace armillary::plan

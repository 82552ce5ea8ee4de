// The registry of strategies, the texts that name them, and Planner. Texts are checked in two
// steps: syntax and keys here, for all strategies alike; values that depend on the problem in the
// strategy's own `check`.
#include "armillary/plan/strategy.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"
#include "armillary/plan/parallel_for_ranks.h"
#include "armillary/plan/passes/replay.h"
#include "armillary/plan/schedule.h"
#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {
namespace {

/// All strategies known so far: the named ones, then those of add_strategy().
std::vector<StrategyDefinition>& registry() {
  static std::vector<StrategyDefinition> all = named_strategies();
  return all;
}

/// The strategy of that name, or an error with the nearest name.
const StrategyDefinition& definition(const std::string& name) {
  std::vector<std::string> names;
  for (const StrategyDefinition& candidate : registry()) {
    if (candidate.info.name == name) return candidate;
    names.push_back(candidate.info.name);
  }
  const std::string nearest = nearest_name(name, names);
  fail<InvalidArgument>("strategy: unknown name {}; one of {}{}", quote(name), list_names(names),
                        nearest.empty() ? "" : "; nearest: " + nearest);
}

/// Adds `key=value` or `key` to a strategy; `text` is all that was given, for the error.
void add_key(Strategy& strategy, std::string_view text, std::string_view part) {
  const std::optional<KeyValue> given = split_key_value(part);
  if (part.empty() || (given && (given->key.empty() || given->value.empty()))) {
    fail<InvalidArgument>("strategy: {} has the part {}; write NAME:key=value,...", quote(text),
                          quote(part));
  }
  const std::string key(given ? given->key : part);
  const std::string value(given ? given->value : "");
  if (!strategy.keys.emplace(key, value).second) {
    fail<InvalidArgument>("strategy: {} gives the key {} twice; once is enough", quote(text),
                          quote(key));
  }
}

/// True if the key takes a whole number: its values are a single letter (strategy.h).
bool is_number(const StrategyKey& key) {
  return key.values.size() == 1;
}

/// Checks a value against StrategyKey::values: a number, no value, one of some names, or a text.
/// Names are told from a text by their small letters.
void check_value(const StrategyInfo& info, const StrategyKey& key, const std::string& value) {
  const std::string what = fmt::format("strategy {}: {}", info.name, key.name);
  if (is_number(key)) {
    parse_integer(what, value, {1, std::numeric_limits<int>::max()});
  } else if (key.values.empty()) {
    if (!value.empty())
      fail<InvalidArgument>("{}: {} given; it takes no value", what, quote(value));
  } else if (key.values.find_first_of("abcdefghijklmnopqrstuvwxyz") != std::string::npos) {
    parse_choice(what, value, split(key.values, '|'));
  } else if (value.empty()) {
    fail<InvalidArgument>("{}: '' given; {} is required", what, key.values);
  }
}

/// Refuses keys that the strategy does not have, wrong values, and required keys that are missing.
void check_keys(const Strategy& strategy, const StrategyInfo& info) {
  std::vector<std::string> names;
  for (const StrategyKey& key : info.keys) names.push_back(key.name);
  for (const auto& [key, value] : strategy.keys) {
    const auto known = std::find(names.begin(), names.end(), key);
    if (known != names.end()) {
      check_value(info, info.keys[known - names.begin()], value);
    } else if (names.empty()) {
      fail<InvalidArgument>("strategy: {} was given the key {}; it takes no keys", info.name,
                            quote(key));
    } else {
      fail<InvalidArgument>("strategy: {} was given the key {}; its keys are {}", info.name,
                            quote(key), list_names(names));
    }
  }
  // Required keys are checked last: a misspelled key is the better explanation.
  for (const StrategyKey& key : info.keys) {
    if (key.required && strategy.keys.count(key.name) == 0) {
      fail<InvalidArgument>("strategy: {} needs the key '{}'; write {}", info.name, key.name,
                            usage(info));
    }
  }
}

}  // namespace

// NAME, or NAME and a colon with at least one key.
Strategy parse_strategy(std::string_view text) {
  const std::size_t colon = text.find(':');
  Strategy strategy{.name = std::string(text.substr(0, colon)), .keys = {}};
  const std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (colon != std::string_view::npos && rest.empty()) {
    fail<InvalidArgument>("strategy: {} ends with a colon; write NAME or NAME:key=value,...",
                          quote(text));
  }
  if (!rest.empty()) {
    for (const std::string_view part : split(rest, ',')) add_key(strategy, text, part);
  }
  check_keys(strategy, definition(strategy.name).info);
  return strategy;
}

std::string to_string(const Strategy& strategy) {
  std::string text = strategy.name;
  char separator = ':';
  for (const auto& [key, value] : strategy.keys) {
    text += fmt::format("{}{}{}{}", separator, key, value.empty() ? "" : "=", value);
    separator = ',';
  }
  return text;
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
  check_keys(strategy, known.info);
  known.check(problem, strategy);
}

// Candidates that a strategy refuses are left out; the reason is given when they are asked for by
// name.
std::vector<Strategy> legal_strategies(const Problem& problem) {
  std::vector<Strategy> legal;
  for (const StrategyDefinition& entry : registry()) {
    std::vector<std::map<std::string, std::string>> variants(1);
    if (entry.variants) variants = entry.variants(problem);
    for (std::map<std::string, std::string>& keys : variants) {
      Strategy candidate{.name = entry.info.name, .keys = std::move(keys)};
      try {
        check_legal(problem, candidate);
        legal.push_back(std::move(candidate));
      } catch (const InvalidArgument&) {  // not legal for this problem
      }
    }
  }
  return legal;
}

/// The data that the ranks of a problem share. The schedule refers to the other members, so their
/// order here is the order in which they are made.
struct Planner::Shared {
  Shared(const Problem& given, const Strategy& strategy)
      : problem(given),
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
  const Pass made = pass == Pass::Replay ? Pass::Forward : pass;
  return Fold::find(problem(), blocks(), shared_->visibility, shared_->schedule->rotations(made));
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

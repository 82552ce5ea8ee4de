#include "armillary/plan/strategy.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/spec.h"
#include "armillary/plan/each_rank.h"
#include "armillary/plan/passes/replay.h"
#include "armillary/plan/schedule.h"
#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {
namespace {

std::vector<StrategyDefinition>& registry() {
  static std::vector<StrategyDefinition> all = named_strategies();
  return all;
}

const StrategyDefinition& definition(const std::string& name) {
  std::vector<std::string> names;
  for (const StrategyDefinition& candidate : registry()) {
    if (candidate.info.name == name) return candidate;
    names.push_back(candidate.info.name);
  }
  const std::string nearest = nearest_name(name, names);
  fail<InvalidArgument>("strategy: unknown name '{}'; one of {}{}", name, list_names(names),
                        nearest.empty() ? "" : "; nearest: " + nearest);
}

void add_key(Strategy& strategy, std::string_view text, std::string_view part) {
  const std::size_t equals = part.find('=');
  if (equals == 0 || equals + 1 == part.size() || part.empty()) {
    fail<InvalidArgument>("strategy: '{}' has the part '{}'; write NAME:key=value,...", text, part);
  }
  const std::string key(part.substr(0, equals));
  const std::string value(equals == std::string_view::npos ? "" : part.substr(equals + 1));
  if (!strategy.keys.emplace(key, value).second) {
    fail<InvalidArgument>("strategy: '{}' gives the key '{}' twice; once is enough", text, key);
  }
}

bool is_number(const StrategyKey& key) {
  return key.values.size() == 1;
}

void check_value(const StrategyInfo& info, const StrategyKey& key, const std::string& value) {
  const std::string what = fmt::format("strategy {}: {}", info.name, key.name);
  if (is_number(key)) {
    parse_integer(what, value, {1, std::numeric_limits<int>::max()});
  } else if (key.values.empty()) {
    if (!value.empty()) fail<InvalidArgument>("{}={} given; it takes no value", what, value);
  } else if (key.values.find_first_of("abcdefghijklmnopqrstuvwxyz") != std::string::npos) {
    parse_choice(what, value, split(key.values, '|'));
  } else if (value.empty()) {
    fail<InvalidArgument>("{}: '' given; {} is required", what, key.values);
  }
}

void check_keys(const Strategy& strategy, const StrategyInfo& info) {
  std::vector<std::string> names;
  for (const StrategyKey& key : info.keys) names.push_back(key.name);
  for (const auto& [key, value] : strategy.keys) {
    const auto known = std::find(names.begin(), names.end(), key);
    if (known != names.end()) {
      check_value(info, info.keys[known - names.begin()], value);
    } else if (names.empty()) {
      fail<InvalidArgument>("strategy: {} was given the key '{}'; it takes no keys", info.name,
                            key);
    } else {
      fail<InvalidArgument>("strategy: {} was given the key '{}'; its keys are {}", info.name, key,
                            list_names(names));
    }
  }
  for (const StrategyKey& key : info.keys) {
    if (key.required && strategy.keys.count(key.name) == 0) {
      fail<InvalidArgument>("strategy: {} needs the key '{}'; write {}", info.name, key.name,
                            usage(info));
    }
  }
}

}  // namespace

Strategy parse_strategy(std::string_view text) {
  const std::size_t colon = text.find(':');
  Strategy strategy{.name = std::string(text.substr(0, colon)), .keys = {}};
  const std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (colon != std::string_view::npos && rest.empty()) {
    fail<InvalidArgument>("strategy: '{}' ends with a colon; write NAME or NAME:key=value,...",
                          text);
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
      } catch (const InvalidArgument&) {  // refused with its reason when it is asked for by name
      }
    }
  }
  return legal;
}

/// What the ranks of a problem share.
struct Planner::Shared {
  Shared(const Problem& given, const Strategy& strategy)
      : problem(given),
        blocks(make_blocks(problem)),
        areas(problem.mask, blocks),
        schedule(definition(strategy.name).schedule({problem, blocks, areas}, strategy)) {}

  Problem problem;
  Blocks blocks;
  BlockAreas areas;
  std::unique_ptr<const Schedule> schedule;
};

Planner::Planner(const Problem& problem, Strategy strategy) : strategy_(std::move(strategy)) {
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
  if (pass != Pass::Replay) return shared_->schedule->program(pass, rank);
  return replay(problem(), blocks(), shared_->schedule->program(Pass::Forward, rank));
}

std::vector<Plan> make_plans(const Problem& problem, const Strategy& strategy,
                             const std::vector<Pass>& passes) {
  constexpr int kMostTogether = 1 << 10;  // A ring of 1024 has some ten million ops: gigabytes.
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
    for_each_rank(problem.world,
                  [&](Rank rank) { plans.back().ranks[rank] = planner.program(pass, rank); });
  }
  return plans;
}

Plan make_plan(const Problem& problem, const Strategy& strategy, Pass pass) {
  return std::move(make_plans(problem, strategy, {pass})[0]);
}

}  // namespace armillary::plan

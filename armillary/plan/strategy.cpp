#include "armillary/plan/strategy.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/spec.h"
#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {
namespace {

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all{ring_preset(), allgather_preset(), ulysses_preset(),
                                       usp_preset()};
  return all;
}

const Preset& preset(const std::string& name) {
  std::vector<std::string> names;
  for (const Preset& candidate : presets()) {
    if (candidate.info.name == name) return candidate;
    names.push_back(candidate.info.name);
  }
  const std::string nearest = nearest_name(name, names);
  fail<InvalidArgument>("strategy: unknown name '{}'; one of {}{}", name, list_names(names),
                        nearest.empty() ? "" : "; nearest: " + nearest);
}

void add_key(Strategy& strategy, std::string_view text, std::string_view part) {
  const std::size_t equals = part.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == part.size()) {
    fail<InvalidArgument>("strategy: '{}' has the part '{}'; write NAME:key=value,...", text, part);
  }
  const std::string key(part.substr(0, equals));
  if (!strategy.keys.emplace(key, std::string(part.substr(equals + 1))).second) {
    fail<InvalidArgument>("strategy: '{}' gives the key '{}' twice; once is enough", text, key);
  }
}

void check_keys(const Strategy& strategy, const StrategyInfo& info) {
  for (const auto& [key, value] : strategy.keys) {
    if (std::count(info.keys.begin(), info.keys.end(), key) > 0) continue;
    if (info.keys.empty()) {
      fail<InvalidArgument>("strategy: {} was given the key '{}'; it takes no keys", info.name,
                            key);
    }
    fail<InvalidArgument>("strategy: {} was given the key '{}'; its keys are {}", info.name, key,
                          list_names(info.keys));
  }
  for (const std::string& key : info.keys) {
    if (strategy.keys.count(key) == 0) {
      fail<InvalidArgument>("strategy: {} needs the key '{}'; write {}:{}=NUMBER", info.name, key,
                            info.name, key);
    }
  }
}

}  // namespace

int positive_key(const Strategy& strategy, const std::string& key) {
  return static_cast<int>(parse_integer(fmt::format("strategy {}: {}", strategy.name, key),
                                        strategy.keys.at(key),
                                        {1, std::numeric_limits<int>::max()}));
}

void require_heads(const Problem& problem, int u, const Strategy& strategy) {
  if (u <= problem.heads) return;
  int nearest = problem.heads;
  while (problem.world % nearest != 0) --nearest;
  fail<InvalidArgument>(
      "strategy: {} spreads heads {} ways but there are {} query heads; u must not exceed the "
      "heads; nearest: usp:u={}",
      to_string(strategy), u, problem.heads, nearest);
}

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
  check_keys(strategy, preset(strategy.name).info);
  return strategy;
}

std::string to_string(const Strategy& strategy) {
  std::string text = strategy.name;
  char separator = ':';
  for (const auto& [key, value] : strategy.keys) {
    text += fmt::format("{}{}={}", separator, key, value);
    separator = ',';
  }
  return text;
}

const std::vector<StrategyInfo>& strategies() {
  static const std::vector<StrategyInfo> all = [] {
    std::vector<StrategyInfo> infos;
    for (const Preset& entry : presets()) infos.push_back(entry.info);
    return infos;
  }();
  return all;
}

void check_legal(const Problem& problem, const Strategy& strategy) {
  preset(strategy.name).grid(problem, strategy);
}

std::vector<Strategy> legal_strategies(const Problem& problem) {
  std::vector<Strategy> legal;
  for (const Preset& entry : presets()) {
    std::vector<Strategy> candidates{{.name = entry.info.name, .keys = {}}};
    for (const std::string& key : entry.info.keys) {
      std::vector<Strategy> longer;
      for (const Strategy& candidate : candidates) {
        for (int value = 2; value < problem.world; ++value) {
          if (problem.world % value != 0) continue;
          longer.push_back(candidate);
          longer.back().keys[key] = std::to_string(value);
        }
      }
      candidates = std::move(longer);
    }
    for (const Strategy& candidate : candidates) {
      try {
        check_legal(problem, candidate);
        legal.push_back(candidate);
      } catch (const InvalidArgument&) {  // refused with its reason when it is asked for by name
      }
    }
  }
  return legal;
}

/// What the ranks of a problem share.
struct Planner::Shared {
  Shared(const Problem& problem, const Strategy& strategy)
      : grid(preset(strategy.name).grid(problem, strategy)),
        blocks(make_blocks(problem)),
        areas(problem.mask, blocks),
        needs(grid, blocks, areas),
        forward(with_shorter_ring(problem, blocks, needs, grid, Pass::Forward)),
        backward(with_shorter_ring(problem, blocks, needs, grid, Pass::Backward)) {}

  Grid grid;
  Blocks blocks;
  BlockAreas areas;
  Needs needs;
  Grid forward;
  Grid backward;
};

Planner::Planner(Problem problem, Strategy strategy)
    : problem_(std::move(problem)), strategy_(std::move(strategy)) {
  validate(problem_);
  check_keys(strategy_, preset(strategy_.name).info);
  shared_ = std::make_shared<const Shared>(problem_, strategy_);
}

const Blocks& Planner::blocks() const {
  return shared_->blocks;
}

RankProgram Planner::program(Pass pass, Rank rank) const {
  if (rank < 0 || rank >= problem_.world) {
    fail<InvalidArgument>("planner: rank {}; world {} has ranks 0 to {}", rank, problem_.world,
                          problem_.world - 1);
  }
  const Grid& grid = pass == Pass::Forward ? shared_->forward : shared_->backward;
  return grid_program(problem_, shared_->blocks, shared_->needs, grid, pass, rank);
}

Plan make_plan(const Problem& problem, const Strategy& strategy, Pass pass) {
  constexpr int kMostTogether = 1 << 10;  // A ring of 1024 has some ten million ops: gigabytes.
  if (problem.world > kMostTogether) {
    fail<InvalidArgument>("plan: world {}; the programs of at most {} ranks can be made together",
                          problem.world, kMostTogether);
  }
  const Planner planner(problem, strategy);
  Plan plan{.problem = problem,
            .strategy = to_string(strategy),
            .pass = pass,
            .blocks = planner.blocks(),
            .ranks = {}};
  for (Rank rank = 0; rank < problem.world; ++rank) {
    plan.ranks.push_back(planner.program(pass, rank));
  }
  return plan;
}

}  // namespace armillary::plan

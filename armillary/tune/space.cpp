// space.cpp: a choice is a set of keys that are given together, such as `col=double_ring,window=4`;
// a dimension is a list of choices of which a candidate has one.
#include "armillary/tune/space.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "armillary/core/error.h"

namespace armillary::tune {
namespace {

using Keys = std::map<std::string, std::string>;

/// Choices of which one is taken. The keys of all choices are removed before one is put in.
struct Dimension {
  std::vector<std::string> keys;
  std::vector<Keys> choices;
};

/// One key whose values are choices; "-" stands for a key that is not given.
Dimension one_key(const std::string& key, const std::vector<std::string>& values) {
  Dimension dimension{.keys = {key}, .choices = {}};
  for (const std::string& value : values) {
    dimension.choices.push_back(value == "-" ? Keys{} : Keys{{key, value}});
  }
  return dimension;
}

int number_of(const plan::Strategy& strategy, const std::string& key) {
  const auto found = strategy.keys.find(key);
  return found == strategy.keys.end() ? 1 : std::stoi(found->second);
}

/// Windows of a double ring that are worth a look: those that are whole nodes, or parts of one.
std::vector<int> windows(int members, int devices_per_node) {
  std::vector<int> found;
  for (int w = 2; w < members; ++w) {
    if (members % w == 0 && (devices_per_node % w == 0 || w == devices_per_node))
      found.push_back(w);
  }
  return found;
}

/// Movements of the columns of a grid, the nesting of its axes, and the side in backward.
std::vector<Dimension> grid_dimensions(const Question& question, const plan::Strategy& strategy) {
  const int u = number_of(strategy, "u");
  const int rq = number_of(strategy, "rq");
  Dimension columns{.keys = {"col", "window"}, .choices = {{}, {{"col", "gather"}}}};
  if (rq > 2) columns.choices.push_back({{"col", "bidirectional"}});
  for (const int w : windows(rq, question.cluster.devices_per_node)) {
    columns.choices.push_back({{"col", "double_ring"}, {"window", std::to_string(w)}});
  }
  std::vector<Dimension> dimensions{columns, one_key("row", {"-", "ring"}),
                                    one_key("backward", {"-", "kv", "q"})};
  if (number_of(strategy, "rk") > 2) dimensions[1].choices.push_back({{"row", "bidirectional"}});
  dimensions.push_back(
      one_key("nest", u == 1 ? std::vector<std::string>{"-", "u-rq-rk"}
                             : std::vector<std::string>{"-", "u-rq-rk", "rk-u-rq", "rk-rq-u",
                                                        "rq-u-rk", "rq-rk-u"}));
  return dimensions;
}

/// Whether the choices of a dimension are orders of the axes.
bool orders_axes(const Dimension& dimension) {
  return dimension.keys.front() == "inner" || dimension.keys.front() == "nest";
}

/// The choices that a strategy has besides the keys that make it what it is. Its first candidates
/// vary the others (StrategyDefinition::variants).
std::vector<Dimension> dimensions(const Question& question, const plan::Strategy& strategy) {
  if (strategy.name == "grid") return grid_dimensions(question, strategy);
  if (strategy.name == "ring") return {one_key("backward", {"-", "q"})};
  if (strategy.name == "usp") {
    return {one_key("inner", {"-", "ring"}), one_key("qkv", {"-", "packed"}),
            one_key("backward", {"-", "q"})};
  }
  if (strategy.name == "ulysses") return {one_key("qkv", {"-", "packed"})};
  if (strategy.name == "startrail") return {one_key("placement", {"-", "p2p_intra"})};
  if (strategy.name == "attention2d") return {one_key("overlap", {"-", "true"})};
  if (strategy.name == "tokenring") {
    return {one_key("tiles", {"-", "stay"}), one_key("inner", {"-", "ring"})};
  }
  if (strategy.name == "allgather") {
    Dimension slices = one_key("slices", {"-"});
    for (int s = 2; s <= question.problem.kv_heads; ++s) {
      if (question.problem.kv_heads % s == 0)
        slices.choices.push_back({{"slices", std::to_string(s)}});
    }
    return {slices};
  }
  return {};
}

/// Choices may be illegal together; such combinations are left out.
bool is_legal(const plan::Problem& problem, const plan::Strategy& strategy) {
  try {
    check_legal(problem, strategy);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

/// The strategy with one choice of a dimension in the place of another.
plan::Strategy with(plan::Strategy strategy, const Dimension& dimension, const Keys& choice) {
  for (const std::string& key : dimension.keys) strategy.keys.erase(key);
  for (const auto& [key, value] : choice) strategy.keys[key] = value;
  return strategy;
}

std::vector<plan::Wire> wires(const Question& question) {
  if (!question.free.wire) return {question.problem.wire};
  return {plan::Wire::Accumulator, plan::Wire::Input};
}

/// Strides that put neighbouring ranks on different nodes, or on different halves of one node.
std::vector<Placement> placements(const Question& question) {
  std::vector<Placement> found{{1}};
  if (!question.free.placement) return found;
  const int world = question.problem.world;
  const int per_node = question.cluster.devices_per_node;
  for (const int stride : {per_node / 2, per_node}) {
    if (stride > 1 && stride < world && world % stride == 0) found.push_back({stride});
  }
  return found;
}

/// Candidates of one layout in every wire and placement that is free.
void add_variants(const Question& question, const Candidate& candidate,
                  std::vector<Candidate>& all) {
  for (const plan::Wire wire : wires(question)) {
    for (const Placement& placement : placements(question)) {
      all.push_back(candidate);
      all.back().wire = wire;
      all.back().placement = placement;
    }
  }
}

/// Leaves the first of equal candidates.
void drop_doubles(std::vector<Candidate>& candidates) {
  std::set<std::string> known;
  std::erase_if(candidates, [&](const Candidate& candidate) {
    return !known.insert(to_string(candidate)).second;
  });
}

}  // namespace

double imbalance(const plan::Problem& problem) {
  const auto all = static_cast<double>(problem.mask.area());
  if (all == 0) return 1;
  const plan::Shards shards = plan::shards(problem.layout, problem.mask, problem.world);
  const plan::Runs keys{{.begin = 0, .count = problem.mask.kv_len()}};
  double most = 0;
  for (const plan::Runs& q : shards.q) {
    most = std::max(most, static_cast<double>(problem.mask.area(q, keys)));
  }
  return most * problem.world / all;
}

std::vector<plan::Layout> layouts(const Question& question, LayoutChoice choice) {
  plan::Problem problem = question.problem;
  if (!question.free.layout) return {problem.layout};
  using Kind = plan::Layout::Kind;
  constexpr double kEven = 1.05;
  const auto of_kind = [&](Kind kind) {
    problem.layout = {.kind = kind};
    return imbalance(problem);
  };
  // Work that is even without any reordering needs no other layout.
  const double contiguous = of_kind(Kind::Contiguous);
  std::vector<plan::Layout> found{{.kind = Kind::Contiguous}};
  if (contiguous <= 1 + 1e-9) return found;
  const double zigzag = of_kind(Kind::Zigzag);
  const bool large = problem.world > kLargeWorld;
  // In a large world, four ranks do not show how uneven the work of a grid is, so uneven layouts
  // are left out where there is an even one.
  if (large && zigzag <= kEven && contiguous > kEven) found.clear();
  if (zigzag < contiguous) found.push_back({.kind = Kind::Zigzag});
  if ((large || choice == LayoutChoice::First) && std::min(contiguous, zigzag) <= kEven) {
    return found;
  }
  found.push_back({.kind = Kind::Balanced});
  // Each rank has a run of every stripe, so the pairs of blocks grow with the length.
  if (problem.world <= 16) found.push_back({.kind = Kind::Striped});
  return found;
}

namespace {

/// Every cut and every named strategy in the layouts of a choice.
std::vector<Candidate> candidates_in(const Question& question, LayoutChoice choice) {
  std::vector<Candidate> found;
  for (const plan::Layout& layout : layouts(question, choice)) {
    plan::Problem problem = question.problem;
    problem.layout = layout;
    for (plan::Strategy& strategy : plan::legal_strategies(problem)) {
      const bool wanted = question.names.empty() ||
                          std::find(question.names.begin(), question.names.end(), strategy.name) !=
                              question.names.end();
      if (!wanted || strategy.name == "auto") continue;
      found.push_back(
          {.strategy = std::move(strategy), .layout = layout, .wire = question.problem.wire});
    }
  }
  return found;
}

}  // namespace

std::vector<Candidate> first_candidates(const Question& question) {
  return candidates_in(question, LayoutChoice::First);
}

std::vector<Candidate> neighbours(const Question& question, const Candidate& candidate) {
  std::vector<Candidate> found;
  const plan::Problem problem = problem_of(question, candidate);
  for (const Dimension& dimension : dimensions(question, candidate.strategy)) {
    for (const Keys& choice : dimension.choices) {
      Candidate other = candidate;
      other.strategy = with(candidate.strategy, dimension, choice);
      if (!is_legal(problem, other.strategy)) continue;
      found.push_back(other);
      if (!orders_axes(dimension) || problem.world > kLargeWorld) continue;
      // The order of the axes and the placement both say which ranks are near each other: either
      // alone may be worse where both together are better.
      for (const Placement& placement : placements(question)) {
        other.placement = placement;
        if (placement != candidate.placement) found.push_back(other);
      }
    }
  }
  // Wire and placement change one at a time, like all else.
  std::vector<Candidate> variants;
  add_variants(question, candidate, variants);
  for (const Candidate& variant : variants) {
    if (variant.wire == candidate.wire || variant.placement == candidate.placement) {
      found.push_back(variant);
    }
  }
  for (const plan::Layout& layout : layouts(question, LayoutChoice::All)) {
    found.push_back(candidate);
    found.back().layout = layout;
  }
  drop_doubles(found);
  std::erase(found, candidate);
  return found;
}

std::vector<Candidate> whole_space(const Question& question) {
  std::vector<Candidate> all;
  for (const Candidate& first : candidates_in(question, LayoutChoice::All)) {
    // The product of all dimensions, one after the other.
    std::vector<plan::Strategy> strategies{first.strategy};
    for (const Dimension& dimension : dimensions(question, first.strategy)) {
      std::vector<plan::Strategy> longer;
      for (const plan::Strategy& strategy : strategies) {
        for (const Keys& choice : dimension.choices) {
          longer.push_back(with(strategy, dimension, choice));
        }
      }
      strategies = std::move(longer);
    }
    for (plan::Strategy& strategy : strategies) {
      Candidate candidate = first;
      candidate.strategy = std::move(strategy);
      if (is_legal(problem_of(question, candidate), candidate.strategy)) {
        add_variants(question, candidate, all);
      }
    }
  }
  drop_doubles(all);
  return all;
}

}  // namespace armillary::tune

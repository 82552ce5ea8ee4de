// space.cpp: a choice is a value of options that belong together, such as a double ring and its
// window; a dimension is a list of choices of which a candidate has one.
#include "armillary/predict/tune/space.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <set>
#include <type_traits>

#include "armillary/core/error.h"
#include "armillary/plan/strategies/options.h"

namespace armillary::tune {
namespace {

using plan::BackwardSide;
using plan::Movement;

/// Choices of which one is taken; each replaces that which a strategy has.
struct Dimension {
  std::vector<std::function<void(plan::Strategy&)>> choices;
  bool orders_axes = false;  ///< Whether the choices are orders of the axes.
};

/// A choice that changes the options of type O.
template <class O, class Change>
std::function<void(plan::Strategy&)> choice(Change change) {
  return [change](plan::Strategy& strategy) {
    O options = strategy.as<O>();
    change(options);
    strategy.options = options;
  };
}

/// The values of one option; the first is its default.
template <class O, class T>
Dimension one_of(T O::*member, std::initializer_list<std::type_identity_t<T>> values) {
  Dimension dimension;
  for (const T& value : values) {
    dimension.choices.push_back(choice<O>([=](O& options) { options.*member = value; }));
  }
  return dimension;
}

/// The same where the values are orders of the axes.
template <class O, class T>
Dimension order_of(T O::*member, std::initializer_list<std::type_identity_t<T>> values) {
  Dimension dimension = one_of(member, values);
  dimension.orders_axes = true;
  return dimension;
}

/// Windows of a double ring that are worth a look: those that are whole nodes, or parts of one.
std::vector<int> windows(int members, int devices_per_node) {
  std::vector<int> numbers;
  for (int w = 2; w < members; ++w) {
    if (members % w == 0 && (devices_per_node % w == 0 || w == devices_per_node))
      numbers.push_back(w);
  }
  return numbers;
}

/// Movements of the columns of a grid, with the window of a double ring.
Dimension columns_of(const Question& question, const plan::GridOptions& grid) {
  Dimension columns;
  const auto add = [&](Movement column, int window) {
    columns.choices.push_back(choice<plan::GridOptions>([=](plan::GridOptions& options) {
      options.column = column;
      options.window = window;
    }));
  };
  add(Movement::Ring, 0);
  add(Movement::Gather, 0);
  if (grid.rq > 2) add(Movement::Bidirectional, 0);
  for (const int w : windows(grid.rq, question.cluster.devices_per_node)) {
    add(Movement::DoubleRing, w);
  }
  return columns;
}

/// Movements of a grid, the nesting of its axes, and the side in backward.
std::vector<Dimension> grid_dimensions(const Question& question, const plan::GridOptions& grid) {
  using Options = plan::GridOptions;
  using enum plan::GridAxis;
  return {columns_of(question, grid),
          grid.rk > 2
              ? one_of(&Options::row, {Movement::Gather, Movement::Ring, Movement::Bidirectional})
              : one_of(&Options::row, {Movement::Gather, Movement::Ring}),
          one_of(&Options::backward, {BackwardSide::Cheaper, BackwardSide::Kv, BackwardSide::Q}),
          grid.u == 1
              ? order_of(&Options::nesting, {{Heads, Keys, Queries}, {Heads, Queries, Keys}})
              : order_of(&Options::nesting, {{Heads, Keys, Queries},
                                             {Heads, Queries, Keys},
                                             {Keys, Heads, Queries},
                                             {Keys, Queries, Heads},
                                             {Queries, Heads, Keys},
                                             {Queries, Keys, Heads}})};
}

/// The choices that a strategy has besides the options that make it what it is. Its first
/// candidates vary the others (StrategyDefinition::variants).
std::vector<Dimension> dimensions(const Question& question, const plan::Strategy& strategy) {
  using namespace plan;  // NOLINT(google-build-using-namespace)
  if (strategy.name == "grid") return grid_dimensions(question, strategy.as<GridOptions>());
  if (strategy.name == "ring") {
    return {one_of(&RingOptions::backward, {BackwardSide::Kv, BackwardSide::Q})};
  }
  if (strategy.name == "usp") {
    return {order_of(&UspOptions::inner, {UspInner::Ulysses, UspInner::Ring}),
            one_of(&UspOptions::packed, {false, true}),
            one_of(&UspOptions::backward, {BackwardSide::Kv, BackwardSide::Q})};
  }
  if (strategy.name == "ulysses") return {one_of(&UlyssesOptions::packed, {false, true})};
  if (strategy.name == "startrail") {
    return {one_of(&StartrailOptions::rings_inside, {false, true})};
  }
  if (strategy.name == "attention2d") return {one_of(&Attention2dOptions::overlap, {false, true})};
  if (strategy.name == "tokenring") {
    return {one_of(&TokenringOptions::tiles_stay, {false, true}),
            order_of(&TokenringOptions::ring_inside, {false, true})};
  }
  if (strategy.name == "allgather") {
    Dimension slices;
    for (int s = 1; s <= question.problem.kv_heads; ++s) {
      if (question.problem.kv_heads % s != 0) continue;
      slices.choices.push_back(
          choice<AllgatherOptions>([=](AllgatherOptions& options) { options.slices = s; }));
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

std::vector<plan::TransferDtype> transfer_dtypes(const Question& question) {
  if (!question.free.transfer_dtype) return {question.problem.transfer_dtype};
  return {plan::TransferDtype::Accumulator, plan::TransferDtype::Input};
}

/// Strides that put neighbouring ranks on different nodes, or on different halves of one node.
std::vector<Placement> placements(const Question& question) {
  std::vector<Placement> placements{{1}};
  if (!question.free.placement) return placements;
  const int world = question.problem.world;
  const int per_node = question.cluster.devices_per_node;
  for (const int stride : {per_node / 2, per_node}) {
    if (stride > 1 && stride < world && world % stride == 0) placements.push_back({stride});
  }
  return placements;
}

/// Candidates of one layout in every transfer dtype and placement that is free.
void add_variants(const Question& question, const Candidate& candidate,
                  std::vector<Candidate>& all) {
  for (const plan::TransferDtype transfer_dtype : transfer_dtypes(question)) {
    for (const Placement& placement : placements(question)) {
      all.push_back(candidate);
      all.back().transfer_dtype = transfer_dtype;
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
  using Kind = plan::LayoutKind;
  constexpr double kEven = 1.05;
  const auto of_kind = [&](Kind kind) {
    problem.layout = {.kind = kind};
    return imbalance(problem);
  };
  // Work that is even without any reordering needs no other layout.
  const double contiguous = of_kind(Kind::Contiguous);
  std::vector<plan::Layout> layouts{{.kind = Kind::Contiguous}};
  if (contiguous <= 1 + 1e-9) return layouts;
  const double zigzag = of_kind(Kind::Zigzag);
  const bool large = problem.world > kLargeWorld;
  // In a large world, four ranks do not show how uneven the work of a grid is, so uneven layouts
  // are left out where there is an even one.
  if (large && zigzag <= kEven && contiguous > kEven) layouts.clear();
  if (zigzag < contiguous) layouts.push_back({.kind = Kind::Zigzag});
  if ((large || choice == LayoutChoice::First) && std::min(contiguous, zigzag) <= kEven) {
    return layouts;
  }
  layouts.push_back({.kind = Kind::Balanced});
  // Each rank has a run of every stripe, so the pairs of blocks grow with the length.
  if (problem.world <= 16) layouts.push_back({.kind = Kind::Striped});
  return layouts;
}

namespace {

/// Every cut and every named strategy in the layouts of a choice.
std::vector<Candidate> candidates_in(const Question& question, LayoutChoice choice) {
  std::vector<Candidate> candidates;
  for (const plan::Layout& layout : layouts(question, choice)) {
    plan::Problem problem = question.problem;
    problem.layout = layout;
    for (plan::Strategy& strategy : plan::legal_strategies(problem)) {
      const bool is_candidate =
          question.names.empty() || std::find(question.names.begin(), question.names.end(),
                                              strategy.name) != question.names.end();
      if (!is_candidate || strategy.name == "auto") continue;
      candidates.push_back({.strategy = std::move(strategy),
                            .layout = layout,
                            .transfer_dtype = question.problem.transfer_dtype});
    }
  }
  return candidates;
}

}  // namespace

std::vector<std::string> left_out(const Question& question) {
  std::vector<std::string> reasons;
  for (const std::string& name : question.names) {
    std::string reason = plan::why_none_legal(question.problem, name);
    if (!reason.empty()) reasons.push_back(std::move(reason));
  }
  return reasons;
}

std::vector<Candidate> first_candidates(const Question& question) {
  return candidates_in(question, LayoutChoice::First);
}

std::vector<Candidate> neighbours(const Question& question, const Candidate& candidate) {
  std::vector<Candidate> candidates;
  const plan::Problem problem = problem_of(question, candidate);
  for (const Dimension& dimension : dimensions(question, candidate.strategy)) {
    for (const auto& choose : dimension.choices) {
      Candidate other = candidate;
      choose(other.strategy);
      if (!is_legal(problem, other.strategy)) continue;
      candidates.push_back(other);
      if (!dimension.orders_axes || problem.world > kLargeWorld) continue;
      // The order of the axes and the placement both say which ranks are near each other: either
      // alone may be worse where both together are better.
      for (const Placement& placement : placements(question)) {
        other.placement = placement;
        if (placement != candidate.placement) candidates.push_back(other);
      }
    }
  }
  // Transfer dtype and placement change one at a time, like all else.
  std::vector<Candidate> variants;
  add_variants(question, candidate, variants);
  for (const Candidate& variant : variants) {
    if (variant.transfer_dtype == candidate.transfer_dtype ||
        variant.placement == candidate.placement) {
      candidates.push_back(variant);
    }
  }
  for (const plan::Layout& layout : layouts(question, LayoutChoice::All)) {
    candidates.push_back(candidate);
    candidates.back().layout = layout;
  }
  drop_doubles(candidates);
  std::erase(candidates, candidate);
  return candidates;
}

std::vector<Candidate> whole_space(const Question& question) {
  std::vector<Candidate> all;
  for (const Candidate& first : candidates_in(question, LayoutChoice::All)) {
    // The product of all dimensions, one after the other.
    std::vector<plan::Strategy> strategies{first.strategy};
    for (const Dimension& dimension : dimensions(question, first.strategy)) {
      std::vector<plan::Strategy> longer;
      for (const plan::Strategy& strategy : strategies) {
        for (const auto& choose : dimension.choices) {
          longer.push_back(strategy);
          choose(longer.back());
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

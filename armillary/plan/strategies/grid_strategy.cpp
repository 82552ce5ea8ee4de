// grid_strategy.cpp: the strategy `grid`, the family itself: any cut u x Rq x Rk, any movement
// along each axis, any nesting of the axes. This file reads its keys and refuses wrong
// combinations, each with the nearest legal one; the rest is the family's (grid.h).
#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"
#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {
namespace {

constexpr const char* kColumns = "gather|ring|double_ring|bidirectional";
constexpr const char* kRows = "gather|ring|bidirectional";
// Names of the axes in the key `nest`; `nesting` lists the axes in the same order.
constexpr std::array<std::string_view, 3> kAxes{"u", "rk", "rq"};

/// The movement that a key names, or `otherwise` if the key is not given.
Movement movement(const Strategy& strategy, const std::string& key, Movement otherwise) {
  for (const Movement candidate :
       {Movement::Gather, Movement::Ring, Movement::DoubleRing, Movement::Bidirectional}) {
    if (has(strategy, key, std::string(to_string(candidate)))) return candidate;
  }
  return otherwise;
}

/// The key `nest`, for example rk-u-rq: the axes from neighbouring ranks outwards.
std::array<GridAxis, 3> nesting(const Strategy& strategy) {
  const auto given = strategy.keys.find("nest");
  if (given == strategy.keys.end()) return Grid().nesting;
  std::array<GridAxis, 3> axes{};
  const std::vector<std::string_view> names = split(given->second, '-');
  std::set<std::string_view> distinct(names.begin(), names.end());
  if (names.size() != axes.size() || distinct != std::set(kAxes.begin(), kAxes.end())) {
    fail<InvalidArgument>(
        "strategy grid: nest: {} given; u, rk and rq in any order is required, for example "
        "u-rk-rq",
        quote(given->second));
  }
  // The axes in the order of kAxes.
  constexpr std::array kNamed{GridAxis::Heads, GridAxis::Keys, GridAxis::Queries};
  for (std::size_t a = 0; a < axes.size(); ++a) {
    axes[a] = kNamed[std::find(kAxes.begin(), kAxes.end(), names[a]) - kAxes.begin()];
  }
  return axes;
}

/// The key `window`: required with col=double_ring, where it must divide rq, and refused otherwise.
int window(const Strategy& strategy, const Grid& grid) {
  const bool given = strategy.keys.contains("window");
  if (grid.column != Movement::DoubleRing) {
    if (!given) return 1;
    fail<InvalidArgument>("grid: window={} with col={}; only col=double_ring has a window",
                          number(strategy, "window"), to_string(grid.column));
  }
  if (!given) {
    fail<InvalidArgument>(
        "grid: col=double_ring without window; one that divides rq={} is required, such as "
        "window={}",
        grid.rq, nearest_divisor(grid.rq, static_cast<int>(std::sqrt(grid.rq))));
  }
  const int window = number(strategy, "window");
  if (grid.rq % window != 0) {
    fail<InvalidArgument>(
        "grid: window={} with rq={}; col=double_ring needs a window that divides rq; nearest: "
        "window={}",
        window, grid.rq, nearest_divisor(grid.rq, window));
  }
  return window;
}

/// A legal cut {u, rq, rk} that keeps as much of the given one as divides the world: u first, then
/// rk, then rq. With world 12, u = 5, rq = 2 and rk = 3: {1, 4, 3}.
std::array<int, 3> nearest_cut(int world, const Grid& given) {
  const int u = world % given.u == 0 ? given.u : 1;
  const int rest = world / u;
  if (rest % given.rk == 0) return {u, rest / given.rk, given.rk};
  if (rest % given.rq == 0) return {u, given.rq, rest / given.rq};
  return {u, rest, 1};
}

/// The grids that the keys ask for. The product u x rq x rk must be the world.
PassGrids grids(const Problem& problem, const Strategy& strategy) {
  Grid grid{.u = number(strategy, "u"),
            .rq = number(strategy, "rq"),
            .rk = number(strategy, "rk"),
            .column = movement(strategy, "col", Movement::Ring),
            .row = movement(strategy, "row", Movement::Gather),
            .nesting = nesting(strategy)};
  // In two comparisons, so that the product of three large keys cannot overflow.
  const std::int64_t product = std::int64_t{grid.u} * grid.rq;
  if (product > problem.world || product * grid.rk != problem.world) {
    const auto [u, rq, rk] = nearest_cut(problem.world, grid);
    fail<InvalidArgument>(
        "grid: u={} x rq={} x rk={} with world {}; a product of {} is required; nearest: "
        "u={},rq={},rk={}",
        grid.u, grid.rq, grid.rk, problem.world, problem.world, u, rq, rk);
  }
  require_heads(problem, grid.u, strategy);
  grid.window = window(strategy, grid);
  return with_sides(grid, strategy, "cheaper");
}

}  // namespace

StrategyDefinition grid() {
  return grid_strategy(
      {.name = "grid",
       .keys = {{"u", "U", true},
                {"rq", "A", true},
                {"rk", "B", true},
                {"row", kRows},
                {"col", kColumns},
                {"window", "W"},
                {"nest", "AXES"},
                {"backward", kSides}},
       .summary = "u ways over heads, rq over queries, rk over keys; any movement on each axis",
       .paper = "ours",
       .bytes = "(2 + eps) (Dq N/P) (Rk - 1/u) + 2 max(Dk/u, d) N (1/Rk - 1/P) forward",
       .differs = "nest names the axes from neighbouring ranks outwards. In backward either K, V, "
                  "dK, dV travel on the columns and Q, dOut, Lse, Delta, dQ on the rows "
                  "(backward=kv), or each where the other did (backward=q): by itself it is what "
                  "sends less with these heads and this mask. auto:traffic picks u, rq and rk, in "
                  "each pass for itself.",
       .shortens_rings = true},
      // Every cut with at least two rows and two columns; the others have names of their own.
      grids, [](const Problem& problem) {
        std::vector<std::map<std::string, std::string>> variants;
        for (int u = 1; u <= problem.world; ++u) {
          for (int rq = 2; problem.world % u == 0 && rq < problem.world / u; ++rq) {
            if (problem.world / u % rq != 0) continue;
            variants.push_back({{"u", std::to_string(u)},
                                {"rq", std::to_string(rq)},
                                {"rk", std::to_string(problem.world / u / rq)}});
          }
        }
        return variants;
      });
}

}  // namespace armillary::plan

// grid_strategy.cpp: the strategy `grid`, the family itself: any cut u x Rq x Rk, any movement
// along each axis, any nesting of the axes. This file has its keys and refuses wrong
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

// Names of the axes in the key `nest`; `kNamed` lists the axes in the same order.
constexpr std::array<std::string_view, 3> kAxes{"u", "rk", "rq"};
constexpr std::array kNamed{GridAxis::Heads, GridAxis::Keys, GridAxis::Queries};
using Nesting = std::array<GridAxis, 3>;

/// Reads the key `nest`, for example rk-u-rq: the axes from neighbouring ranks outwards.
Nesting parse_nesting(const std::string& what, const std::string& value) {
  Nesting axes{};
  const std::vector<std::string_view> names = split(value, '-');
  std::set<std::string_view> distinct(names.begin(), names.end());
  if (names.size() != axes.size() || distinct != std::set(kAxes.begin(), kAxes.end())) {
    fail<InvalidArgument>(
        "{}: {} given; u, rk and rq in any order is required, for example u-rk-rq", what,
        quote(value));
  }
  for (std::size_t a = 0; a < axes.size(); ++a) {
    axes[a] = kNamed[std::find(kAxes.begin(), kAxes.end(), names[a]) - kAxes.begin()];
  }
  return axes;
}

std::string print_nesting(const Nesting& axes) {
  std::string text;
  for (const GridAxis axis : axes) {
    const auto at = std::find(kNamed.begin(), kNamed.end(), axis) - kNamed.begin();
    text += (text.empty() ? "" : "-") + std::string(kAxes[at]);
  }
  return text;
}

/// A key of a movement along an axis that takes these.
StrategyKey movement_key(const std::string& name, Movement GridOptions::*member,
                         const std::vector<Movement>& movements) {
  std::vector<std::pair<std::string_view, Movement>> choices;
  choices.reserve(movements.size());
  for (const Movement movement : movements) choices.emplace_back(to_string(movement), movement);
  return choice_key(name, member, choices);
}

/// The window: required with col=double_ring, where it must divide rq, and refused otherwise.
int window_of(const GridOptions& options) {
  const int window = options.window;
  if (options.column != Movement::DoubleRing) {
    if (window == 0) return 1;
    fail<InvalidArgument>("grid: window={} with col={}; only col=double_ring has a window", window,
                          to_string(options.column));
  }
  if (window == 0) {
    fail<InvalidArgument>(
        "grid: col=double_ring without window; one that divides rq={} is required, such as "
        "window={}",
        options.rq, nearest_divisor(options.rq, static_cast<int>(std::sqrt(options.rq))));
  }
  if (options.rq % window != 0) {
    fail<InvalidArgument>(
        "grid: window={} with rq={}; col=double_ring needs a window that divides rq; nearest: "
        "window={}",
        window, options.rq, nearest_divisor(options.rq, window));
  }
  return window;
}

/// A legal cut {u, rq, rk} that keeps as much of the given one as divides the world: u first, then
/// rk, then rq. With world 12, u = 5, rq = 2 and rk = 3: {1, 4, 3}.
std::array<int, 3> nearest_cut(int world, const GridOptions& options) {
  const int u = world % options.u == 0 ? options.u : 1;
  const int rest = world / u;
  if (rest % options.rk == 0) return {u, rest / options.rk, options.rk};
  if (rest % options.rq == 0) return {u, options.rq, rest / options.rq};
  return {u, rest, 1};
}

/// The grids that the options ask for. The product u x rq x rk must be the world.
PassGrids grids(const Problem& problem, const GridOptions& options) {
  // In two comparisons, so that the product of three large numbers cannot overflow.
  const std::int64_t product = std::int64_t{options.u} * options.rq;
  if (product > problem.world || product * options.rk != problem.world) {
    const auto [u, rq, rk] = nearest_cut(problem.world, options);
    fail<InvalidArgument>(
        "grid: u={} x rq={} x rk={} with world {}; a product of {} is required; nearest: "
        "u={},rq={},rk={}",
        options.u, options.rq, options.rk, problem.world, problem.world, u, rq, rk);
  }
  require_heads(problem, options.u, {"grid", options});
  return with_sides({.u = options.u,
                     .rq = options.rq,
                     .rk = options.rk,
                     .column = options.column,
                     .row = options.row,
                     .window = window_of(options),
                     .nesting = options.nesting},
                    options.backward);
}

}  // namespace

StrategyDefinition grid() {
  return grid_strategy<GridOptions>(
      {.name = "grid",
       .keys = {number_key("u", "U", &GridOptions::u, kRequired),
                number_key("rq", "A", &GridOptions::rq, kRequired),
                number_key("rk", "B", &GridOptions::rk, kRequired),
                movement_key("row", &GridOptions::row,
                             {Movement::Gather, Movement::Ring, Movement::Bidirectional}),
                movement_key("col", &GridOptions::column,
                             {Movement::Gather, Movement::Ring, Movement::DoubleRing,
                              Movement::Bidirectional}),
                number_key("window", "W", &GridOptions::window),
                option_key({.name = "nest", .values = "AXES"}, &GridOptions::nesting, parse_nesting,
                           print_nesting),
                backward_key<GridOptions>()},
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
        std::vector<GridOptions> variants;
        for (int u = 1; u <= problem.world; ++u) {
          for (int rq = 2; problem.world % u == 0 && rq < problem.world / u; ++rq) {
            if (problem.world / u % rq != 0) continue;
            variants.push_back({.u = u, .rq = rq, .rk = problem.world / u / rq});
          }
        }
        return variants;
      });
}

}  // namespace armillary::plan

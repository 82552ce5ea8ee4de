// grid.cpp: places of ranks in a grid, the blocks that each row and column needs, and the choice of
// rings. Ranks are numbers with mixed digits (h, i, j); `Grid::nesting` gives the order of the
// digits, the lowest first.
#include "armillary/plan/strategies/grid.h"

#include <algorithm>
#include <utility>

#include "armillary/core/checked.h"

namespace armillary::plan {
namespace {

/// Number of members of an axis.
int size_of(const Grid& grid, GridAxis axis) {
  return axis == GridAxis::Heads ? grid.u : axis == GridAxis::Keys ? grid.rk : grid.rq;
}

/// The coordinate of a place along an axis; a reference, const if the place is.
template <class AnyPlace>
auto& digit(AnyPlace& place, GridAxis axis) {
  return axis == GridAxis::Heads ? place.h : axis == GridAxis::Keys ? place.j : place.i;
}

}  // namespace

GridPlace place_of(const Grid& grid, Rank rank) {
  GridPlace place;
  for (const GridAxis axis : grid.nesting) {
    digit(place, axis) = rank % size_of(grid, axis);
    rank /= size_of(grid, axis);
  }
  return place;
}

Rank rank_of(const Grid& grid, GridPlace place) {
  Rank rank = 0;
  for (auto axis = grid.nesting.rbegin(); axis != grid.nesting.rend(); ++axis) {
    rank = rank * size_of(grid, *axis) + digit(place, *axis);
  }
  return rank;
}

/// The numbers of a place by rows and by columns are i * rk + j and j * rq + i. K, V of an owner
/// are held at the place whose number by rows is the owner's number by columns.
GridPlace kv_source(const Grid& grid, GridPlace holder) {
  if (!grid.transposed) return holder;
  const int by_rows = holder.i * grid.rk + holder.j;
  return {.h = holder.h, .i = by_rows % grid.rq, .j = by_rows / grid.rq};
}

GridPlace kv_holder(const Grid& grid, GridPlace owner) {
  if (!grid.transposed) return owner;
  const int by_columns = owner.j * grid.rq + owner.i;
  return {.h = owner.h, .i = by_columns / grid.rk, .j = by_columns % grid.rk};
}

Heads head_group(const Problem& problem, const Grid& grid, int h) {
  return {static_cast<int>(piece_begin(problem.heads, grid.u, h)),
          static_cast<int>(piece_begin(problem.heads, grid.u, h + 1))};
}

Heads head_slice(Heads heads, int slices, int s) {
  return {heads.begin + static_cast<int>(piece_begin(heads.count(), slices, s)),
          heads.begin + static_cast<int>(piece_begin(heads.count(), slices, s + 1))};
}

namespace {

/// The row of the owner of each query block: those that need key blocks.
BlockUsersOptions row_users(const Grid& grid, const Blocks& blocks) {
  BlockUsersOptions options{.side = MaskSide::Keys, .groups = grid.rq};
  for (const Block& q : blocks.q) options.group_of.push_back(place_of(grid, q.owner).i);
  return options;
}

/// The column that each key block travels on: those that need query blocks.
BlockUsersOptions column_users(const Grid& grid, const Blocks& blocks) {
  BlockUsersOptions options{.side = MaskSide::Queries, .groups = grid.rk};
  for (const Block& kv : blocks.kv) {
    options.group_of.push_back(kv_holder(grid, place_of(grid, kv.owner)).j);
  }
  return options;
}

}  // namespace

Needs::Needs(const Grid& grid, const Blocks& blocks, const Visibility& visibility)
    : grid_(grid),
      visibility_(&visibility),
      q_blocks_(static_cast<std::size_t>(grid.rq) * grid.rk),
      kv_blocks_(static_cast<std::size_t>(grid.rq) * grid.rk),
      rows_(visibility, row_users(grid, blocks)),
      columns_(visibility, column_users(grid, blocks)) {
  // Blocks of each super-block.
  for (int q = 0; q < static_cast<int>(blocks.q.size()); ++q) {
    const GridPlace owner = place_of(grid, blocks.q[q].owner);
    q_blocks_[owner.i * grid.rk + owner.j].push_back(q);
  }
  for (int k = 0; k < static_cast<int>(blocks.kv.size()); ++k) {
    const GridPlace owner = place_of(grid, blocks.kv[k].owner);
    kv_blocks_[owner.i * grid.rk + owner.j].push_back(k);
  }
}

const std::vector<int>& Needs::held_kv_blocks(int i, int j) const {
  const GridPlace source = kv_source(grid_, {.h = 0, .i = i, .j = j});
  return kv_blocks(source.i, source.j);
}

/// `window` applies to the movements that are a DoubleRing; Route ignores it otherwise.
GridRoutes::GridRoutes(const Grid& grid)
    : column(grid.column, grid.rq, grid.window),
      row(grid.row, grid.rk, grid.window),
      home(grid.home, grid.rk, grid.window) {}

Grid sides_exchanged(Grid grid) {
  std::swap(grid.rq, grid.rk);
  std::swap(grid.column, grid.row);
  // Sums return directly, but those of a double ring visit windows as its tiles do.
  grid.home = grid.row == Movement::DoubleRing ? Movement::DoubleRing : Movement::Gather;
  for (GridAxis& axis : grid.nesting) {
    if (axis != GridAxis::Heads) axis = axis == GridAxis::Keys ? GridAxis::Queries : GridAxis::Keys;
  }
  return grid;
}

// Digits are in the order of the nesting; head groups do not rotate: their heads differ. On a
// bidirectional ring sums of one batch have the order of their blocks, which rotations change.
Rotations rotations(const Grid& grid) {
  for (const Movement movement : {grid.column, grid.row, grid.home}) {
    if (movement == Movement::Bidirectional) return {};
  }
  Rotations rotations;
  for (const GridAxis axis : grid.nesting) {
    const Movement movement = axis == GridAxis::Queries ? grid.column : grid.row;
    const bool nested = axis != GridAxis::Heads && movement == Movement::DoubleRing;
    std::vector<int> sizes{size_of(grid, axis)};
    if (nested) sizes = {grid.window, size_of(grid, axis) / grid.window};
    for (const int size : sizes) {
      if (size == 1) continue;
      if (axis != GridAxis::Heads) {
        rotations.generators.push_back({static_cast<int>(rotations.digits.size())});
      }
      rotations.digits.push_back(size);
    }
  }
  if (!grid.transposed) return rotations;
  if (grid.rq != grid.rk || grid.rq == 1 || rotations.generators.size() != 2) return {};
  rotations.generators = {{rotations.generators[0][0], rotations.generators[1][0]}};
  return rotations;
}

/// Compares rings by tokens times members passed, counted block by block.
Grid with_shorter_rings(const Blocks& blocks, const Needs& needs, const Grid& grid) {
  Grid shorter = grid;
  // Columns: K, V start at the place that holds them, which a transpose may have changed.
  if (grid.column == Movement::Ring) {
    const auto reach = [&](const Route& route) {
      std::int64_t passed = 0;
      for (int kv = 0; kv < static_cast<int>(blocks.kv.size()); ++kv) {
        const GridPlace holder = kv_holder(grid, place_of(grid, blocks.kv[kv].owner));
        passed += blocks.kv[kv].tokens() * route.reach(holder.i, needs.rows(kv));
      }
      return passed;
    };
    shorter.column = shorter_ring(reach, grid.rq);
  }
  // Rows: Q starts at its owner.
  if (grid.row == Movement::Ring) {
    const auto reach = [&](const Route& route) {
      std::int64_t passed = 0;
      for (int q = 0; q < static_cast<int>(blocks.q.size()); ++q) {
        const GridPlace owner = place_of(grid, blocks.q[q].owner);
        passed += blocks.q[q].tokens() * route.reach(owner.j, needs.columns(q));
      }
      return passed;
    };
    shorter.row = shorter_ring(reach, grid.rk);
    if (grid.home == Movement::Ring) shorter.home = shorter.row;  // sums follow the tiles
  }
  return shorter;
}

}  // namespace armillary::plan

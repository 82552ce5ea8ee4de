// grid.h: the family of strategies that cut heads x queries x keys into u x Rq x Rk = world parts.
//
// Rank (h, i, j) owns tokens with all heads. A forward pass has four phases:
//
//   1. u axis    An all-to-all trades heads for tokens: the rank then has head group h of the
//                super-block S(i, j), which is the tokens of its u partners (*, i, j).
//   2. columns   K and V of S(*, j) travel along column j, and Q of S(i, *) along row i. Every rank
//      and rows  attends all tiles that it has, with its head group.
//   3. rows      Partial results of S(i, j') return along the row and are merged by log-sum-exp.
//   4. u axis    Another all-to-all trades tokens back for heads.
//
// A rank's own tokens lie in its own row and its own column, so nothing has to be transposed.
//
//               column j                 S(i, j)   tokens of the ranks (*, i, j)
//            .---+---+---.               Q_i       queries of row i:    S(i, 0) .. S(i, Rk-1)
//     row i  |   | # |   |               K_j       keys of column j:    S(0, j) .. S(Rq-1, j)
//            '---+---+---'               # computes head group h of Q_i x K_j
//
// Backward is the same picture: K, V travel on the columns and dK, dV return there; Q, dOut, Lse
// and Delta travel on the rows and dQ returns there. Bytes per rank: armillary/plan/lower_bound.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "armillary/plan/blocks.h"
#include "armillary/plan/fold.h"
#include "armillary/plan/mask/visibility.h"
#include "armillary/plan/plan.h"
#include "armillary/plan/strategies/movement.h"

namespace armillary::plan {

/// The three axes of the grid, named after what each divides: u, Rk and Rq ways.
enum class GridAxis : std::uint8_t { Heads, Keys, Queries };

/// Order in which tiles of a row are attended with tiles of a column (grid_steps.h has a picture).
enum class GridOrder : std::uint8_t {
  /// A tile is attended with all tiles of the other side as soon as both are there.
  AtOnce,
  /// Rows leave when the columns are there, so that fewer tiles are alive at once; each tile that
  /// arrives is attended with the whole column in one call. In backward the last row tile is
  /// attended with the
  /// column tile by tile, so that sums of dK, dV leave while others are computed.
  RowsLast,
  /// Each tile of the column is attended with the tiles of the row one by one: a hop of the column
  /// has a whole round of the row in which to travel.
  RowsInside,
  /// The reverse: each tile of the row is attended with the tiles of the column one by one.
  ColumnsInside,
};

/// A cut and the movements along it. The default is a world of one rank.
struct Grid {
  /// Number of parts of the heads, of the queries (rows; members of a column) and of the keys
  /// (columns; members of a row).
  int u = 1;
  int rq = 1;
  int rk = 1;
  /// Movement of K, V along columns. Sums of dK, dV return by the same movement.
  Movement column = Movement::Ring;
  Movement row = Movement::Gather;  ///< Movement of Q, dOut, Lse, Delta along rows.
  /// Movement by which partial outputs and dQ return to their owners along rows.
  Movement home = Movement::Gather;
  int window = 1;  ///< Window of the movements that are a DoubleRing.
  /// Order of the axes in the numbers of ranks, from the axis whose members are neighbouring ranks
  /// to the one whose members are farthest apart.
  std::array<GridAxis, 3> nesting{GridAxis::Heads, GridAxis::Keys, GridAxis::Queries};
  int slices = 1;  ///< K, V travel in so many slices of KV heads, one after the other.
  /// K, V first go to the rank whose place, numbered by rows, is their place numbered by columns
  /// (kv_transpose.h). Requires u = 1.
  bool transposed = false;
  GridOrder order = GridOrder::AtOnce;
  /// Forward with RowsInside or ColumnsInside: the inner axis sends its tiles again in every round,
  /// and partial results return from every round. Few tiles are alive at once, but more bytes are
  /// sent. Otherwise tiles of the inner axis stay after the first round.
  bool resend_each_round = false;
  /// Q, K, V trade heads for tokens together, in one all-to-all, instead of one after the other.
  bool packed = false;
  bool one_call = false;  ///< Gathered and own tiles are attended together, in one kernel call.
};

/// Place of a rank in the grid: 0 <= h < u, 0 <= i < rq, 0 <= j < rk.
struct GridPlace {
  int h = 0;  ///< Head group.
  int i = 0;  ///< Row.
  int j = 0;  ///< Column.
};

/// The place of a rank, and the reverse. Example: with u = 2, rq = 3, rk = 2 and the default
/// nesting, rank 7 = 1 + 2 (1 + 2 * 1) has place h = 1, i = 1, j = 1.
GridPlace place_of(const Grid& grid, Rank rank);
Rank rank_of(const Grid& grid, GridPlace place);

/// The place that holds the K, V of an owner when the columns begin: the owner itself, unless the
/// grid transposes.
GridPlace kv_holder(const Grid& grid, GridPlace owner);
/// The inverse: the owner of the K, V that a place holds.
GridPlace kv_source(const Grid& grid, GridPlace holder);

/// Query heads of head group h; sizes differ by at most one. 14 heads and u = 4: 3, 4, 3 and 4.
Heads head_group(const Problem& problem, const Grid& grid, int h);

/// Slice s of a range of heads cut into `slices`, as even as possible; may be empty.
Heads head_slice(Heads heads, int slices, int s);

/// The rows and columns that need each block. A block travels to no one else, so pruning by the
/// mask is part of every hop. Keeps a reference to `visibility`; immutable otherwise.
class Needs {
 public:
  /// Cost: that of two BlockUsers.
  Needs(const Grid& grid, const Blocks& blocks, const Visibility& visibility);

  /// Ids of the blocks of S(i, j), ascending.
  const std::vector<int>& q_blocks(int i, int j) const { return q_blocks_[i * grid_.rk + j]; }
  const std::vector<int>& kv_blocks(int i, int j) const { return kv_blocks_[i * grid_.rk + j]; }
  /// Ids of the key blocks that the place holds when the columns begin.
  const std::vector<int>& held_kv_blocks(int i, int j) const;

  /// True if any query of row i sees the key block; if the query block sees any key of column j.
  bool row_needs(int i, int kv_block) const { return rows_.needs(i, kv_block); }
  bool column_needs(int j, int q_block) const { return columns_.needs(j, q_block); }
  /// All rows that need the key block, and all columns that need the query block; ascending.
  const BlockIds& rows(int kv_block) const { return rows_.of(kv_block); }
  const BlockIds& columns(int q_block) const { return columns_.of(q_block); }

  /// True if anyone needs the block: the mask shows one of its pairs.
  bool kv_used(int kv_block) const { return !rows(kv_block).empty(); }
  bool q_used(int q_block) const { return !columns(q_block).empty(); }

  bool visible(int q_block, int kv_block) const { return visibility_->visible(q_block, kv_block); }

 private:
  Grid grid_;
  const Visibility* visibility_;
  std::vector<std::vector<int>> q_blocks_, kv_blocks_;
  BlockUsers rows_;
  BlockUsers columns_;
};

/// The routes of one grid: tiles and sums of columns, tiles of rows, sums of rows.
struct GridRoutes {
  explicit GridRoutes(const Grid& grid);
  Route column;
  Route row;
  Route home;
};

/// Everything about a problem cut by a grid that all ranks share. References only: the objects must
/// outlive the context and all that is made from it.
struct GridContext {
  const Problem& problem;
  const Blocks& blocks;
  const Needs& needs;
  const Grid& grid;
};

/// The same ranks and links with rows and columns exchanged: queries travel where keys did, and the
/// reverse. u and the place of the head axis in the nesting stay.
Grid sides_exchanged(Grid grid);

/// The grid with each Ring of its columns and rows replaced by the one of Ring, RingBack and
/// Bidirectional on which tiles pass fewest members. With zigzag and a causal mask rings of K, V
/// go back; with a window that looks both ways they become bidirectional.
/// Cost: O(blocks * runs of rows and columns).
Grid with_shorter_rings(const Blocks& blocks, const Needs& needs, const Grid& grid);

/// Bytes that all ranks together send in a pass, counted without making the plan. The movements do
/// not matter. Tests hold it equal to what plans send. Requires !grid.resend_each_round.
/// Cost: O(blocks * runs of rows and columns).
std::int64_t sent_bytes(const Problem& problem, const Blocks& blocks, const Needs& needs,
                        const Grid& grid, Pass pass);

/// The rotations of a grid: its rows, and its columns. A double ring rotates its windows, and the
/// places in them. A grid that transposes K, V rotates rows and columns together, if it has as many
/// of both. None with a bidirectional ring.
Rotations rotations(const Grid& grid);

/// The program of one rank. Cost: O(hops * blocks per hop).
RankProgram grid_program(const GridContext& context, const GridRoutes& routes, Pass pass,
                         Rank rank);

}  // namespace armillary::plan

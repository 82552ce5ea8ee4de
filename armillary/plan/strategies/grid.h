// grid.h: the family that every strategy is a member of, u x Rq x Rk = world.
//
// Rank (h, i, j) owns tokens with all heads. On the u axis an all-to-all trades heads for tokens:
// the rank then holds head group h of the super-block S(i, j), the tokens of its u partners. With
// the head group fixed, K and V of S(*, j) travel along column j and Q of S(i, *) along row i;
// every rank attends what it holds; partials of S(i, j') go home along the row and are merged by
// log-sum-exp; the u axis trades tokens back for heads. A rank's own tokens lie in its own row and
// its own column, so nothing need be transposed.
//
//               column j                 S(i, j)   tokens of the ranks (*, i, j)
//            .---+---+---.               Q_i       queries of row i:    S(i, 0) .. S(i, Rk-1)
//     row i  |   | # |   |               K_j       keys of column j:    S(0, j) .. S(Rq-1, j)
//            '---+---+---'               # computes head group h of Q_i x K_j
//
// Backward is the same picture: K, V travel on the columns and dK, dV come back; Q, dOut, Lse,
// Delta travel on the rows and dQ comes back. Bytes per rank: docs/architecture.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "armillary/plan/blocks.h"
#include "armillary/plan/plan.h"
#include "armillary/plan/strategies/movement.h"

namespace armillary::plan {

/// What an axis of the grid divides.
enum class GridAxis : std::uint8_t { Heads, Keys, Queries };

/// Which tiles of a row and a column meet in one step (grid_steps.h has a picture).
enum class GridOrder : std::uint8_t {
  AtOnce,  ///< All that are there.
  /// Rows follow when the columns are there, so that fewer tiles are alive at once; each meets the
  /// columns in one call. Backward the last meets them tile by tile, so that sums of dK, dV leave
  /// while others are computed.
  RowsLast,
  RowsInside,     ///< Each tile of the column meets those of the row one by one,
  ColumnsInside,  ///< or the reverse: the other axis has a whole round of time for each hop.
};

struct Grid {
  int u = 1;                         ///< Ways over heads.
  int rq = 1;                        ///< Ways over queries: rows, the members of a column.
  int rk = 1;                        ///< Ways over keys: columns, the members of a row.
  Movement column = Movement::Ring;  ///< Of K, V; sums of dK, dV come back the same way.
  Movement row = Movement::Gather;   ///< Of Q, dOut, Lse, Delta.
  Movement home = Movement::Gather;  ///< Of partial outputs and dQ, along the row.
  int window = 1;                    ///< Of what is a DoubleRing.
  /// From the axis whose members are neighbouring ranks to the one whose members are farthest.
  std::array<GridAxis, 3> nesting{GridAxis::Heads, GridAxis::Keys, GridAxis::Queries};
  int slices = 1;           ///< K, V travel in so many slices of KV heads, one after the other.
  bool transposed = false;  ///< K, V first go to the rank whose place read by rows is theirs.
  GridOrder order = GridOrder::AtOnce;
  /// Forward: what is inside travels anew in each round, so that few tiles are alive, and partials
  /// go home from each; else it stays where it came in the first. More is sent.
  bool anew = false;
  bool packed = false;    ///< Q, K, V trade tokens for heads together, in one all-to-all.
  bool one_call = false;  ///< What is gathered is attended to in one call, own tokens with it.
};

/// Place of a rank in the grid.
struct Place {
  int h = 0;
  int i = 0;
  int j = 0;
};
Place place_of(const Grid& grid, Rank rank);
Rank rank_of(const Grid& grid, Place place);

/// Place that holds the K, V of the tokens of a place: itself, unless the grid transposes.
Place kv_holder(const Grid& grid, Place owner);
/// Place whose K, V a place holds: the inverse.
Place kv_source(const Grid& grid, Place holder);

/// Query heads of head group h; sizes differ by at most one.
Heads head_group(const Problem& problem, const Grid& grid, int h);

/// Slice s of a range of heads cut into `slices`, as even as possible; may be empty.
Heads head_slice(Heads heads, int slices, int s);

/// Who needs which block, for all ranks: what decides whether a tile moves (prune by construction).
class Needs {
 public:
  Needs(const Grid& grid, const Blocks& blocks, const BlockAreas& areas);

  /// Ids of the blocks of S(i, j), ascending.
  const std::vector<int>& q_blocks(int i, int j) const { return q_blocks_[i * grid_.rk + j]; }
  const std::vector<int>& kv_blocks(int i, int j) const { return kv_blocks_[i * grid_.rk + j]; }
  /// Those of the K, V that the place holds when the columns begin.
  const std::vector<int>& held_kv_blocks(int i, int j) const;

  /// Does any query of row i see the key block; does the query block see any key of column j?
  bool row_needs(int i, int kv_block) const {
    return row_needs_[static_cast<std::size_t>(kv_block) * grid_.rq + i];
  }
  bool column_needs(int j, int q_block) const {
    return column_needs_[static_cast<std::size_t>(q_block) * grid_.rk + j];
  }

  /// Does anybody need the block at all?
  bool kv_used(int kv_block) const { return kv_used_[kv_block]; }
  bool q_used(int q_block) const { return q_used_[q_block]; }

  bool visible(int q_block, int kv_block) const { return areas_->visible(q_block, kv_block); }

 private:
  Grid grid_;
  const BlockAreas* areas_;
  std::vector<std::vector<int>> q_blocks_, kv_blocks_;
  std::vector<bool> row_needs_, column_needs_, kv_used_, q_used_;
};

/// The ways that tiles and sums of one grid take.
struct GridRoutes {
  explicit GridRoutes(const Grid& grid);
  Route column;
  Route row;
  Route home;
};

/// The same ranks and links, but the queries travel where the keys did, and the reverse: rows and
/// columns change places.
Grid sides_exchanged(Grid grid);

/// The grid with the rings of its columns and rows turned, each to the side on which tiles pass
/// fewer members on their way to those who need them, or to both: with zigzag and a causal mask
/// back, with a window that looks both ways to both sides. Cost: O(blocks * (rq + rk)).
Grid with_shorter_rings(const Blocks& blocks, const Needs& needs, const Grid& grid);

/// Bytes that all ranks together send in a pass, without making the plan, whatever the movements.
/// Tests hold it equal to what plans send. Requires a grid whose tiles do not travel anew. Cost:
/// O(blocks * (rq + rk)).
std::int64_t sent_bytes(const Problem& problem, const Blocks& blocks, const Needs& needs,
                        const Grid& grid, Pass pass);

/// The program of one rank. Cost: O(hops * blocks per hop).
RankProgram grid_program(const Problem& problem, const Blocks& blocks, const Needs& needs,
                         const Grid& grid, const GridRoutes& routes, Pass pass, Rank rank);

}  // namespace armillary::plan

// grid.h: the family that every strategy is a member of, u x Rq x Rk = world.
//
// Rank (h, i, j) owns tokens with all heads. On the u axis an all-to-all trades heads for tokens:
// the rank then holds head group h of the super-block S(i, j), the tokens of its u partners. With
// the head group fixed, K and V of S(*, j) travel along column j and Q of S(i, *) along row i;
// every rank attends what it holds; partials of S(i, j') go home along the row and are merged by
// log-sum-exp; the u axis trades tokens back for heads. A rank's own tokens lie in its own row and
// its own column, so nothing is ever transposed.
//
//               column j                 S(i, j)   tokens of the ranks (*, i, j)
//            .---+---+---.               Q_i       queries of row i:    S(i, 0) .. S(i, Rk-1)
//     row i  |   | # |   |               K_j       keys of column j:    S(0, j) .. S(Rq-1, j)
//            '---+---+---'               # computes head group h of Q_i x K_j
//
// Backward is the same picture: K, V travel on the columns and dK, dV come back; Q, dOut, Lse,
// Delta travel on the rows and dQ comes back. Bytes per rank: docs/architecture.md.
#pragma once

#include <cstddef>
#include <vector>

#include "armillary/plan/plan.h"
#include "armillary/plan/strategies/movement.h"

namespace armillary::plan {

struct Grid {
  int u = 1;                         ///< Ways over heads.
  int rq = 1;                        ///< Ways over queries: rows, the members of a column.
  int rk = 1;                        ///< Ways over keys: columns, the members of a row.
  Movement column = Movement::Ring;  ///< Of K, V.
  Movement row = Movement::Gather;   ///< Of Q.
};

/// Place of a rank: rank = (i * rk + j) * u + h, so the u axis has neighbouring ranks.
struct Place {
  int h = 0;
  int i = 0;
  int j = 0;
};
Place place_of(const Grid& grid, Rank rank);
Rank rank_of(const Grid& grid, Place place);

/// Query heads of head group h; sizes differ by at most one.
Heads head_group(const Problem& problem, const Grid& grid, int h);

/// Who needs which block, for all ranks: what decides whether a tile moves (prune by construction).
class Needs {
 public:
  Needs(const Grid& grid, const Blocks& blocks, const BlockAreas& areas);

  /// Ids of the blocks of S(i, j), ascending.
  const std::vector<int>& q_blocks(int i, int j) const { return q_blocks_[i * grid_.rk + j]; }
  const std::vector<int>& kv_blocks(int i, int j) const { return kv_blocks_[i * grid_.rk + j]; }

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

/// The grid with the ring of its columns turned to the side that moves fewer bytes in this pass:
/// K, V go as far as the last member that needs them; dK, dV come home from the first one. With
/// zigzag and a causal mask a quarter less than with a full mask. Cost: O(blocks * rq).
Grid with_shorter_ring(const Problem& problem, const Blocks& blocks, const Needs& needs, Grid grid,
                       Pass pass);

/// The program of one rank. Cost: O(hops * blocks per hop).
RankProgram grid_program(const Problem& problem, const Blocks& blocks, const Needs& needs,
                         const Grid& grid, Pass pass, Rank rank);

}  // namespace armillary::plan

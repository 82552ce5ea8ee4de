// head_exchange.h: the u axis: an all-to-all that trades heads for tokens, and back.
//
//   home tile   all heads of the rank's own blocks
//   grid tile   head group h of the super-block S(i, j): the blocks of the u partners (*, i, j)
//
// With u = 1 the two are the same and nothing happens. KV heads that several head groups read are
// sent to each of them (replicated when u > kv_heads; one or two heads when counts are uneven), and
// their gradients are summed at home, in the order of head groups.
#pragma once

#include <vector>

#include "armillary/plan/strategies/grid.h"
#include "armillary/plan/strategies/program_builder.h"

namespace armillary::plan {

class HeadExchange {
 public:
  HeadExchange(ProgramBuilder& builder, const Problem& problem, const Blocks& blocks,
               const Needs& needs, const Grid& grid, Rank rank);

  /// Heads of `tensor` that head group h needs; all heads at home.
  Heads group_heads(Tensor tensor, int h) const;
  Heads all_heads(Tensor tensor) const;
  /// The rank's own blocks; those of its super-block; the latter without blocks that nobody needs.
  std::vector<int> own_blocks(Tensor tensor) const;
  const std::vector<int>& super_block(Tensor tensor) const;
  std::vector<int> used_blocks(Tensor tensor) const;

  /// Home to grid. Returns the grid tile; usable from `step` + 1 on (from `step` on if u = 1).
  int to_grid(int step, int home);

  /// Grid to home, of final tiles.
  void to_home(int step, int grid_tile, int home);

  /// Partial gradients of a KV tensor on the grid, one per head slice, to the final gradient at
  /// home.
  void gradients_to_home(int step, const std::vector<View>& sums, int home);

 private:
  /// Heads [begin, end) of a KV tensor that are read by the head groups of `readers`.
  struct SharedHeads {
    Heads heads;
    std::vector<int> readers;
  };
  std::vector<SharedHeads> shared_heads(int slices) const;
  void sum_at_home(int step, int sum, int home, const SharedHeads& shared);
  std::vector<int> blocks_of_partner(const std::vector<int>& blocks, Tensor tensor, int h) const;
  Rank partner(int h) const { return rank_of(grid_, {.h = h, .i = place_.i, .j = place_.j}); }

  ProgramBuilder& builder_;
  const Problem& problem_;
  const Blocks& blocks_;
  const Needs& needs_;
  Grid grid_;
  Place place_;
};

inline constexpr Lane kHeadLane = 1;

}  // namespace armillary::plan

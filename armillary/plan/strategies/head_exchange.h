// head_exchange.h: the u axis: an all-to-all that trades heads for tokens, and the one that trades
// back.
//
//   home tile   all heads of the rank's own blocks
//   grid tile   head group h of the super-block S(i, j): the blocks of the u partners (*, i, j)
//
// With u = 1 the two are the same and nothing moves. A KV head that several head groups read, as
// when u > kv_heads or when head counts are uneven, is sent to each of them, and its gradients are
// summed at home, in the order of head groups.
#pragma once

#include <vector>

#include "armillary/plan/strategies/grid.h"
#include "armillary/plan/strategies/program_builder.h"

namespace armillary::plan {

/// The u axis seen by one rank. Messages of one step are one batch on kHeadLane, marked
/// Collective::AllToAll.
class HeadExchange {
 public:
  /// `builder` and what `context` refers to must outlive the object.
  HeadExchange(ProgramBuilder& builder, const GridContext& context, Rank rank);

  /// Heads of `tensor` that head group h needs. KV heads of two groups may overlap.
  Heads group_heads(Tensor tensor, int h) const;
  /// All heads of `tensor`, as at home.
  Heads all_heads(Tensor tensor) const;
  /// The rank's own blocks, those of its super-block, and the latter without the blocks that no
  /// one needs (all of them if u = 1, because nothing moves then).
  std::vector<int> own_blocks(Tensor tensor) const;
  const std::vector<int>& super_block(Tensor tensor) const;
  std::vector<int> used_blocks(Tensor tensor) const;

  /// Home to grid. Returns the grid tile; it is usable from `step` + 1 on, from `step` on if u = 1,
  /// where it is the home tile itself. Q, K and V travel without unused blocks, dOut with all.
  int to_grid(int step, int home);

  /// Grid to home, for final tiles of the query side (Out, Lse, dQ).
  void to_home(int step, int grid_tile, int home);

  /// Grid to home, for dK and dV: partial gradients on the grid, one view per slice of KV heads, to
  /// the final gradient at home. A head that one group reads travels in the input dtype, rounded in
  /// `step` - 1; one that several groups read travels as partial sums.
  void gradients_to_home(int step, const std::vector<View>& sums, int home);

 private:
  /// A range of KV heads and the head groups that read them.
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
  GridPlace place_;
};

inline constexpr Lane kHeadLane = 1;

}  // namespace armillary::plan

// fold.h: classes of ranks that are alike.
//
// If every rank sees the others as rank 0 does, its program is that of rank 0 with other numbers:
// of ranks and of blocks. A fold is a group of such renumberings, the *rotations*: numbers of ranks
// are written with digits, as a grid numbers its places, and a rotation adds to some digits without
// carry. The ranks that rotations take to each other are a class. The one whose first digit of each
// entry is 0 stands for it. A ring of P ranks is one digit, one class; a grid of u x Rq x Rk has u
// classes, a transposed one u Rq.
//
//   Rotations of a strategy + blocks --Fold--> classes, representatives, rotations
//   program of any rank --relative--> the same text for all ranks of a class
//
// Nothing here is believed: whoever folds compares programs (verify_folded.h). The argument is in
// armillary/plan/fold.md.
#pragma once

#include <optional>
#include <vector>

#include "armillary/plan/mask/visibility.h"
#include "armillary/plan/plan.h"

namespace armillary::plan {

/// The rotations under which a strategy makes like programs, if all blocks see each other.
struct Rotations {
  /// Sizes of the digits of a rank's number, the lowest first; their product is the world.
  std::vector<int> digits;
  /// Digits that rotate together, by index: adding 1 to each is a generator of the group. The
  /// digits of one entry have one size, and no digit is in two entries. Without an entry no two
  /// ranks are alike.
  std::vector<std::vector<int>> generators;
};

/// The classes of a world. Immutable.
class Fold {
 public:
  /// Numbers added to the digits of each entry of Rotations::generators.
  using Rotation = std::vector<int>;

  /// The fold of a problem, or nothing if no two ranks are alike: without rotations, if a block
  /// does not see another, or if ranks own different numbers of blocks or of tokens.
  static std::optional<Fold> find(const Problem& problem, const Blocks& blocks,
                                  const Visibility& visibility, const Rotations& rotations);

  int world() const { return world_; }
  int classes() const { return static_cast<int>(representatives_.size()); }
  /// The rank that stands for a class; ascending.
  Rank representative(int index) const { return representatives_[index]; }
  int class_of(Rank rank) const;
  /// The rotation that takes the representative of its class to the rank; its inverse.
  Rotation rotation_to(Rank rank) const;
  Rotation inverse(Rotation rotation) const;

  Rank rotated(Rank rank, const Rotation& rotation) const;
  /// Count of ranks from `first` on that a rotation moves as one piece. At least 1.
  int moved_together(Rank first, const Rotation& rotation) const;
  /// Blocks of a tensor's side, renumbered and ascending.
  BlockIds rotated(Tensor tensor, const BlockIds& blocks, const Rotation& rotation) const;
  /// Blocks that each rank owns on a side.
  int blocks_per_rank(bool kv) const { return kv ? kv_blocks_ : q_blocks_; }

  /// The program as its representative would have it: ranks and blocks renumbered, and neighbouring
  /// messages of one batch in the order of their peers, which has no meaning. Programs of a class
  /// are alike if this is the same for all of them. Requires ranks and blocks that exist.
  RankProgram relative(RankProgram program) const;
  /// The inverse: the program of a rank, made of that of its class.
  RankProgram absolute(RankProgram program, Rank rank) const;

 private:
  explicit Fold(const Rotations& rotations);
  RankProgram rotated(RankProgram program, const Rotation& rotation) const;

  Rotations rotations_;
  int world_ = 1;
  int q_blocks_ = 0;
  int kv_blocks_ = 0;
  std::vector<Rank> representatives_;
};

}  // namespace armillary::plan

// turns.h: symbols that go from one representative of a fold to another. Internal to verify.
#pragma once

#include <cstdint>
#include <span>

#include "armillary/plan/fold.h"
#include "armillary/plan/verify/cells.h"

namespace armillary::plan::verifier {

/// Renumbers cells and the sets in them. Without a fold every block has its own number and nothing
/// is renumbered.
class Turns {
 public:
  /// Both must outlive the object. With a fold, classes are as `sides_of` makes them for it.
  Turns(const Fold* fold, const Sides& sides) : fold_(fold), sides_(sides) {}
  bool none() const { return fold_ == nullptr; }

  /// Gives the cells of a receive the values of the send. The representative of the sender sends to
  /// `peer`; the receiver is the representative of that rank's class, so everything is turned back
  /// by what takes the receiver to `peer`. Requires as many cells, and that they match.
  void copy(const ViewCells& source, Tensor tensor, Rank peer, const ViewCells& target) const;

  /// One class of query blocks for all that turns take to each other: that of the representative.
  int query_orbit(int block_class) const;

 private:
  int per_owner(const Classes& classes) const { return classes.count() / fold_->world(); }
  int turned(const Classes& classes, int block_class, const Fold::Turn& turn) const;
  void renumber(const Classes& classes, const Fold::Turn& turn, std::span<const std::uint64_t> from,
                std::span<std::uint64_t> to) const;

  const Fold* fold_;
  const Sides& sides_;
};

}  // namespace armillary::plan::verifier

// symbol_rotation.h: symbols that go from one representative of a fold to another. Internal to
// verify.
#pragma once

#include <cstdint>
#include <span>

#include "armillary/plan/fold.h"
#include "armillary/plan/verify/cells.h"

namespace armillary::plan::verifier {

/// Renumbers cells and the sets in them. Without a fold every block has its own number and nothing
/// is renumbered.
class SymbolRotation {
 public:
  /// Both must outlive the object. With a fold, classes are as `sides_of` makes them for it.
  SymbolRotation(const Fold* fold, const Sides& sides) : fold_(fold), sides_(sides) {}
  bool none() const { return fold_ == nullptr; }

  /// Gives the cells of a receive the values of the send. The representative of the sender sends to
  /// `peer`; the receiver is the representative of that rank's class, so everything is rotated back
  /// by what takes the receiver to `peer`. Requires as many cells, and that they match.
  void copy(const ViewCells& source, Tensor tensor, Rank peer, const ViewCells& target) const;

  /// The class of the representative, for all query blocks that rotations take to each other.
  int query_orbit(int block_class) const;

 private:
  int per_owner(const Classes& classes) const { return classes.count() / fold_->world(); }
  int rotated(const Classes& classes, int block_class, const Fold::Rotation& rotation) const;
  void renumber(const Classes& classes, const Fold::Rotation& rotation,
                std::span<const std::uint64_t> from, std::span<std::uint64_t> to) const;

  const Fold* fold_;
  const Sides& sides_;
};

}  // namespace armillary::plan::verifier

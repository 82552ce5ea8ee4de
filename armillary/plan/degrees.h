// degrees.h: how many pairs a mask has at its tokens, as steps that are never too low.
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/plan/mask.h"

namespace armillary::plan {

/// So many tokens with at most so many pairs each.
struct DegreeStep {
  double degree = 0;
  double count = 0;
};

/// Steps in falling order, with their sums.
class Degrees {
 public:
  explicit Degrees(std::vector<DegreeStep> steps = {});

  /// Pairs of the `count` tokens that have most.
  double of_top(double count) const;
  /// The same, where no token has more than `cap`.
  double of_top(double count, double cap) const;

 private:
  std::vector<DegreeStep> steps_;
  std::vector<double> counts_;  ///< Tokens before each step, and all.
  std::vector<double> pairs_;   ///< Pairs before each step, and all.
};

/// A side of the mask: its queries, or its keys.
enum class MaskSide : std::uint8_t { Queries, Keys };

/// A place where the number of pairs of a token, as a function of its position, is no straight
/// line: one ends before it, another begins there.
struct Kink {
  std::int64_t at = 0;
  std::int64_t most = 0;  ///< Pairs of the token there or of the one before, whichever has more.
};

/// All kinks of a side, ascending, with one at 0; none at all if there are too many bands to look
/// at. Cost: O(bands) areas of the mask.
std::vector<Kink> kinks(const Mask& mask, MaskSide side);

/// Tokens of one side that a rank does not own: their pairs with what it owns of the other side,
/// and with what it does not.
struct ForeignDegrees {
  Degrees to_own;      ///< Its sums are exact where all tokens are taken.
  Degrees to_foreign;  ///< May be cut at a cap: as many tokens as there are.
};

/// Never fewer pairs than any tokens have, whatever the mask. Cost: O(pieces) areas of the mask,
/// for at most kPieces pieces of the sequence, halved where they are farthest from the truth.
/// `kinks_of_side` as kinks() gives them; `own` and `own_other` are the rank's tokens on this side
/// and on the other.
inline constexpr int kPieces = 160;
ForeignDegrees foreign_degrees(const Mask& mask, MaskSide side,
                               const std::vector<Kink>& kinks_of_side, const Runs& own,
                               const Runs& own_other);

}  // namespace armillary::plan

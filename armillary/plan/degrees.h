// degrees.h: upper bounds on the number of visible pairs that tokens have under a mask.
//
// The degree of a query is the number of keys that it sees; the degree of a key is the number of
// queries that see it. Degrees are not listed token by token. They are bounded from above on a few
// pieces of the sequence, as a step function. The bound on traffic that uses them (lower_bound.h)
// can therefore be loose, but never wrong.
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/plan/mask/mask.h"

namespace armillary::plan {

/// `count` tokens with at most `degree` pairs each. Counts may be fractions.
struct DegreeStep {
  double degree = 0;
  double count = 0;
};

/// A step function: degrees in falling order, with prefix sums of tokens and pairs.
///
///   Degrees({{5, 2}, {3, 4}}).of_top(3)      5 + 5 + 3
///   Degrees({{5, 2}, {3, 4}}).of_top(3, 4)   4 + 4 + 3
class Degrees {
 public:
  /// Takes the steps in any order.
  explicit Degrees(std::vector<DegreeStep> steps = {});

  /// Sum of the `count` largest degrees, of all degrees if there are fewer. Cost: O(log steps).
  double of_top(double count) const;
  /// The same sum with every degree above `cap` replaced by `cap`.
  double of_top(double count, double cap) const;

 private:
  std::vector<DegreeStep> steps_;
  std::vector<double> counts_;  ///< Tokens before each step, and all.
  std::vector<double> pairs_;   ///< Pairs before each step, and all.
};

/// A side of the mask: its queries, or its keys.
enum class MaskSide : std::uint8_t { Queries, Keys };

/// A position where the degree, as a function of the position, is no straight line: one line ends
/// before it and another begins at it. Between two kinks the largest degree is at an end.
struct Kink {
  std::int64_t at = 0;
  std::int64_t most = 0;  ///< The larger degree of the token at `at` and the token before it.
};

/// All kinks of a side, ascending, with one at 0; an empty list for a mask of more than 1024 bands,
/// or for a side without tokens. Cost: O(bands) areas of the mask.
std::vector<Kink> kinks(const Mask& mask, MaskSide side);

/// Degrees of the tokens of one side that a rank does not own, split by the tokens of the other
/// side: pairs with tokens that the rank owns, and pairs with tokens that it does not own.
struct ForeignDegrees {
  Degrees to_own;      ///< The sum over all tokens is exact.
  Degrees to_foreign;  ///< Counts are exact, so a cap on every token's degree may be applied.
};

/// The most pieces into which foreign_degrees() cuts a sequence.
inline constexpr int kPieces = 160;

/// Bounds that hold for every mask: no set of tokens has more pairs than these say. The sequence is
/// cut into at most kPieces pieces, each time the piece whose bound is farthest above its pairs.
/// `kinks_of_side` are those of kinks(mask, side); `own` and `own_other` are the rank's tokens on
/// this side and on the other side. Cost: O(kPieces) areas of the mask.
ForeignDegrees foreign_degrees(const Mask& mask, MaskSide side,
                               const std::vector<Kink>& kinks_of_side, const Runs& own,
                               const Runs& own_other);

}  // namespace armillary::plan

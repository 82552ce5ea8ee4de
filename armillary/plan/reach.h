// reach.h: how many pairs a rank can attend to with so many words of others, at most.
#pragma once

#include "armillary/plan/degrees.h"
#include "armillary/plan/mask.h"

namespace armillary::plan {

/// One KV head with its `group` query heads, seen from a rank that owns some tokens. Foreign rows
/// are queries of a head that it does not own, foreign columns keys. docs/notes/lower_bound.md has
/// the proof.
class Reach {
 public:
  /// Kinks are those of the mask. Own tokens are the rank's.
  struct Owned {
    Runs q;
    Runs kv;
  };
  Reach(const Mask& mask, const std::vector<Kink>& q_kinks, const std::vector<Kink>& kv_kinks,
        const Owned& own, int group);

  /// Never below the pairs of the own rows and any x foreign ones with the own columns and any y
  /// foreign ones. Rises with x and with y, and is concave in x.
  double pairs(double x, double y) const;

  /// Rows and columns that a rank must receive for `pairs` visible pairs, of `planes` KV heads (and
  /// batch entries) together, at least. At most 0.4 % below what pairs() allows with a price for
  /// every pair. Cost: some thousand calls of pairs().
  double least_received(double pairs, double planes) const;

 private:
  /// Pairs of a choice of rows and columns, and what these cost.
  struct Choice {
    double pairs = 0;
    double received = 0;
  };
  struct Most {
    double value = 0;  ///< Never below the truth.
    Choice choice;
  };
  /// Most of price * min(pairs, cap) - received.
  Most most_value(double price, double cap, double tolerance) const;
  /// The best rows to `y` columns.
  Choice best_with(double y, double price, double cap) const;

  double own_pairs_ = 0;
  double rows_ = 0;     ///< Foreign ones.
  double columns_ = 0;  ///< Foreign ones.
  double group_ = 1;
  ForeignDegrees of_rows_;
  ForeignDegrees of_columns_;
};

}  // namespace armillary::plan

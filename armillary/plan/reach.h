// reach.h: an upper bound on the pairs that a rank can attend to with given foreign tokens, and so
// a lower bound on the foreign tokens that it needs for given pairs.
#pragma once

#include "armillary/plan/degrees.h"
#include "armillary/plan/mask/mask.h"

namespace armillary::plan {

/// One KV head with its `group` query heads, seen from a rank that owns some tokens. A row is one
/// query of one query head, a column is one key. Foreign rows and columns are those of tokens that
/// the rank does not own; it must receive each that it uses. Proof: armillary/plan/lower_bound.md.
class Reach {
 public:
  /// Tokens that the rank owns.
  struct Owned {
    Runs q;
    Runs kv;
  };
  /// `q_kinks` and `kv_kinks` are kinks() of both sides of the mask.
  Reach(const Mask& mask, const std::vector<Kink>& q_kinks, const std::vector<Kink>& kv_kinks,
        const Owned& own, int group);

  /// Upper bound on the visible pairs between the own rows with any x foreign rows, and the own
  /// columns with any y foreign columns. Rises with x and with y, and is concave in x.
  double pairs(double x, double y) const;

  /// Lower bound on the foreign rows and columns that a rank receives for `pairs` visible pairs in
  /// `planes` KV heads (and batch entries) together. At most 0.4 % below the best bound that
  /// pairs() allows by this method. Cost: some thousand calls of pairs().
  double least_received(double pairs, double planes) const;

 private:
  /// A choice of foreign rows and columns: the pairs it allows, and how many rows and columns.
  struct Choice {
    double pairs = 0;
    double received = 0;
  };
  struct Most {
    double value = 0;  ///< Upper bound on the maximum.
    Choice choice;     ///< The best choice found.
  };
  /// Maximum of price * min(pairs, cap) - received over all choices, to within `tolerance`.
  Most most_value(double price, double cap, double tolerance) const;
  /// The best choice with exactly `y` foreign columns.
  Choice best_with(double y, double price, double cap) const;

  double own_pairs_ = 0;  ///< Pairs of own rows with own columns.
  double rows_ = 0;       ///< Foreign rows.
  double columns_ = 0;    ///< Foreign columns.
  double group_ = 1;
  ForeignDegrees of_rows_;
  ForeignDegrees of_columns_;
};

}  // namespace armillary::plan

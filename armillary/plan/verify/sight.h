// sight.h: which blocks see each other, class by class. Internal to verify.
#pragma once

#include <vector>

#include "armillary/plan/verify/cells.h"

namespace armillary::plan::verifier {

/// Which block classes see each other: those of which any two blocks do. What counts one pair of
/// two classes counts all of theirs.
class Sight {
 public:
  Sight(const Plan& plan, const Sides& sides)
      : areas_(plan.problem.mask, plan.blocks),
        sides_(sides),
        of_query_(sides.q.blocks.count(), Bits(words_for(sides.kv.blocks.count()))),
        of_key_(sides.kv.blocks.count(), Bits(words_for(sides.q.blocks.count()))) {
    for (int q = 0; q < sides.q.blocks.count(); ++q) {
      for (int kv = 0; kv < sides.kv.blocks.count(); ++kv) {
        if (first(q, kv).q < 0) continue;
        put(of_query_[q], kv);
        put(of_key_[kv], q);
      }
    }
  }
  const Bits& of_query(int q_class) const { return of_query_[q_class]; }
  const Bits& of_key(int kv_class) const { return of_key_[kv_class]; }

  /// The first two blocks of the classes that see each other, or -1 and -1.
  struct Pair {
    int q = -1;
    int kv = -1;
  };
  Pair first(int q_class, int kv_class) const {
    const Classes& queries = sides_.q.blocks;
    const Classes& keys = sides_.kv.blocks;
    for (int q = queries.begin(q_class); q < queries.end(q_class); ++q) {
      for (int kv = keys.begin(kv_class); kv < keys.end(kv_class); ++kv) {
        if (areas_.visible(q, kv)) return {q, kv};
      }
    }
    return {};
  }

 private:
  BlockAreas areas_;
  const Sides& sides_;
  std::vector<Bits> of_query_;
  std::vector<Bits> of_key_;
};

/// One of `required` that is not in `given`, or -1.
int first_missing(const Bits& required, const Bits& given);

/// The classes of blocks.
Bits bits_of(const BlockIds& blocks, const Classes& classes);

}  // namespace armillary::plan::verifier

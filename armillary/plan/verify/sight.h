// sight.h: visibility between classes of blocks. Internal to verify.
#pragma once

#include <optional>
#include <vector>

#include "armillary/plan/mask/visibility.h"
#include "armillary/plan/verify/cells.h"

namespace armillary::plan::verifier {

/// Tells which classes of query blocks and key blocks see each other: those of which any two blocks
/// have a visible pair. An op that attends to one pair of blocks of two classes attends to all of
/// them, so one bit per pair of classes is enough.
class Sight {
 public:
  /// Cost: O(pairs of classes). Keeps a reference to `sides`. With a fold all blocks see each
  /// other, and one set serves all classes.
  Sight(const Plan& plan, const Sides& sides, const Fold* fold) : sides_(sides) {
    if (fold != nullptr) {
      of_query_.push_back(all(sides.kv.blocks.count()));
      of_key_.push_back(all(sides.q.blocks.count()));
      return;
    }
    visibility_.emplace(plan.problem.mask, plan.blocks);
    of_query_.assign(sides.q.blocks.count(), Bits(words_for(sides.kv.blocks.count())));
    of_key_.assign(sides.kv.blocks.count(), Bits(words_for(sides.q.blocks.count())));
    for (int q = 0; q < sides.q.blocks.count(); ++q) {
      for (int kv = 0; kv < sides.kv.blocks.count(); ++kv) {
        if (first(q, kv).q < 0) continue;
        put(of_query_[q], kv);
        put(of_key_[kv], q);
      }
    }
  }
  /// The key classes that a query class sees.
  const Bits& of_query(int q_class) const { return of_query_[visibility_ ? q_class : 0]; }
  /// The query classes that see a key class.
  const Bits& of_key(int kv_class) const { return of_key_[visibility_ ? kv_class : 0]; }

  /// The first two blocks of two classes that have a visible pair, or -1 and -1: for messages.
  struct BlockPair {
    int q = -1;
    int kv = -1;
  };
  BlockPair first(int q_class, int kv_class) const {
    const Classes& queries = sides_.q.blocks;
    const Classes& keys = sides_.kv.blocks;
    for (int q = queries.begin(q_class); q < queries.end(q_class); ++q) {
      for (int kv = keys.begin(kv_class); kv < keys.end(kv_class); ++kv) {
        if (!visibility_ || visibility_->visible(q, kv)) return {q, kv};
      }
    }
    return {};
  }

 private:
  /// The set of all classes.
  static Bits all(int classes) {
    Bits bits(words_for(classes));
    for (int c = 0; c < classes; ++c) put(bits, c);
    return bits;
  }

  std::optional<Visibility> visibility_;  ///< None if all blocks see each other.
  const Sides& sides_;
  // The same relation twice: by query class, and by key class.
  std::vector<Bits> of_query_;
  std::vector<Bits> of_key_;
};

/// The first class that is in `required` and not in `bits`, or -1.
int first_missing(const Bits& required, const Bits& bits);

/// The set of the classes of these blocks. Requires borders at both ends of every run of them.
Bits bits_of(const BlockIds& blocks, const Classes& classes);

}  // namespace armillary::plan::verifier

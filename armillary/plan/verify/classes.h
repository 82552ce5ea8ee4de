// classes.h: equivalence classes of heads and blocks. Internal to verify.
//
// An op does the same to everything that its views show. Blocks that every view and tile either
// shows together or not at all therefore have the same history, and are followed as one class;
// likewise heads. Sets of classes stay small, whatever the number of heads and of blocks per rank.
// Views of blocks 0-3 and 2-5 out of 8 give the classes {0, 1}, {2, 3}, {4, 5}, {6, 7}.
#pragma once

#include <vector>

#include "armillary/plan/fold.h"
#include "armillary/plan/plan.h"

namespace armillary::plan::verifier {

/// The classes begin, begin + 1, ..., end - 1.
struct ClassRange {
  int begin = 0;
  int end = 0;
  int count() const { return end - begin; }
};

/// The numbers [0, n) cut into classes: those between two neighbouring borders form one class.
class Classes {
 public:
  /// `borders` has n + 1 entries: entry i is not 0 if a class begins at number i. Entries 0 and n
  /// count as set.
  explicit Classes(const std::vector<char>& borders);

  int count() const { return static_cast<int>(begins_.size()) - 1; }
  /// Class `index` is the numbers [begin(index), end(index)).
  int begin(int index) const { return begins_[index]; }
  int end(int index) const { return begins_[index + 1]; }
  /// The classes of the numbers [begin, end). Requires borders at both ends.
  ClassRange within(int begin, int end) const { return {class_of_[begin], class_of_[end]}; }
  ClassRange within(const Heads& heads) const { return within(heads.begin, heads.end); }
  ClassRange within(const IdRun& blocks) const { return within(blocks.first, blocks.last + 1); }
  /// The classes that share a head with `heads`, whatever the borders. Requires that `heads` is not
  /// empty.
  ClassRange sharing(const Heads& heads) const {
    return {class_of_[heads.begin], class_of_[heads.end - 1] + 1};
  }

 private:
  std::vector<int> begins_;    ///< First number of each class; last, n.
  std::vector<int> class_of_;  ///< Class of each number; last, the number of classes.
};

/// The classes of one side: of Q, Out and other tensors of queries, or of K, V and their gradients.
struct SideClasses {
  Classes heads;
  Classes blocks;
};

/// The classes of both sides of a plan.
struct Sides {
  SideClasses q;
  SideClasses kv;
  const SideClasses& of(Tensor tensor) const { return is_kv(tensor) ? kv : q; }
};

/// Borders are the begins and ends of all tiles and views of all ranks. Requires a plan that passes
/// the rule `well_formed`. Runs on all cores. With a fold, which has programs of representatives
/// only, a border within the blocks of one owner is one within those of every owner, and the blocks
/// of two owners are never one class.
Sides sides_of(const Plan& plan, const Fold* fold = nullptr);

}  // namespace armillary::plan::verifier

// classes.h: heads and blocks that no view of a plan tells apart. Internal to verify.
//
// What an op does it does to all that its views show. So what no view shows a part of has one fate,
// and is looked at as one: sets stay small, whatever the number of heads and of blocks a rank.
#pragma once

#include <vector>

#include "armillary/plan/plan.h"

namespace armillary::plan::verifier {

/// Classes [begin, end).
struct ClassRange {
  int begin = 0;
  int end = 0;
  int count() const { return end - begin; }
};

/// Numbers [0, n) in classes of neighbours: those between two neighbouring borders.
class Classes {
 public:
  /// Of each number, and of n, whether a class begins there. Those of 0 and n are taken as set.
  explicit Classes(const std::vector<char>& borders);

  int count() const { return static_cast<int>(begins_.size()) - 1; }
  int begin(int index) const { return begins_[index]; }
  int end(int index) const { return begins_[index + 1]; }
  /// Those of the numbers [begin, end). Requires borders at both ends.
  ClassRange within(int begin, int end) const { return {class_of_[begin], class_of_[end]}; }
  ClassRange within(const Heads& heads) const { return within(heads.begin, heads.end); }
  ClassRange within(const IdRun& blocks) const { return within(blocks.first, blocks.last + 1); }
  /// Those that share a head with `heads`, not empty.
  ClassRange sharing(const Heads& heads) const {
    return {class_of_[heads.begin], class_of_[heads.end - 1] + 1};
  }

 private:
  std::vector<int> begins_;    ///< Of each class, and n.
  std::vector<int> class_of_;  ///< By number, and one past the last.
};

/// The classes of one side: of Q and its kind, or of K, V and their gradients.
struct Side {
  Classes heads;
  Classes blocks;
};

/// Those between the borders of all tiles and views.
struct Sides {
  Side q;
  Side kv;
  const Side& of(Tensor tensor) const { return is_kv(tensor) ? kv : q; }
};

/// Requires a plan that passes the rule `form`. On all cores.
Sides sides_of(const Plan& plan);

}  // namespace armillary::plan::verifier

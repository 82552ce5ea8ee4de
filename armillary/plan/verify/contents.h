// contents.h: what the run on symbols works on: what a plan means, and what slots hold. Internal to
// verify.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "armillary/plan/verify/sight.h"
#include "armillary/plan/verify/structure.h"
#include "armillary/plan/verify/symbol_rotation.h"

namespace armillary::plan::verifier {

/// The meaning of a plan, which does not change while it runs.
struct Meaning {
  Meaning(const Plan& plan, const Fold* fold)
      : plan(plan), sides(sides_of(plan, fold)), sight(plan, sides, fold), rotation(fold, sides) {}
  Meaning(const Meaning&) = delete;
  Meaning& operator=(const Meaning&) = delete;

  const Plan& plan;
  Sides sides;
  Sight sight;
  SymbolRotation rotation;
};

/// A lock that is hardly ever met locked.
class SpinLock {
 public:
  void lock() {
    while (locked_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  }
  void unlock() { locked_.clear(std::memory_order_release); }

 private:
  std::atomic_flag locked_;
};

/// The contents of all slots of all ranks, while the plan runs.
struct Contents {
  explicit Contents(const Meaning& meaning)
      : passed_delta(meaning.sides.q.blocks.count(),
                     std::vector<char>(meaning.sides.q.heads.count())),
        locks(meaning.plan.ranks.size()) {
    for (const RankProgram& program : meaning.plan.ranks) {
      cells.emplace_back(program, meaning.sides);
      for (const int tile : program.inputs) cells.back().define(tile);
      if (meaning.plan.pass == Pass::Backward) {
        for (const int tile : program.saved) cells.back().define(tile);
      }
    }
  }

  /// By query block class, then head class: whether its rows have passed `delta`, on any rank.
  std::vector<std::vector<char>> passed_delta;
  std::vector<Cells> cells;
  std::vector<SpinLock> locks;  ///< By rank; used if several threads run actions.
};

}  // namespace armillary::plan::verifier

// contents.h: what the run on symbols works on: what a plan means, and what slots hold. Internal to
// verify.
#pragma once

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

/// The contents of all slots of all ranks, while the plan runs.
struct Contents {
  explicit Contents(const Meaning& meaning)
      : passed_delta(meaning.sides.q.blocks.count(),
                     std::vector<char>(meaning.sides.q.heads.count())) {
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
};

}  // namespace armillary::plan::verifier

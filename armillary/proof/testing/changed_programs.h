// changed_programs.h: for tests: programs as a wrong strategy or lowering pass would make them.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "armillary/proof/prove.h"

namespace armillary::proof {

/// The programs of `runnable`, each after `change`.
inline ProgramSource changed_programs(
    std::function<void(plan::Pass pass, plan::RankProgram& program)> change) {
  return std::make_shared<const MakeProgram>(
      [change = std::move(change)](const plan::Planner& planner, plan::Pass pass, plan::Rank rank) {
        plan::RankProgram program = runnable(planner, pass, rank);
        change(pass, program);
        return program;
      });
}

}  // namespace armillary::proof

// program_cache.h: the programs of one attention on one rank, compiled once.
#pragma once

#include <memory>

#include "armillary/plan/strategy.h"
#include "armillary/proof/together.h"
#include "armillary/runtime/compiled_program.h"

namespace armillary::runtime {

/// All passes of one rank, and what tells them from those of other calls. Immutable; threads may
/// share it.
struct CompiledAttention {
  std::shared_ptr<const CompiledProgram> forward;
  std::shared_ptr<const CompiledProgram> backward;
  std::shared_ptr<const CompiledProgram> replay;
  proof::RankPrograms proved;  ///< What has to be, before they run.
};

/// Compiles, or finds what was compiled for an equal problem, strategy and kernel before. Keeps the
/// most recent ones for the whole process. Threads: any; ranks that are threads share the planning.
/// That they are proved is for the caller to see to.
/// @throws InvalidArgument if the strategy cannot solve the problem.
std::shared_ptr<const CompiledAttention> compile_cached(const plan::Problem& problem,
                                                        const plan::Strategy& strategy,
                                                        plan::Rank rank,
                                                        const kernel::Kernel& kernel);

}  // namespace armillary::runtime

// program_cache.h: the programs of one attention on one rank, compiled once.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "armillary/attention/compiled_program.h"
#include "armillary/plan/strategy.h"
#include "armillary/proof/together.h"

namespace armillary::attention {

/// All passes of one rank, and what tells them from those of other calls. Immutable; threads may
/// share it.
struct CompiledAttention {
  std::shared_ptr<const CompiledProgram> forward;
  std::shared_ptr<const CompiledProgram> backward;
  std::shared_ptr<const CompiledProgram> replay;
  proof::RankPrograms proved;  ///< What has to be, before they run.
};

/// A problem and a strategy as ranks compare them.
struct Described {
  plan::Problem problem;
  std::string strategy_text;
  std::optional<plan::Strategy> strategy;  ///< None if the text names none.
  proof::Digest key;
  std::string words;  ///< `name=value`, spaces between; the first bands of the mask only.
};

/// Of the most recent ones a thread keeps what it made: a layer asks in every step. Valid until the
/// next call. Never refuses.
const Described& described(const plan::Problem& problem, const std::string& strategy_text);

/// Compiles, or finds what was compiled for an equal problem, strategy and kernel before. Keeps the
/// most recent ones for the whole process. Threads: any; ranks that are threads share the planning.
/// That they are proved is for agreement.h to see to.
/// @throws InvalidArgument if the strategy cannot solve the problem.
std::shared_ptr<const CompiledAttention> compile_cached(const plan::Problem& problem,
                                                        const plan::Strategy& strategy,
                                                        plan::Rank rank,
                                                        const kernel::Kernel& kernel);

}  // namespace armillary::attention

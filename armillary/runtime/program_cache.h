// program_cache.h: compiles the programs of one attention on one rank, once per process.
//
//   (problem, strategy, kernel) --Planner--> (pass, rank) --source--> program --compile-->
//   CompiledProgram
//
// Programs and their proofs are forgotten together. A group of ranks remembers by itself that it
// has proved a problem (group_state.h), for its ranks have to agree on that.
#pragma once

#include <memory>

#include "armillary/plan/strategies/strategy.h"
#include "armillary/proof/together.h"
#include "armillary/runtime/compiled_program.h"

namespace armillary::runtime {

/// The programs of all passes of one rank, with the digests that identify them. Immutable; threads
/// may share it.
struct CompiledAttention {
  std::shared_ptr<const CompiledProgram> forward;
  std::shared_ptr<const CompiledProgram> backward;
  std::shared_ptr<const CompiledProgram> replay;
  proof::RankPrograms proved;  ///< to be proved before the first run
};

/// Problems that the process keeps, those that were used last. Packed documents bring a mask a
/// sequence: those of the last step, of this one and of the next, proved ahead, have to fit.
inline constexpr int kProblemsKept = 256;

/// Returns the programs that were compiled for an equal problem, strategy, rank and the same kernel
/// and source, or compiles them. Ranks that are threads share the planning. It does not prove
/// anything: the caller has to (proof/together.h). Threads: any.
/// @throws InvalidArgument if the strategy cannot solve the problem.
std::shared_ptr<const CompiledAttention> compile_cached(const plan::Problem& problem,
                                                        const plan::Strategy& strategy,
                                                        plan::Rank rank,
                                                        const kernel::Kernel& kernel,
                                                        const proof::ProgramSource& source = {});

/// The proofs of those programs, for a thread that makes them ahead of the first call. They go with
/// the programs, after kProblemsKept other problems.
std::shared_ptr<proof::Proofs> proofs_cached(const plan::Problem& problem,
                                             const plan::Strategy& strategy,
                                             const kernel::Kernel& kernel);

}  // namespace armillary::runtime

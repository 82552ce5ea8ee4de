// compiled_program.h: the program of one rank of attention, prepared so that it can run many times.
//
// Everything that does not depend on the values of tensors is computed here, once per (problem,
// strategy, rank, kernel): the machine's part (machine_program.h), and the kernel calls of each op.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "armillary/kernel/block_attention.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/runtime/machine_program.h"

namespace armillary::runtime {

/// One kernel call of an op that attends: a segment of queries against a segment of keys. Segments
/// are the pieces of a view that lie together in memory (plan/segments.h).
struct KernelCall {
  std::size_t q_segment = 0;
  std::size_t kv_segment = 0;
  kernel::Pairs pairs;
};

/// A program that is ready to run. Immutable; threads may share it. It must not be copied or moved,
/// because `ops` point into `program` and `calls` into `problem`.
struct CompiledProgram : MachineProgram {
  plan::Problem problem;
  const kernel::Kernel* kernel = nullptr;  ///< the kernel that `calls` are prepared for
  /// By op: calls with a visible pair; empty if it does not attend.
  std::vector<std::vector<KernelCall>> calls;
};

/// Compiles a program of the planner's problem, lowered or not. The program must be `well_formed`
/// (plan/verify/verify.h). `kernel` must outlive the result.
std::shared_ptr<const CompiledProgram> compile(const plan::Planner& planner,
                                               plan::RankProgram program,
                                               const kernel::Kernel& kernel);

}  // namespace armillary::runtime

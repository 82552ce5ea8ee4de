// compiled_program.h: the program of one rank, prepared so that it can run many times.
//
//   RankProgram --compile--> tiles      shape, and the caller's tile whose memory it uses
//                            ops        views located in their tiles, kernel calls prepared
//                            batches    ops that start together, by lane, with all they wait for
//
// Everything that does not depend on the values of tensors is computed here, once per (problem,
// strategy, rank, kernel).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "armillary/kernel/block_attention.h"
#include "armillary/plan/segments.h"
#include "armillary/plan/strategy.h"

namespace armillary::runtime {

/// Ops that start together: one compute op, or the messages of one step of a communication lane.
struct Batch {
  plan::Lane lane = plan::kCompute;
  std::vector<int> ops;
  std::vector<int> waits;   ///< ops that must be complete before the batch starts
  std::vector<int> inputs;  ///< tiles in external slots; the inputs among them must be fed before
};

/// One kernel call of an op that attends: a segment of queries against a segment of keys. Segments
/// are the pieces of a view that lie together in memory (plan/segments.h).
struct KernelCall {
  std::size_t q_segment = 0;
  std::size_t kv_segment = 0;
  kernel::Pairs pairs;
};

/// An op whose views are located in memory and whose kernel calls are prepared.
struct CompiledOp {
  const plan::Op* op = nullptr;
  std::vector<plan::LocatedView> views;  ///< one per operand
  std::vector<KernelCall> calls;         ///< calls with a visible pair; empty if it does not attend
  std::int64_t bytes = 0;                ///< of a message, all batch entries
};

/// A program that is ready to run. Immutable; threads may share it. It must not be copied or moved,
/// because `ops` point into `program` and `calls` into `problem`.
struct CompiledProgram {
  plan::Problem problem;
  plan::RankProgram program;
  std::string strategy;  ///< as plan::parse_strategy reads it
  plan::Pass pass = plan::Pass::Forward;
  const kernel::Kernel* kernel = nullptr;  ///< the kernel that `calls` are prepared for
  /// Shape of each tile: {B, L, heads, dim}, or {B, L, heads} for Lse and Delta.
  std::vector<std::vector<std::int64_t>> shapes;
  /// Storage alias of each tile: the tile of the caller (input, output or saved) whose memory it
  /// uses. That is the tile itself, or the one that has the same external slot; kInSlots if the
  /// tile uses the memory of its own slot.
  std::vector<int> alias_of;
  static constexpr int kInSlots = -1;
  std::vector<CompiledOp> ops;
  std::vector<std::vector<Batch>> lanes;  ///< batches of each lane in order; lane 0 computes
};

/// Compiles a program of the planner's problem, lowered or not. The program must be `well_formed`
/// (plan/verify.h). `kernel` must outlive the result.
std::shared_ptr<const CompiledProgram> compile(const plan::Planner& planner,
                                               plan::RankProgram program,
                                               const kernel::Kernel& kernel);

/// An op in words, for errors: `ring backward step 3: recv dk{4} 65536 bytes from rank 2 on lane
/// 1`.
std::string describe(const CompiledProgram& compiled, int op);

}  // namespace armillary::runtime

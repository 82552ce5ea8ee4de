// compiled_program.h: a rank's program made ready to run, again and again.
//
// All that does not depend on the values is worked out here once per (problem, strategy, rank):
// where in a tile each view lies, which ops an op waits for, which global positions a kernel call
// is about.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "armillary/kernel/block_attention.h"
#include "armillary/plan/segments.h"
#include "armillary/plan/strategy.h"

namespace armillary::runtime {

/// Ops that start together: one compute op, or the messages of a step of one lane.
struct Batch {
  plan::Lane lane = plan::kCompute;
  std::vector<int> ops;
  std::vector<int> waits;   ///< Ops that must be complete before it starts.
  std::vector<int> inputs;  ///< Tiles of the caller: those it feeds must be there before it starts.
};

/// One kernel call of an op that attends: a segment of queries against a segment of keys.
struct KernelCall {
  std::size_t q_segment = 0;
  std::size_t kv_segment = 0;
  kernel::Pairs pairs;
};

/// An op, its memory located and its kernels chosen.
struct CompiledOp {
  const plan::Op* op = nullptr;
  std::vector<plan::LocatedView> views;  ///< One per operand.
  std::vector<KernelCall> calls;         ///< None for ops that do not attend.
};

/// Immutable; threads may share it. Stays where it is: `ops` point into `problem` and `program`.
struct CompiledProgram {
  plan::Problem problem;
  plan::RankProgram program;
  const kernel::Kernel* kernel = nullptr;  ///< For which `calls` are prepared.
  std::vector<std::vector<std::int64_t>>
      shapes;  ///< Of the tiles: {B, L, heads, dim} or {B, L, heads}.
  /// Of the tiles: the tile of the caller (inputs, outputs, saved) in whose memory it lies: itself,
  /// or that in whose slot it is. Or kInSlots.
  std::vector<int> home;
  static constexpr int kInSlots = -1;
  std::vector<CompiledOp> ops;
  std::vector<std::vector<Batch>> lanes;  ///< Batches in order, one list per lane; 0 computes.
};

/// A program of the planner's problem, as it is: lowered or not.
std::shared_ptr<const CompiledProgram> compile(const plan::Planner& planner,
                                               plan::RankProgram program,
                                               const kernel::Kernel& kernel);

}  // namespace armillary::runtime

// compiled_program.h: a rank's program made ready to run, again and again.
//
// All that does not depend on the values is worked out here once per (problem, strategy, rank):
// where in a tile each view lies, which ops an op waits for, which global positions a kernel call
// is about.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "armillary/kernel/block_attention.h"
#include "armillary/plan/strategy.h"

namespace armillary::attention {

/// Rows of a tile that lie one after the other in memory: blocks that are neighbours in it.
struct Segment {
  std::int64_t begin = 0;  ///< First token in the tile.
  std::int64_t count = 0;
  plan::Runs positions;  ///< Global positions of these tokens, in memory order.
};

/// A view, located in its tile.
struct LocatedView {
  int tile = -1;
  std::int64_t first_head = 0;  ///< In the tile.
  std::int64_t heads = 0;
  std::int64_t first_global_head = 0;
  std::vector<Segment> segments;
};

/// Ops that start together: one compute op, or a batch of sends and receives of one lane.
struct Batch {
  plan::Lane lane = plan::kCompute;
  std::vector<int> ops;
  /// The ops of a comm lane by message: what an all-to-all sends to, or receives from, one peer
  /// travels as one, such as Q, K and V of `qkv=packed`; every other op is a message of its own.
  std::vector<std::vector<int>> messages;
  std::vector<int> waits;   ///< Ops that must be complete before it starts.
  std::vector<int> inputs;  ///< Tiles of the caller: those it feeds must be there before it starts.
};

/// One kernel call of an attend or attend_grad: a segment of queries against a segment of keys.
struct KernelCall {
  std::size_t q_segment = 0;
  std::size_t kv_segment = 0;
  kernel::Pairs pairs;
};

/// An operand of an op that is written.
struct ResultView {
  int op = -1;
  std::size_t operand = 0;
};

/// Immutable; threads may share it. Stays where it is: `calls` point to the mask of `problem`.
struct CompiledProgram {
  plan::Problem problem;
  plan::RankProgram program;
  std::vector<std::vector<std::int64_t>>
      shapes;  ///< Of the tiles: {B, L, heads, dim} or {B, L, heads}.
  /// Of the tiles: whether it comes from or goes to the caller (inputs, outputs, saved), and so has
  /// memory of its own in every run.
  std::vector<bool> callers;
  /// Of the tiles: where it lives: itself, or the caller's tile that takes over all it ends as, in
  /// the same dtype and place. The `copy` or `finish` that does it has nothing to move then. Or
  /// nowhere: a sum that is not made (fused.h).
  std::vector<int> home;
  static constexpr int kNowhere = -1;
  std::vector<std::vector<LocatedView>> views;  ///< Of the ops, one per operand.
  const kernel::Kernel* kernel = nullptr;       ///< For which `calls` are prepared.
  std::vector<std::vector<KernelCall>> calls;   ///< Of the ops; none for those that do not attend.
  // What is done by the kernel calls of ops that attend (fused.h).
  std::vector<bool> fused;  ///< Of the ops: nothing is left to do.
  /// Of the ops: whether the sums of queries, and of keys, have not been cleared: the one call of
  /// the op writes them.
  std::vector<std::array<bool, 2>> fresh;
  /// Of the ops: what the one call of an op writes in place of its sums: out and lse, or dq, dk and
  /// dv; empty for others.
  std::vector<std::vector<ResultView>> results;
  std::vector<std::vector<Batch>> lanes;  ///< Batches in order, one list per lane; 0 computes.
  /// Of the ops: whether a send may lend its memory, or a receive borrow the sender's (loans.h).
  std::vector<bool> loan;
  std::vector<std::vector<int>> readers;  ///< Of a receive that may borrow: who reads its tile.
};

std::shared_ptr<const CompiledProgram> compile(const plan::Planner& planner, plan::Pass pass,
                                               plan::Rank rank, const kernel::Kernel& kernel);
std::shared_ptr<const CompiledProgram> compile(const plan::Planner& planner,
                                               plan::RankProgram program,
                                               const kernel::Kernel& kernel);

/// The passes of one rank.
struct CompiledAttention {
  std::shared_ptr<const CompiledProgram> forward;
  std::shared_ptr<const CompiledProgram> backward;
  std::shared_ptr<const CompiledProgram> replay;  ///< plan::replay of forward.
};

/// Compiles, or finds what was compiled for an equal problem, strategy and kernel before. Keeps the
/// most recent ones for the whole process. Threads: any; ranks that are threads share the planning.
/// @throws InvalidArgument if the strategy cannot solve the problem.
CompiledAttention compile_cached(const plan::Problem& problem, const plan::Strategy& strategy,
                                 plan::Rank rank, const kernel::Kernel& kernel);

}  // namespace armillary::attention

// verify.h: proves that a plan is exact attention, or says where it is not.
//
// The plan is run on symbols instead of numbers. A slot holds values such as "K of block 3, heads
// 0-7" or "partial of Q block 2 over K blocks {0, 3}"; ops move and combine them. Rules proved, by
// name:
//
//   blocks       the blocks are the tokens that the layout gives each rank, in its order; inputs,
//                outputs and saved tiles lie where they should
//   well_formed  every view lies in its tile, operands of an op agree in shape, tiles fit their
//                slots; sums over part of the pairs travel in the problem's transfer
//                dtype, log-sum-exps in the accumulator
//   zero_copy    nothing is written over the view of a send without a copy; a receive without a
//                copy writes a whole tile that nothing else writes, and that is not the caller's
//   match        every send meets one receive of an equal view, in order per lane and pair of
//                ranks
//   order        steps of a lane, also of the compute lane, do not decrease; no op of a batch
//                conflicts with another of it; there is no cycle of waits, so there is no deadlock
//                even without any buffering
//   undefined    no op reads a value that was never written, or that another tile of the slot
//                replaced
//   twice        no visible pair is counted twice: no partial is merged with one that shares a
//                pair; no row of a head passes `delta` twice, on one rank or on two
//   partial      only partials are accumulated; rounding to the input dtype happens once, when
//                complete
//   complete     every output is whole at the end: every visible (query, key) pair of every head
//                counted exactly once, forward and backward, on the owner of its block; backward,
//                every row of every head has passed `delta`
//
// Attention sinks are not part of a plan, but these rules make them exact. Their gradient is summed
// over the rows that pass `delta`, on all ranks. In forward they are added by `finish`, which makes
// a final tile from a partial without a sink; a final tile never becomes a partial again. So a sink
// is in a result exactly once, however often the result is made.
//
// The proof is at block level; a block pair without a visible pair counts as nothing. A plan
// without a diagnostic is exact for every mask area computed by mask.h, every timing and every
// input.
#pragma once

#include <vector>

#include "armillary/plan/plan.h"
#include "armillary/plan/program/diagnostics.h"

namespace armillary::plan {

/// An empty result means that the plan is exact attention. Otherwise the result has at most `limit`
/// diagnostics, first causes first: structure (blocks, well_formed, zero_copy, match, order), then
/// the run on symbols. Requires limit >= 1. Any plan may be given, also one that was read from a
/// file. Checks of a single rank run on all cores; the result does not depend on their number.
/// @throws InvalidArgument if the problem itself is malformed (`validate`).
/// Cost: O(ops * blocks per view * blocks / 64).
std::vector<Diagnostic> verify(const Plan& plan, int limit = 20);

/// True if a later pass of a rank finds exactly the tiles that its forward pass saves: the same
/// tensors, heads and blocks in the same order.
bool finds_saved(const RankProgram& forward, const RankProgram& later);

/// Proves that `later`, a backward or replay, finds exactly the tiles that `first`, the forward or
/// replay before it, leaves, for the same problem. Requires that each plan is exact on its own.
std::vector<Diagnostic> verify_saved(const Plan& first, const Plan& later, int limit = 20);

/// The verdict about one of several plans.
struct PassVerdict {
  std::vector<Diagnostic> diagnostics;
  /// True for a backward or replay without its forward: it is exact given what forward saves.
  bool assumes_forward = false;
};

/// Proves each plan alone, and those of one problem and strategy together by verify_saved(), in
/// whatever order they stand: each must find what the first exact forward among them saves or,
/// without one, what the first exact replay leaves. One verdict for each plan. @throws as verify().
std::vector<PassVerdict> verify_together(const std::vector<Plan>& plans, int limit = 20);

}  // namespace armillary::plan

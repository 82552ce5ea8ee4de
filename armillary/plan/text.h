// text.h: a plan as a grid to read: a row per step, a column per rank.
//
//             rank 0                           rank 1
//   step 0    kv0>r1 kv1<r1 clear(o0) q0*kv0   kv1>r0 kv0<r0 clear(o1) q1*kv1
//   step 1    q0*kv1 finish(out0)              q1*kv0 finish(out1)   <-- HERE rank 1: no lse
//
//   kv1>r3       send K and V of block 1 to rank 3 (`kv1>r{2,3}`: to both)
//   kv0<r1       receive K and V of block 0 from rank 1
//   q0+kv0>r1    one message of both
//   q2*kv1       attend: queries of block 2 to keys of block 1; `:init` if the op initialises its
//                accumulators instead of adding to them, `:all` if it writes the result
//                (passes/lower.h)
//   grad(q2*kv1) gradients of these pairs; `:init` and `:all` as for attend, `:init_q` or
//                `:init_kv` if the accumulators of one side only are initialised
//   clear(o2)    any other op: its name and the tile it writes
//
//   o            partial output and log-sum-exp (`po`, `plse` one by one); `out`, `lse` are final
//   dkv          gradients of K and V; `dk`, `dv` one by one
//   kv{0,4-7}    blocks 0, 4, 5, 6, 7
//   kv1[0:2]     of heads 0 and 1, where these are not all heads
//
// The sum of a gradient that is not yet complete prints like the gradient. Ops stand in program
// order; ops that print as one token stand at the place of the first of them.
#pragma once

#include <string>
#include <vector>

#include "armillary/plan/plan.h"
#include "armillary/plan/program/grid.h"

namespace armillary::plan {

/// The whole grid. Up to six ranks fit into lines of about 160 columns; many ops of one rank and
/// step wrap. The line of the op of `at`, if given, is marked with `<-- HERE rank r: text`; a
/// diagnostic without an op is marked at the end. Never throws for a broken plan: indices out of
/// range print as `?`. Cost: O(ops).
std::string to_string(const Plan& plan, const Diagnostic* at = nullptr);

/// The words of one rank by step, in the order in which the grid has them.
std::vector<GridWord> grid_words(const Plan& plan, Rank rank);

/// A single op, for messages. K and V of two ops are not joined here: `k1>r3`.
std::string to_string(const Plan& plan, Rank rank, const Op& op);

}  // namespace armillary::plan

// lower.h: a strategy's program made shorter, before it is proved and run.
//
//   fuse      clear(o) q*kv              ->  q*kv:fresh    the call writes o, where it would add
//             q*kv:fresh finish(out)     ->  q*kv:all      the call writes out; there is no o
//             clear(dq, dk, dv) grad(..) ->  grad(..):fresh, and with copy(dq) ..  grad(..):all
//   alias     finish(out), copy(dq) ..       a sum lies where its result will: nothing is moved
//   coalesce  q>r1 kv>r1 of an all-to-all    one message
//   lend      kv>r1, kv<r0                   may be read where the sender has it, without a copy
//
// Each is a pure function from a program to one that does the same, which can be proved, printed
// and run like the first. What a strategy sends, attends to and saves is not changed; only fewer
// bytes of memory are touched, and fewer ops are started.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "armillary/plan/plan.h"

namespace armillary::plan {

/// In the order in which they are done.
enum class Lowering : std::uint8_t { Fuse, Alias, Coalesce, Lend };
inline constexpr std::array kLowerings{Lowering::Fuse, Lowering::Alias, Lowering::Coalesce,
                                       Lowering::Lend};
std::string_view to_string(Lowering lowering);

/// `none`, `all`, or names with commas between them, in any order. @throws InvalidArgument for
/// another name (with the nearest), or one that is given twice.
std::vector<Lowering> parse_lowerings(std::string_view text);

/// Those of `lowerings`, in their own order, on a program in form (verify.h). Cost: O(ops * views).
RankProgram lower(const Problem& problem, const Blocks& blocks, RankProgram program,
                  const std::vector<Lowering>& lowerings = {kLowerings.begin(), kLowerings.end()});
Plan lower(Plan plan,
           const std::vector<Lowering>& lowerings = {kLowerings.begin(), kLowerings.end()});

/// An attend or attend_grad that is one kernel call, and all of whose sums begin with it, writes
/// them; where they also end with it, in one `finish` or in copies that nothing is computed
/// before, it writes the results.
RankProgram fuse(const Problem& problem, const Blocks& blocks, RankProgram program);

/// A whole tile that `finish` or `copy` moves into a result of the same dtype, as the last that is
/// done with it and all that is done with the result, lies in the result's slot. What forward
/// saves gets slots of its own: it is the caller's.
RankProgram alias(const Problem& problem, const Blocks& blocks, RankProgram program);

/// What an all-to-all sends to, or receives from, one peer in one batch travels as one message.
RankProgram coalesce(RankProgram program);

/// A message of one view is a loan where nothing is written over it: a send that no op waits for, a
/// receive of a whole tile that it alone writes. Each rank says it of its own memory.
RankProgram lend(RankProgram program);

}  // namespace armillary::plan

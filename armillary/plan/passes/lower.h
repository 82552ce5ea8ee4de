// lower.h: passes that make a strategy's program shorter before it is proved and run.
//
//   fuse       clear(o) q*kv               ->  q*kv:init     the call initialises o
//              q*kv:init finish(out)       ->  q*kv:all      the call writes out; there is no o
//              clear(dq, dk, dv) grad(..)  ->  grad(..):init
//              grad(..):init copy(dq) ..   ->  grad(..):all
//   alias      finish(out), copy(dq) ..        a sum lies in the memory of its result
//   coalesce   q>r1 kv>r1 of an all-to-all     one message
//   zero_copy  kv>r1, kv<r0                    is read in the sender's memory, without a copy
//
// Each pass is a pure function from a program to an equivalent one, which can be proved, printed
// and run like the first. Passes do not change the data that a strategy sends, attends to and
// saves; fewer bytes of memory are touched, and fewer ops are started.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "armillary/plan/plan.h"

namespace armillary::plan {

/// The passes, in the order in which they run.
enum class Lowering : std::uint8_t { Fuse, Alias, Coalesce, ZeroCopy };
inline constexpr std::array kLowerings{Lowering::Fuse, Lowering::Alias, Lowering::Coalesce,
                                       Lowering::ZeroCopy};
std::string_view to_string(Lowering lowering);

/// Parses `none`, `all`, or names with commas between them, in any order.
/// @throws InvalidArgument for another name (with the nearest), or one that is given twice.
std::vector<Lowering> parse_lowerings(std::string_view text);

/// Runs the given passes in the order of the enum, whatever the order of `lowerings`. Requires a
/// well-formed program (verify.h). Cost: O(ops * views).
RankProgram lower(const Problem& problem, const Blocks& blocks, RankProgram program,
                  const std::vector<Lowering>& lowerings = {kLowerings.begin(), kLowerings.end()});
Plan lower(Plan plan,
           const std::vector<Lowering>& lowerings = {kLowerings.begin(), kLowerings.end()});

/// Marks an attend or attend_grad as `init` and drops the clears before it, if it is one kernel
/// call and its accumulators are cleared and then first touched by it. If nothing else adds to
/// these accumulators, and one `finish` (or one `copy` of each gradient) ends them with no compute
/// op in between, the op becomes attend_all or attend_grad_all and writes the results itself.
RankProgram fuse(const Problem& problem, const Blocks& blocks, RankProgram program);

/// Puts a whole tile into the slot of the result that `finish` or `copy` moves it to, if both have
/// the same dtype, the move is the last use of the tile and the only use of the result.
RankProgram alias(const Problem& problem, const Blocks& blocks, RankProgram program);

/// Joins the messages of an all-to-all that go to one peer, or come from one peer, in one batch.
RankProgram coalesce(RankProgram program);

/// Marks messages of one view as `zero_copy` if nothing is written over the memory: a send that no
/// later op waits for, a receive of a whole tile that no other op writes and that is not the
/// caller's. Each rank decides for its own memory.
RankProgram zero_copy(RankProgram program);

}  // namespace armillary::plan

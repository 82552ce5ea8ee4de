// mutate.h: the small ways to break a plan, to test what judges it.
//
// A mutation changes one op of one rank (or the slot of one tile, or the dtype of one message) and
// leaves the rest alone: the slips of somebody who writes a strategy. Most mutants are wrong; some
// happen to be as good as the plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "armillary/plan/plan.h"

namespace armillary::plan {

/// What is changed, and what `to` and `block` of a Mutation then mean.
enum class Slip : std::uint8_t {
  Dropped,    ///< The op is left out.
  Doubled,    ///< The op is done twice in a row.
  Swapped,    ///< Changes places with its neighbour: op `to`, the next one or the next of its lane.
  OtherPeer,  ///< A send or receive whose peer is rank `to`.
  FewerBlocks,  ///< Other view: `block` is missing from the operands.
  OtherBlock,   ///< Other view: block `to` in place of `block`.
  FewerHeads,   ///< Other view: the first (`to` 0) or last (`to` 1) head is missing.
  OtherTile,    ///< Other view: the operand shows tile `to`, of the same tensor.
  SlotReused,   ///< Tile `tile` lies in slot `to`, made large enough for it.
  OtherBatch,   ///< The op's step is `to`.
  OtherStart,   ///< Of an op that attends: `fresh_q` (`to` 0) or `fresh_kv` (1) is the other way.
  OtherLoan,    ///< Of a message of one view: it is a loan if it was none, and the other way.
  OtherDtype,  ///< A sum that is sent: its tile, and that of receive `to` of the peer, are `narrow`
               ///< if they were not, or are not if they were; slots are made large enough.
};
std::string_view to_string(Slip slip);

struct Mutation {
  Slip slip = Slip::Dropped;
  Rank rank = 0;
  int op = -1;                 ///< Index in the rank's ops; -1 for SlotReused.
  int tile = -1;               ///< SlotReused only.
  std::uint32_t operands = 0;  ///< Bit i: operand i is changed.
  int block = -1;
  int to = -1;
  bool operator==(const Mutation&) const = default;
};

/// All single mutations of a plan, ordered by rank and op; those of messages come last. Views are
/// changed one by one, and together where operands must agree (q with out, lse, ..; k with v, ..),
/// which breaks the sums and not the form. Cost: a few words per mutation, some dozen mutations per
/// op.
std::vector<Mutation> mutations(const Plan& plan);

/// The ranks whose programs a mutation of this plan changes: its own, and of a message the peer.
std::vector<Rank> changed_ranks(const Plan& plan, const Mutation& mutation);

/// Changes the plan, in the programs of `changed_ranks` alone. Requires a mutation of this plan.
void mutate(Plan& plan, const Mutation& mutation);

/// The same with a copy.
Plan apply(const Plan& plan, const Mutation& mutation);

/// `rank 2 op 5: other peer 3`.
std::string to_string(const Mutation& mutation);

}  // namespace armillary::plan

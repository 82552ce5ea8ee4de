// mutate.h: small changes that break the programs of a world, to test their proof.
//
// A mutation changes one op of one rank, the slot of one tile, what a program says of the caller's
// tiles or the dtype of one message, and leaves the rest as it is. These are the mistakes that the
// author of a strategy could make. Most mutants are wrong; some happen to be as good as the
// original.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "armillary/plan/program/measures.h"

namespace armillary::plan {

/// The kind of change. It also says how `to`, `block` and `tile` of a Mutation are read.
enum class MutationKind : std::uint8_t {
  Dropped,        ///< The op is left out.
  Doubled,        ///< The op is done twice in a row.
  Swapped,        ///< The op changes places with op `to`: the next op, or the next of its lane.
  OtherPeer,      ///< The peer of a send or receive is rank `to`; the group of a joint op is `to`.
  FewerBlocks,    ///< The operands lack `block`.
  OtherBlock,     ///< The operands show block `to` in place of `block`.
  FewerHeads,     ///< The operands lack their first (`to` 0) or last (`to` 1) head.
  OtherTile,      ///< The operand shows tile `to` of the same tensor.
  SlotReused,     ///< Tile `tile` lies in slot `to`, made large enough for it.
  OtherExternal,  ///< `external` of slot `to` is flipped.
  OtherSaved,     ///< Saved tile `tile`, by place, changes places with the next.
  OtherBatch,     ///< The op's step is `to`.
  OtherStart,     ///< `init` of side `to` is flipped.
  OtherZeroCopy,  ///< `zero_copy` of a message of one view is flipped.
  /// `narrow` is flipped for the tile of a sum that is sent and for the tile of receive `to` of the
  /// peer; their slots are made large enough.
  OtherDtype,
};
std::string_view to_string(MutationKind kind);

/// One change, as a few numbers; fields that a kind does not use are -1 or 0.
struct Mutation {
  MutationKind kind = MutationKind::Dropped;
  Rank rank = 0;
  int op = -1;                 ///< Index in the rank's ops; -1 for a change of no op.
  int tile = -1;               ///< SlotReused and OtherSaved only.
  std::uint32_t operands = 0;  ///< Bit i: operand i is changed.
  int block = -1;              ///< FewerBlocks and OtherBlock only.
  int to = -1;                 ///< See MutationKind.
  bool operator==(const Mutation&) const = default;
};

/// All single mutations, ordered by rank and op; those of OtherDtype come last. Views are changed
/// one by one, and also together if operands are of one side and must agree (q with out, lse, ..;
/// k with v, ..), which breaks the sums but stays well formed. Cost: a few words per mutation, some
/// dozen mutations per op.
std::vector<Mutation> mutations(const World& world);

/// The ranks whose programs a mutation of these changes: its own rank, and for OtherDtype also the
/// peer.
std::vector<Rank> changed_ranks(const std::vector<RankProgram>& ranks, const Mutation& mutation);

/// Changes the programs of `changed_ranks` in place. Requires a mutation of these programs.
void mutate(const Measures& measures, std::vector<RankProgram>& ranks, const Mutation& mutation);

/// One line for test output: `rank 2 op 5: other peer 3`.
std::string to_string(const Mutation& mutation, const Vocabulary& words);

}  // namespace armillary::plan

// blocks.h: the atomic sets of tokens that a plan moves and attends to.
//
// Every run of a rank's shard is cut at the positions where the need of another rank begins or ends
// (the end of a document, the edge of a window), so that a rank needs all of a block or nothing of
// it. Neighbours with the same users are joined again. Strategies lay out the whole plan on blocks
// and leave out the hops that no rank needs (strategies/movement.h).
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/plan/problem.h"

namespace armillary::plan {

/// Tokens that are owned, moved and attended to together. `runs` are global token positions in the
/// owner's memory order.
struct Block {
  Rank owner = 0;
  Runs runs;
  bool operator==(const Block&) const = default;
  std::int64_t tokens() const { return plan::tokens(runs); }
};

/// The blocks of a problem: those of the queries and those of the keys, numbered by owner, then in
/// the owner's memory order. Together they are exactly the tokens of the shards.
struct Blocks {
  std::vector<Block> q;
  std::vector<Block> kv;
  bool operator==(const Blocks&) const = default;
};

/// Cuts the shards of the problem's layout into blocks. Deterministic, so every rank computes the
/// same blocks. Cost: O((world + cuts) * bands near a block), no loop over tokens.
Blocks make_blocks(const Problem& problem);

}  // namespace armillary::plan

// blocks.h: the atomic sets of tokens that a plan moves and attends to.
//
// Every run of a rank's shard is cut where the mask cuts it (a document's end, a window's halo), so
// that whole blocks are needed or not needed by a rank; neighbours with the same users are joined
// again. Strategies lay out the whole plan on blocks; what nobody needs is then left out (prune.h).
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/plan/problem.h"

namespace armillary::plan {

/// Tokens that are owned, moved and attended to together.
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

/// Cost: O((world + cuts) * bands near a block), no loop over tokens.
Blocks make_blocks(const Problem& problem);

/// Visible pairs of every (query block, key block), computed once per problem and shared by all
/// readers. Immutable.
class BlockAreas {
 public:
  BlockAreas(const Mask& mask, const Blocks& blocks);
  std::int64_t area(int q_block, int kv_block) const {
    return areas_[static_cast<std::size_t>(q_block) * kv_count_ + kv_block];
  }
  bool visible(int q_block, int kv_block) const { return area(q_block, kv_block) > 0; }

 private:
  std::size_t kv_count_ = 0;
  std::vector<std::int64_t> areas_;
};

}  // namespace armillary::plan

// shape.h: a relayout, as numbers: what a cache holds, the layout that it has and the one that it
// gets, and the moves that follow.
//
//   part       the positions that one token rank of `from` has and one of `to` gets
//   block      a part of one layer: what the programs move
//   transfer   the heads of a block that one rank gives to another, or keeps
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "armillary/plan/program/dtype.h"
#include "armillary/plan/relayout/cache_layout.h"
#include "armillary/plan/relayout/words.h"

namespace armillary::plan::relayout {

/// K and V of one sequence, or of several one after the other.
struct CacheShape {
  int layers = 1;
  int kv_heads = 1;
  int head_dim = 64;   ///< Elements of K per token and head.
  int value_dim = 64;  ///< Elements of V.
  Dtype dtype = Dtype::F32;
  bool operator==(const CacheShape&) const = default;
};

struct RelayoutShape {
  CacheShape cache;
  CacheLayout from;
  CacheLayout to;
  int world = 1;  ///< Ranks that there are; those of the layouts are among them.
  bool operator==(const RelayoutShape&) const = default;
};

/// @throws InvalidArgument naming what is wrong and the nearest legal choice.
void check_shape(const RelayoutShape& shape);

/// Positions with one owner before and one after.
struct TokenPart {
  int from = 0;  ///< Token rank in `from`.
  int to = 0;    ///< Token rank in `to`.
  std::int64_t tokens = 0;
};

/// K and V of some heads of one part in one layer. If both ranks are the same, nothing is sent.
struct Transfer {
  int layer = 0;
  Rank from = 0;
  Rank to = 0;
  int part = 0;
  Heads heads;
};

/// Tables that follow from a shape. Copies of a head give in turn: copy i of the new layout is
/// filled by copy i of the old one, modulo their number, or by its own rank if that has the head.
class RelayoutTables {
 public:
  /// @throws InvalidArgument as check_shape(). Cost: O(layers * pairs of ranks that meet).
  explicit RelayoutTables(RelayoutShape shape);

  const RelayoutShape& shape() const { return shape_; }
  /// The parts that are not empty, by the token rank of `from`.
  const std::vector<TokenPart>& parts() const { return parts_; }
  /// All transfers, by layer, then by the rank that gets, then by the rank that gives.
  const std::vector<Transfer>& transfers() const { return transfers_; }

  int block(int layer, int part) const { return layer * static_cast<int>(parts_.size()) + part; }
  int layer_of(int block) const { return block / static_cast<int>(parts_.size()); }
  int part_of(int block) const { return block % static_cast<int>(parts_.size()); }

  /// The tile of a tensor that a rank has in a layer, and the one that it gets, without a slot.
  /// Nothing if it has none.
  std::optional<Tile> source_tile(Rank rank, int layer, RelayoutTensor tensor) const;
  std::optional<Tile> target_tile(Rank rank, int layer, RelayoutTensor tensor) const;
  /// All of them in the order of RankProgram::inputs and outputs: layer by layer, K, then V.
  std::vector<Tile> source_tiles(Rank rank) const;
  std::vector<Tile> target_tiles(Rank rank) const;

  /// Bytes of K and V of a transfer, and of all between two ranks that differ: the closed form of
  /// what a relayout moves.
  std::int64_t bytes(const Transfer& transfer) const;
  std::int64_t moved_bytes() const;

 private:
  void add_parts();
  void add_transfers(int layer, Rank to);
  bool gives(Rank from, Rank to, const Heads& heads) const;
  std::optional<Tile> tile(const CacheLayout& layout, Rank rank, int layer,
                           RelayoutTensor tensor) const;

  RelayoutShape shape_;
  std::vector<TokenPart> parts_;
  std::vector<Transfer> transfers_;
};

}  // namespace armillary::plan::relayout

// cache_layout.h: the place of K and V in a cache that is spread over ranks: who holds which
// layers, heads and positions.
//
//   ranks      first, first + 1, ..: head groups are neighbours, then token ranks, then stages
//   stages     layers cut over pipeline stages, [i L / s, (i + 1) L / s)
//   groups     KV heads cut over head groups, [i G / u, (i + 1) G / u); with more groups than heads
//              u / G neighbours have copies of a head
//   extents    positions, one extent after the other, each dealt over the token ranks by a layout
//
// An extent is what one prefill wrote, or all that decode adds: a cache that was filled in pieces
// has as many extents, and none of them moves when the next one comes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "armillary/plan/layout.h"
#include "armillary/plan/program/program.h"

namespace armillary::plan::relayout {

/// Positions that one layout deals over the token ranks.
struct CacheExtent {
  std::int64_t tokens = 0;
  Layout layout;  ///< contiguous, zigzag or striped; balanced needs a mask.
  /// Tokens that the layout deals before and behind those of the extent: others of one pass. With
  /// as many before as there are positions, stripes go on where they would be without extents.
  std::int64_t skipped = 0;
  std::int64_t behind = 0;
  bool operator==(const CacheExtent&) const = default;
};

struct CacheLayout {
  std::vector<CacheExtent> extents;
  int ranks = 1;  ///< stages * token ranks * head groups.
  Rank first = 0;
  int head_groups = 1;
  int stages = 1;
  bool operator==(const CacheLayout&) const = default;

  int token_ranks() const { return ranks / (stages * head_groups); }
  /// Positions of all extents.
  std::int64_t tokens() const;
};

/// All positions by one layout.
CacheLayout one_extent(std::int64_t tokens, const Layout& layout, int ranks);

/// The coordinates of a rank in a layout.
struct CachePlace {
  int stage = 0;
  int token_rank = 0;
  int head_group = 0;
  bool operator==(const CachePlace&) const = default;
};
/// Nothing if the rank holds no part.
std::optional<CachePlace> place_of(const CacheLayout& layout, Rank rank);
Rank rank_of(const CacheLayout& layout, const CachePlace& place);

/// By token rank, its positions, ascending: run after run. Cost: O(extents * token ranks).
std::vector<Runs> token_runs(const CacheLayout& layout);

/// The layers of a stage.
Interval layers_of(const CacheLayout& layout, int layers, int stage);
/// The KV heads of a head group.
Heads heads_of(const CacheLayout& layout, int kv_heads, int head_group);
/// Head groups with the same heads: 1 unless there are more groups than heads.
int copies_of(const CacheLayout& layout, int kv_heads);

/// `zigzag over ranks 0-3`, `striped:16 over ranks 0-7, 2 head groups, 2 stages`; several extents
/// are joined by ` then `.
std::string to_string(const CacheLayout& layout);

}  // namespace armillary::plan::relayout

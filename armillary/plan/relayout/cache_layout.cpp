// cache_layout.cpp: extents are dealt as whole sequences, then cut behind what they skip and moved
// to their positions.
#include "armillary/plan/relayout/cache_layout.h"

#include <fmt/format.h>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"

namespace armillary::plan::relayout {

std::int64_t CacheLayout::tokens() const {
  std::int64_t total = 0;
  for (const CacheExtent& extent : extents) total += extent.tokens;
  return total;
}

CacheLayout one_extent(std::int64_t tokens, const Layout& layout, int ranks) {
  return {.extents = {{.tokens = tokens, .layout = layout}}, .ranks = ranks};
}

std::optional<CachePlace> place_of(const CacheLayout& layout, Rank rank) {
  const int index = rank - layout.first;
  if (index < 0 || index >= layout.ranks) return std::nullopt;
  const int of_tokens = index / layout.head_groups;
  return CachePlace{.stage = of_tokens / layout.token_ranks(),
                    .token_rank = of_tokens % layout.token_ranks(),
                    .head_group = index % layout.head_groups};
}

Rank rank_of(const CacheLayout& layout, const CachePlace& place) {
  const int of_tokens = place.stage * layout.token_ranks() + place.token_rank;
  return layout.first + of_tokens * layout.head_groups + place.head_group;
}

std::vector<Runs> token_runs(const CacheLayout& layout) {
  std::vector<Runs> by_rank(static_cast<std::size_t>(layout.token_ranks()));
  std::int64_t begin = 0;
  for (const CacheExtent& extent : layout.extents) {
    ARMILLARY_CHECK(extent.layout.kind != LayoutKind::Balanced);
    const Interval dealt{extent.skipped, extent.skipped + extent.tokens};
    // Keys without queries: the shards of keys alone are made.
    const Shards shards =
        plan::shards(extent.layout, Mask(0, dealt.end + extent.behind, {}), layout.token_ranks());
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
      for (Run run : clip(shards.kv[rank], dealt)) {
        run.begin += begin - extent.skipped;
        by_rank[rank].push_back(run);
      }
    }
    begin += extent.tokens;
  }
  return by_rank;
}

Interval layers_of(const CacheLayout& layout, int layers, int stage) {
  return {piece_begin(layers, layout.stages, stage),
          piece_begin(layers, layout.stages, std::int64_t{stage} + 1)};
}

int copies_of(const CacheLayout& layout, int kv_heads) {
  return layout.head_groups > kv_heads ? layout.head_groups / kv_heads : 1;
}

Heads heads_of(const CacheLayout& layout, int kv_heads, int head_group) {
  if (layout.head_groups > kv_heads) {
    const int head = head_group / copies_of(layout, kv_heads);
    return {head, head + 1};
  }
  const auto begin = [&](std::int64_t group) {
    return static_cast<int>(piece_begin(kv_heads, layout.head_groups, group));
  };
  return {begin(head_group), begin(std::int64_t{head_group} + 1)};
}

std::string to_string(const CacheLayout& layout) {
  std::string text;
  for (const CacheExtent& extent : layout.extents) {
    if (!text.empty()) text += " then ";
    text += plan::to_string(extent.layout);
  }
  if (text.empty()) text = "nothing";
  text += layout.ranks == 1
              ? fmt::format(" on rank {}", layout.first)
              : fmt::format(" over ranks {}-{}", layout.first, layout.first + layout.ranks - 1);
  if (layout.head_groups > 1) text += fmt::format(", {} head groups", layout.head_groups);
  if (layout.stages > 1) text += fmt::format(", {} stages", layout.stages);
  return text;
}

}  // namespace armillary::plan::relayout

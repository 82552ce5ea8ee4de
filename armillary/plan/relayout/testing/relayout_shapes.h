// relayout_shapes.h: small relayouts between all kinds of layouts, for tests.
#pragma once

#include <string>
#include <vector>

#include "armillary/plan/relayout/shape.h"

namespace armillary::plan::relayout {

inline constexpr CacheShape kSmallCache{
    .layers = 3, .kv_heads = 2, .head_dim = 3, .value_dim = 2, .dtype = Dtype::Bf16};

/// Layouts of so many tokens over at most four ranks of a world of five: all kinds, several
/// extents, heads in parts, whole and copied, stages.
inline std::vector<CacheLayout> small_layouts(std::int64_t tokens) {
  const Layout contiguous{};
  const Layout zigzag{.kind = LayoutKind::Zigzag};
  const Layout by_token{.kind = LayoutKind::Striped, .stripe = 1};
  const Layout by_page{.kind = LayoutKind::Striped, .stripe = 4};
  std::vector<CacheLayout> layouts;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Layout& layout : {contiguous, zigzag, by_token, by_page}) {
      layouts.push_back(one_extent(tokens, layout, ranks));
    }
  }
  // A prompt in two chunks, then tokens that decode has added by page.
  const std::int64_t prompt = tokens / 2;
  layouts.push_back({.extents = {{.tokens = prompt / 3, .layout = zigzag},
                                 {.tokens = prompt - prompt / 3, .layout = zigzag, .behind = 5},
                                 {.tokens = tokens - prompt, .layout = by_page, .skipped = prompt}},
                     .ranks = 3});
  for (const Rank first : {0, 1}) {
    CacheLayout layout = one_extent(tokens, by_page, 4);
    layout.first = first;
    layout.head_groups = 2;
    layouts.push_back(layout);
    layout.head_groups = 4;  // Two copies of each head.
    layouts.push_back(layout);
    layout.head_groups = 1;
    layout.stages = 2;
    layouts.push_back(layout);
    layout.head_groups = 2;
    layouts.push_back(layout);
  }
  return layouts;
}

inline std::string name_of(const RelayoutShape& shape) {
  return to_string(shape.from) + " -> " + to_string(shape.to);
}

/// Every layout into every other one.
inline std::vector<RelayoutShape> small_relayouts(std::int64_t tokens) {
  std::vector<RelayoutShape> shapes;
  for (const CacheLayout& from : small_layouts(tokens)) {
    for (const CacheLayout& to : small_layouts(tokens)) {
      shapes.push_back({.cache = kSmallCache, .from = from, .to = to, .world = 5});
    }
  }
  return shapes;
}

}  // namespace armillary::plan::relayout

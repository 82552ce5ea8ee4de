// Masks of kinds are made once, and blocks without ranges too; ranges are added where they are.
#include "armillary/text/tokenizer/code_point_set.h"

#include <algorithm>
#include <array>
#include <unordered_map>

namespace armillary::tokenizer {

SetTable::SetTable(std::span<const CodePointSet> sets) {
  std::array<SetMask, kKinds> of_kind{};
  SetMask negated = 0;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const SetMask bit = SetMask{1} << i;
    if (sets[i].is_negated) negated |= bit;
    for (int kind = 0; kind < kKinds; ++kind) {
      if ((sets[i].kinds >> kind & 1U) != 0) of_kind[static_cast<std::size_t>(kind)] |= bit;
    }
  }
  // Blocks without ranges are those of their kinds.
  std::unordered_map<int, std::uint32_t> places;
  for (std::uint32_t first = 0; first < kCodePoints; first += kKindBlock) {
    const std::uint32_t end = first + kKindBlock;
    const bool has_range = std::ranges::any_of(sets, [&](const CodePointSet& set) {
      return std::ranges::any_of(set.ranges, [&](const CodePointRange& range) {
        return range.first < end && range.last >= first;
      });
    });
    const auto here = static_cast<std::uint32_t>(blocks_.size());
    if (!has_range) {
      const auto [place, is_new] = places.try_emplace(kind_block(first), here);
      index_.push_back(place->second);
      if (!is_new) continue;
    } else {
      index_.push_back(here);
    }
    for (std::uint32_t c = first; c < end; ++c) {
      SetMask mask = of_kind[static_cast<std::size_t>(kind_of_code_point(c))];
      for (std::size_t i = 0; has_range && i < sets.size(); ++i) {
        const bool is_in = std::ranges::any_of(sets[i].ranges, [&](const CodePointRange& range) {
          return range.first <= c && c <= range.last;
        });
        if (is_in) mask |= SetMask{1} << i;
      }
      blocks_.push_back(mask ^ negated);
    }
  }
}

}  // namespace armillary::tokenizer

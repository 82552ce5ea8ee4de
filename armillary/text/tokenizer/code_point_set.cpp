// Masks of kinds are made once; ranges are then added to the code points in them.
#include "armillary/text/tokenizer/code_point_set.h"

#include <algorithm>
#include <array>
#include <map>

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
  std::map<std::array<SetMask, kBlockSize>, std::uint32_t> places;
  for (std::uint32_t first = 0; first < kCodePoints; first += kBlockSize) {
    std::array<SetMask, kBlockSize> block{};
    for (std::uint32_t j = 0; j < kBlockSize; ++j) {
      block[j] = of_kind[static_cast<std::size_t>(kind_of_code_point(first + j))];
    }
    for (std::size_t i = 0; i < sets.size(); ++i) {
      for (const CodePointRange& range : sets[i].ranges) {
        const std::uint32_t begin = std::max(range.first, first);
        const std::uint32_t end = std::min(range.last + 1, first + kBlockSize);
        for (std::uint32_t c = begin; c < end; ++c) block[c - first] |= SetMask{1} << i;
      }
    }
    for (SetMask& mask : block) mask ^= negated;
    const auto [place, is_new] =
        places.try_emplace(block, static_cast<std::uint32_t>(blocks_.size()));
    if (is_new) blocks_.insert(blocks_.end(), block.begin(), block.end());
    index_.push_back(place->second);
  }
}

}  // namespace armillary::tokenizer

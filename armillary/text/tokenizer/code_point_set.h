// code_point_set.h: sets of code points as patterns write them, and a table of many of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "armillary/text/tokenizer/unicode.h"

namespace armillary::tokenizer {

/// Code points from first to last, both included.
struct CodePointRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0;

  bool operator==(const CodePointRange&) const = default;
};

/// A union of kinds and ranges, or everything else.
struct CodePointSet {
  KindSet kinds = 0;
  std::vector<CodePointRange> ranges;
  bool is_negated = false;

  bool operator==(const CodePointSet&) const = default;
};

/// Sets of a code point, a bit each: bit i is set i.
using SetMask = std::uint64_t;
inline constexpr std::size_t kMostSets = 64;

/// The sets of every code point.
class SetTable {
 public:
  /// Requires at most kMostSets sets. Cost: some 0.2 ms, and O(code points in ranges).
  explicit SetTable(std::span<const CodePointSet> sets);

  SetMask at(std::uint32_t code_point) const {
    return blocks_[index_[code_point / kKindBlock] + code_point % kKindBlock];
  }

 private:
  std::vector<SetMask> blocks_;
  std::vector<std::uint32_t> index_;  ///< First element of the block in blocks_.
};

}  // namespace armillary::tokenizer

// counted.h: what each cell of a partial tile sums over. Internal to verify.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace armillary::plan::verifier {

/// A set of block classes: is bit b % 64 of word b / 64 set? Sets that meet have the same number of
/// words.
using Bits = std::vector<std::uint64_t>;

inline std::size_t words_for(int blocks) {
  return (static_cast<std::size_t>(blocks) + 63) / 64;
}
inline void put(Bits& bits, int block) {
  bits[block / 64] |= std::uint64_t{1} << (block % 64);
}

/// For every cell, and for every reader (the classes of query heads that read its KV heads, counted
/// from 0; of query-side tensors there is one), the set of blocks of the other side that are
/// counted. A rank computes for few readers: those that counted nothing in any cell take no place.
class Counted {
 public:
  /// So many cells, in which nothing is counted, with sets of so many words.
  void reset(int cells, std::size_t words);
  bool empty() const { return cells_ == 0; }

  /// Counts the blocks that are both in `a` and in `b`. Returns one that was counted before, or -1.
  int add(int cell, int reader, const Bits& a, const Bits& b);

  /// Counts all that a cell of `other` counts. Returns false if both counted something already.
  bool add(int cell, const Counted& other, int its_cell);

  void clear(int cell);
  void copy(int cell, const Counted& other, int its_cell);
  bool equal(int cell, const Counted& other, int its_cell) const;

  /// A block of `required` that is not counted, or -1.
  int missing(int cell, int reader, const Bits& required) const;

 private:
  std::span<std::uint64_t> set(int cell, std::size_t reader);
  /// Empty if the reader counted nothing in any cell.
  std::span<const std::uint64_t> set(int cell, std::size_t reader) const;

  std::size_t cells_ = 0;
  std::size_t words_ = 0;                              ///< Of a set.
  std::vector<std::vector<std::uint64_t>> by_reader_;  ///< The sets of all cells, or none.
};

}  // namespace armillary::plan::verifier

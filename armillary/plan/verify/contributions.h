// contributions.h: the blocks that each cell of a partial tile sums over. Internal to verify.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "armillary/core/small_vector.h"
#include "armillary/plan/verify/classes.h"

namespace armillary::plan::verifier {

/// A set of block classes: class b is in it if bit b % 64 of word b / 64 is set. Sets that are
/// combined have the same number of words.
using Bits = std::vector<std::uint64_t>;

/// Words of a set of `blocks` classes.
inline std::size_t words_for(int blocks) {
  return (static_cast<std::size_t>(blocks) + 63) / 64;
}
/// Adds a class to a set.
inline void put(Bits& bits, int block) {
  bits[block / 64] |= std::uint64_t{1} << (block % 64);
}

/// For every cell and every reader, the set of blocks of the other side whose contribution is in
/// the sum. The readers of a cell of dK or dV are the classes of query heads that read its KV
/// heads, counted from 0; a cell of a query-side tensor has one reader. Attend and merge add to the
/// sets. A rank computes for few readers, so a reader without a contribution in any cell takes no
/// memory.
class Contributions {
 public:
  /// Begins again with `cells` cells, all without contributions, and sets of `words` words.
  void reset(int cells, std::size_t words);
  bool empty() const { return cells_ == 0; }
  int cells() const { return static_cast<int>(cells_); }
  std::size_t words() const { return words_; }  ///< Words of each set.

  /// Adds the blocks of `range` that are in `bits`. Returns -1, or a block that was there already.
  /// Requires a block in `range`.
  int add(int cell, int reader, const Bits& bits, ClassRange range);

  /// Adds all contributions of a cell of `other`. Returns false if both cells have one of them.
  bool add(int cell, const Contributions& other, int its_cell);

  /// Removes all contributions of a cell.
  void clear(int cell);
  /// Replaces the contributions of a cell by those of a cell of `other`.
  void copy(int cell, const Contributions& other, int its_cell);
  /// The same, with every class renumbered. `renumber` takes a set to the set of the new numbers.
  using Renumber =
      std::function<void(std::span<const std::uint64_t> from, std::span<std::uint64_t> to)>;
  void copy(int cell, const Contributions& other, int its_cell, const Renumber& renumber);
  /// True if both cells have the same contributions.
  bool equal(int cell, const Contributions& other, int its_cell) const;

  /// A block of `required` whose contribution is not there, or -1.
  int missing(int cell, int reader, const Bits& required) const;

 private:
  /// The set of a cell and reader. The first one makes room for it; the second one is empty if the
  /// reader has no memory.
  std::span<std::uint64_t> set(int cell, std::size_t reader);
  std::span<const std::uint64_t> set(int cell, std::size_t reader) const;

  std::size_t cells_ = 0;
  std::size_t words_ = 0;
  /// The sets of all cells, or nothing.
  SmallVector<std::vector<std::uint64_t>, 1> by_reader_;
};

}  // namespace armillary::plan::verifier

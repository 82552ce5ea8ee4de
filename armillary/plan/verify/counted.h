// counted.h: what one (block, head class) of a partial sums over. Internal to verify.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace armillary::plan::verifier {

/// A set of blocks: is bit b % 64 of word b / 64 set? Sets that meet have the same number of words.
using Bits = std::vector<std::uint64_t>;

inline std::size_t words_for(std::size_t blocks) {
  return (blocks + 63) / 64;
}
inline void put(Bits& bits, std::size_t block) {
  bits[block / 64] |= std::uint64_t{1} << (block % 64);
}

/// For every reader (class of query heads that reads a KV head; of query-side tensors there is one,
/// 0) the blocks of the other side that are counted. A rank computes for few readers, so those
/// that counted nothing take no place.
class Counted {
 public:
  /// Counts the blocks that are both in `a` and in `b`. Returns one that was counted before, or -1.
  int add(int reader, std::span<const std::uint64_t> a, std::span<const std::uint64_t> b);

  /// Counts all that `more` counts. Returns false if both counted something already.
  bool add(const Counted& more);

  /// A block of `required` that is not counted, or -1.
  int missing(int reader, const Bits& required) const;

  bool operator==(const Counted&) const = default;

 private:
  std::size_t find(std::uint64_t reader, std::size_t words) const;
  std::uint64_t* part(std::uint64_t reader, std::size_t words);

  std::size_t words_ = 0;  ///< Of a set.
  /// For each reader, ascending, its number and the words of its set. No set is empty, so that
  /// equal ones compare equal.
  std::vector<std::uint64_t> parts_;
};

}  // namespace armillary::plan::verifier

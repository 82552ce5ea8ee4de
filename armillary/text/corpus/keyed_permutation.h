// keyed_permutation.h: an order of n things that is computed, not stored.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace armillary::corpus {

/// 64 bits that depend on all of the numbers and on their order.
std::uint64_t mixed_key(std::initializer_list<std::uint64_t> numbers);

/// A permutation of [0, n) that depends on n and the key alone, on every platform. Each element
/// costs O(1), whichever it is: a Feistel network over the least power of 4 from n on, walked until
/// it is below n. Method: Black and Rogaway 2002, "Ciphers with arbitrary finite domains".
class KeyedPermutation {
 public:
  /// Requires n >= 1.
  KeyedPermutation(std::uint64_t n, std::uint64_t key);

  /// Requires i < n.
  std::uint64_t at(std::uint64_t i) const;

 private:
  std::uint64_t n_;
  std::uint64_t key_;
  unsigned half_bits_ = 1;
};

}  // namespace armillary::corpus

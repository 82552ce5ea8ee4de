#include "armillary/text/corpus/keyed_permutation.h"

#include <bit>

namespace armillary::corpus {
namespace {

constexpr unsigned kRounds = 6;

/// The finisher of SplitMix64.
std::uint64_t scrambled(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ x >> 30U) * 0xBF58476D1CE4E5B9U;
  x = (x ^ x >> 27U) * 0x94D049BB133111EBU;
  return x ^ x >> 31U;
}

}  // namespace

std::uint64_t mixed_key(std::initializer_list<std::uint64_t> numbers) {
  std::uint64_t key = 0;
  for (const std::uint64_t number : numbers) key = scrambled(key ^ number);
  return key;
}

KeyedPermutation::KeyedPermutation(std::uint64_t n, std::uint64_t key) : n_(n), key_(key) {
  const auto bits = static_cast<unsigned>(std::bit_width(n - 1));
  if (bits > 2) half_bits_ = (bits + 1) / 2;
}

std::uint64_t KeyedPermutation::at(std::uint64_t i) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  do {
    std::uint64_t left = i >> half_bits_;
    std::uint64_t right = i & mask;
    for (unsigned round = 0; round < kRounds; ++round) {
      const std::uint64_t next = left ^ (scrambled(key_ ^ scrambled(right << 3U | round)) & mask);
      left = right;
      right = next;
    }
    i = left << half_bits_ | right;
  } while (i >= n_);
  return i;
}

}  // namespace armillary::corpus

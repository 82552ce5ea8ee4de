// digest.h: 128 bits that tell one program, or one problem, from another.
//
// Ranks compare digests before they exchange tiles, and a recorded proof is found by one. XXH3: not
// for secrets, but no two inputs that people make are alike in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "armillary/plan/plan.h"
#include "armillary/plan/strategy.h"

namespace armillary::proof {

struct Digest {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const Digest&) const = default;
  /// Any order, for maps.
  bool operator<(const Digest& other) const {
    return high != other.high ? high < other.high : low < other.low;
  }
};

std::string to_string(const Digest& digest);  ///< 32 hexadecimal digits.

Digest digest_of(std::string_view text);

/// Digest of a problem and a strategy; equal on every machine. Cost: O(bands of the mask).
Digest digest_of(const plan::Problem& problem, const plan::Strategy& strategy);

Digest digest_of(const plan::Blocks& blocks);

/// Digest of a program over these blocks; ranks differ in it. Cost: O(ops * views).
Digest digest_of(const plan::RankProgram& program, const Digest& blocks);

/// The version of this library, "0.1.0", and that of its proofs, which is raised when `verify`
/// would judge a program otherwise.
std::string_view version();
inline constexpr int kProofVersion = 1;

}  // namespace armillary::proof

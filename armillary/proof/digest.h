// digest.h: 128 bits that tell one program, or one problem, from another.
//
// Ranks compare digests of their programs instead of the programs, and a recorded proof is found by
// the digest of its problem. The hash is XXH3: it does not resist an attacker, but inputs that were
// not made to collide do not in practice. A digest covers every field of its input, so two inputs
// that differ in one field have different digests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "armillary/plan/plan.h"
#include "armillary/plan/strategies/strategy.h"

namespace armillary::proof {

/// The two halves of an XXH3 hash. The default stands for no input.
struct Digest {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const Digest&) const = default;
  /// An order without a meaning, for maps.
  bool operator<(const Digest& other) const {
    return high != other.high ? high < other.high : low < other.low;
  }
};

std::string to_string(const Digest& digest);  ///< 32 hexadecimal digits.

/// Digest of the bytes of a text.
Digest digest_of(std::string_view text);

/// Digest of a problem and a strategy: the key of its proof. Equal on every machine of one byte
/// order. Cost: O(bands of the mask).
Digest digest_of(const plan::Problem& problem, const plan::Strategy& strategy);

/// The same of a problem and a text that stands for a strategy, such as `auto:cluster=c6`.
Digest digest_of_text(const plan::Problem& problem, std::string_view strategy);

/// Digest of the blocks of a problem, which all ranks share. Cost: O(runs of all blocks).
Digest digest_of(const plan::Blocks& blocks);

/// Digest of the program of one rank, with the digest of the blocks that it is about. It includes
/// the rank, so no two ranks have the same. Cost: O(ops * views).
Digest digest_of(const plan::RankProgram& program, const Digest& blocks);

/// The version of this library, such as "0.1.0".
std::string_view version();
/// The version of proofs. It is raised when `verify` would judge a program differently.
inline constexpr int kProofVersion = 1;

}  // namespace armillary::proof

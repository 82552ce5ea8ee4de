// mask.h: which keys a query sees, as a union of disjoint bands.
//
// A band is a rectangle of (query, key) pairs cut by two diagonals:
//
//   q.begin <= q < q.end,   k.begin <= k < k.end,   lo <= k - q <= hi
//
// Full, causal, sliding window, prefix, packed documents and block-causal masks are all a few
// bands, so every mask has a closed-form area against any two sets of tokens, and strategies,
// layouts and kernels know nothing of mask names. A mask is never replaced by another one:
// what cannot be expressed is refused when it is parsed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "armillary/plan/runs.h"

namespace armillary::plan {

struct Band {
  Interval q;
  Interval k;
  std::int64_t lo = Distance::kAnyLo;  ///< Smallest k - q that is visible.
  std::int64_t hi = Distance::kAnyHi;  ///< Largest k - q that is visible.
  bool operator==(const Band&) const = default;

  bool empty() const { return q.empty() || k.empty() || lo > hi; }
};

/// `Q0-Q1/K0-K1/LO..HI`, as parse_mask() reads it.
std::string to_string(const Band& band);

/// The same pairs with the smallest ranges, lo and hi; an empty() band if there are no pairs. Every
/// query of a tight band sees a key, every key is seen, and lo and hi occur. Cost: O(1).
Band tight(const Band& band);

/// The pairs that both hold, tight. Bands are closed under intersection.
Band intersect(const Band& a, const Band& b);

/// Longest sequence: leaves room for sums and differences of positions in 64 bits.
inline constexpr std::int64_t kMaxLength = std::int64_t{1} << 56;

/// A mask over `q_len` queries and `kv_len` keys. Its bands are tight, disjoint and sorted by
/// (q.begin, k.begin): masks made of equal bands compare equal. Immutable; threads may share it.
///
/// Cost: area and empty take O(1) for every two runs and band near both; keys_of and queries_of
/// O(log) and O(1) for every band near. Near bands (one or two, within packed documents) are found
/// in O(log).
class Mask {
 public:
  Mask() = default;

  /// Any list of bands; empty ones are dropped, the others made tight.
  /// @throws InvalidArgument if a length is not in [0, kMaxLength], a range leaves the lengths or
  /// two bands overlap (names both and a pair). Cost: O(n log n + n * bands that share a query).
  Mask(std::int64_t q_len, std::int64_t kv_len, std::vector<Band> bands);

  std::int64_t q_len() const { return q_len_; }
  std::int64_t kv_len() const { return kv_len_; }
  const std::vector<Band>& bands() const { return bands_; }

  bool visible(std::int64_t q, std::int64_t k) const;

  /// Number of visible pairs between two sets of tokens; of all of them without arguments.
  /// @throws InvalidArgument if there are 2^63 pairs or more.
  std::int64_t area(const Runs& q, const Runs& k) const;
  std::int64_t area() const;

  /// area(q, k) == 0, but stops at the first visible pair.
  bool empty(const Runs& q, const Runs& k) const;

  /// Keys (queries) seen by at least one of (seeing at least one of) the positions of `range`, as
  /// sorted disjoint intervals that do not touch. Used to cut blocks at mask edges.
  std::vector<Interval> keys_of(Interval q_range) const;
  std::vector<Interval> queries_of(Interval k_range) const;

  bool operator==(const Mask&) const = default;

 private:
  /// Bounds over all bands before this one and it (ends), or over it and all after it (begins):
  /// what makes bands near an interval a binary search, in whatever order and overlap they are.
  struct Reach {
    Interval q;
    Interval k;
    bool operator==(const Reach&) const = default;
  };

  /// All bands that touch the rectangle q x k, and few others.
  std::span<const Band> near(Interval q, Interval k) const;

  std::int64_t q_len_ = 0;
  std::int64_t kv_len_ = 0;
  std::vector<Band> bands_;
  std::vector<Reach> reach_;
};

/// Where a causal or window mask puts its diagonal when there are more keys than queries (or
/// fewer): the first query sits on the first key, or the last query on the last key.
enum class Align : std::uint8_t { Start, End };

struct Lengths {
  std::int64_t q = 0;
  std::int64_t kv = 0;
};

/// What a query sees of its own sequence: all of it, the keys up to itself, or so many keys to the
/// left and right of itself.
struct Full {};
struct Causal {};
struct Window {
  std::int64_t left = 0;
  std::int64_t right = 0;
};
using Within = std::variant<Causal, Full, Window>;

/// All of these throw InvalidArgument on lengths that no Mask can have, and on negative sizes.
Mask full_mask(Lengths lengths);
Mask causal_mask(Lengths lengths, Align align);
Mask window_mask(Lengths lengths, Window window, Align align);
/// The first `prefix` keys are visible to all, the rest causally. Requires prefix <= lengths.kv.
Mask prefix_mask(Lengths lengths, std::int64_t prefix, Align align);
/// Queries of block b (of `block` tokens) see the keys of blocks 0 to b. Lengths must be equal.
/// @throws InvalidArgument above 2^22 blocks, each of which is a band.
Mask block_causal_mask(Lengths lengths, std::int64_t block);
/// Documents of the given lengths, one after the other; each attends to itself only.
/// @throws InvalidArgument if the two lengths differ, a document is negative or they do not add up.
Mask documents_mask(Lengths lengths, const std::vector<std::int64_t>& documents,
                    const Within& within = Causal{});

/// Parses a mask as it is written on the command line:
///
///   full
///   causal[:align=start|end]                       align is required when lengths differ
///   window:left=L,right=R[,align=..]
///   prefix:N[,align=..]
///   block_causal:B
///   documents:LEN,LEN,..[,within=causal|full|window,left=L,right=R]     default: causal
///   bands:Q0-Q1/K0-K1/LO..HI;..                    half-open ranges, inclusive LO..HI (`..` = any)
///
/// Numbers are whole and not negative, but for LO and HI. Nothing is guessed, nothing is skipped.
/// @throws InvalidArgument: one line with what was given, what is required and the nearest legal
/// name.
Mask parse_mask(std::string_view text, Lengths lengths);

}  // namespace armillary::plan

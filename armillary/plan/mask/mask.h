// mask.h: which keys a query sees, as a union of disjoint bands.
//
// A band is a rectangle of (query, key) pairs cut by two diagonals:
//
//   q.begin <= q < q.end,   k.begin <= k < k.end,   lo <= k - q <= hi
//
// Full, causal, sliding window, prefix, packed documents and block-causal masks are all a few
// bands. So every mask has a closed-form area against any two sets of tokens, and strategies,
// layouts and kernels know nothing of mask names. A mask is never replaced by a similar one: a mask
// that cannot be expressed is refused when it is parsed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "armillary/plan/runs.h"

namespace armillary::plan {

/// The default lo and hi allow every distance, so a band of q and k alone is a full rectangle.
struct Band {
  Interval q;
  Interval k;
  std::int64_t lo = Distance::kAnyLo;  ///< Smallest k - q that is visible.
  std::int64_t hi = Distance::kAnyHi;  ///< Largest k - q that is visible.
  bool operator==(const Band&) const = default;

  bool empty() const { return q.empty() || k.empty() || lo > hi; }
};

/// Formats a band as `Q0-Q1/K0-K1/LO..HI`, as parse_mask() reads it.
std::string to_string(const Band& band);

/// The same pairs with the smallest ranges, lo and hi; an empty() band if there are no pairs. Every
/// query of a tight band sees a key, every key is seen, and both lo and hi occur. Cost: O(1).
Band tight(const Band& band);

/// The pairs that are in both bands, as a tight band. Bands are closed under intersection.
Band intersect(const Band& a, const Band& b);

/// The longest sequence. It leaves room for sums and differences of positions in 64 bits.
inline constexpr std::int64_t kMaxLength = std::int64_t{1} << 56;

/// A mask over `q_len` queries and `kv_len` keys. Its bands are tight, disjoint and sorted by
/// (q.begin, k.begin): masks made of equal bands compare equal. Immutable; threads may share it.
///
/// Cost: area() and empty() take O(1) for every two runs and band near both; keys_of() and
/// queries_of() take O(1) for every band near. The near bands (one or two for packed documents) are
/// found in O(log bands).
class Mask {
 public:
  Mask() = default;

  /// Takes any list of bands, drops the empty ones and makes the others tight.
  /// @throws InvalidArgument if a length is not in [0, kMaxLength], a range leaves the lengths, or
  /// two bands overlap (names both and a pair). Cost: O(n log n + n * bands that share a query).
  Mask(std::int64_t q_len, std::int64_t kv_len, std::vector<Band> bands);

  std::int64_t q_len() const { return q_len_; }
  std::int64_t kv_len() const { return kv_len_; }
  const std::vector<Band>& bands() const { return bands_; }

  bool visible(std::int64_t q, std::int64_t k) const;

  /// Number of visible pairs between two sets of tokens; without arguments, of the whole mask.
  /// @throws InvalidArgument if there are 2^63 pairs or more.
  std::int64_t area(const Runs& q, const Runs& k) const;
  std::int64_t area() const;

  /// Whether every query sees every key. Requires fewer than 2^63 visible pairs.
  bool shows_all() const;

  /// Equal to area(q, k) == 0, but stops at the first visible pair.
  bool empty(const Runs& q, const Runs& k) const;

  /// Keys that at least one query of the range sees; queries that see at least one key of the
  /// range. Sorted disjoint intervals that do not touch. Used to cut blocks at mask edges.
  std::vector<Interval> keys_of(Interval q_range) const;
  std::vector<Interval> queries_of(Interval k_range) const;

  /// The pairs that are in both masks. Cost: O(log bands) for every band of `a`, and O(1) for every
  /// band of `b` near it: a few for each of two lists of documents.
  /// @throws InvalidArgument if the lengths differ.
  friend Mask intersect(const Mask& a, const Mask& b);

  bool operator==(const Mask&) const = default;

 private:
  /// Bounds over prefixes and suffixes of the bands: the ends are maxima over this band and all
  /// before it, the begins are minima over this band and all after it. They ascend, so bands near
  /// an interval are found by binary search even though bands overlap in q or k.
  struct BandReach {
    Interval q;
    Interval k;
    bool operator==(const BandReach&) const = default;
  };

  /// All bands that touch the rectangle q x k, and few others.
  std::span<const Band> near(Interval q, Interval k) const;

  std::int64_t q_len_ = 0;
  std::int64_t kv_len_ = 0;
  std::vector<Band> bands_;
  std::vector<BandReach> reach_;
};

/// Position of the diagonal of a causal or window mask if there are more or fewer keys than
/// queries. Start: the first query sits on the first key. End: the last query on the last key.
enum class Align : std::uint8_t { Start, End };

struct Lengths {
  std::int64_t q = 0;
  std::int64_t kv = 0;
};

/// The keys of its own document that a query sees: all of them, those up to itself, or so many to
/// the left and to the right of itself.
struct Full {};
struct Causal {};
struct Window {
  std::int64_t left = 0;
  std::int64_t right = 0;
};
using Within = std::variant<Causal, Full, Window>;

/// The named masks. All throw InvalidArgument on lengths that no Mask can have, and on negative
/// sizes.
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

/// The mask of sequences one after another, of which no token sees those of another. Requires one
/// mask at least, each of as many keys as queries.
Mask joined_mask(std::span<const Mask> masks);

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

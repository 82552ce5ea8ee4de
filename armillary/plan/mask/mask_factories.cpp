// The named masks as bands. This is the only file that knows their definitions; everything else
// sees bands. Each function checks its sizes, then lists the bands.
#include <algorithm>
#include <utility>

#include "armillary/core/checked.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/plan/mask/mask.h"

namespace armillary::plan {
namespace {

/// The most blocks of block_causal, each of which is a band.
constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 22;

/// Lengths are checked by a mask without bands, before anything is computed from them.
void check(Lengths lengths) {
  Mask(lengths.q, lengths.kv, {});
}

void check_equal(std::string_view where, Lengths lengths) {
  check(lengths);
  if (lengths.q != lengths.kv) {
    fail<InvalidArgument>("{}: {} and {} given; equal lengths are required", where,
                          count_of(lengths.q, "query", "queries"), count_of(lengths.kv, "key"));
  }
}

/// The distance k - q on the diagonal.
std::int64_t diagonal(Lengths lengths, Align align) {
  check(lengths);
  return align == Align::Start ? 0 : lengths.kv - lengths.q;
}

// The distances k - q that a rule allows within one document.
Distance within(const Full&) {
  return {};
}
Distance within(const Causal&) {
  return {.hi = 0};
}
Distance within(const Window& window) {
  if (window.left < 0 || window.right < 0) {
    fail<InvalidArgument>("mask window: left {} and right {} given; at least 0 is required",
                          window.left, window.right);
  }
  // There are no keys farther than kMaxLength, and larger numbers could overflow in sums.
  return {.lo = -std::min(window.left, kMaxLength), .hi = std::min(window.right, kMaxLength)};
}

}  // namespace

Mask full_mask(Lengths lengths) {
  return Mask(lengths.q, lengths.kv, {{.q = {0, lengths.q}, .k = {0, lengths.kv}}});
}

Mask causal_mask(Lengths lengths, Align align) {
  const Band band = {.q = {0, lengths.q}, .k = {0, lengths.kv}, .hi = diagonal(lengths, align)};
  return Mask(lengths.q, lengths.kv, {band});
}

Mask window_mask(Lengths lengths, Window window, Align align) {
  const std::int64_t center = diagonal(lengths, align);
  const auto [lo, hi] = within(window);
  return Mask(lengths.q, lengths.kv, {{{0, lengths.q}, {0, lengths.kv}, center + lo, center + hi}});
}

// Two bands: a full one over the prefix, and a causal one over the rest of the keys.
Mask prefix_mask(Lengths lengths, std::int64_t prefix, Align align) {
  const std::int64_t center = diagonal(lengths, align);
  if (prefix < 0 || prefix > lengths.kv) {
    fail<InvalidArgument>("mask prefix: {} of {} given; 0 to {} is required", prefix,
                          count_of(lengths.kv, "key"), lengths.kv);
  }
  return Mask(lengths.q, lengths.kv,
              {{.q = {0, lengths.q}, .k = {0, prefix}},
               {.q = {0, lengths.q}, .k = {prefix, lengths.kv}, .hi = center}});
}

// One full band per block of queries; the last block may be shorter.
Mask block_causal_mask(Lengths lengths, std::int64_t block) {
  check_equal("mask block_causal", lengths);
  const std::int64_t length = lengths.q;
  if (block < 1 || ceil_div(length, block) > kMaxBlocks) {
    fail<InvalidArgument>("mask block_causal: block {} of {} given; at least {} is required", block,
                          count_of(length, "token"),
                          std::max<std::int64_t>(1, ceil_div(length, kMaxBlocks)));
  }
  std::vector<Band> bands;
  for (std::int64_t begin = 0; begin < length; begin += block) {
    const std::int64_t end = begin + std::min(block, length - begin);
    bands.push_back({.q = {begin, end}, .k = {0, end}});
  }
  return Mask(length, length, std::move(bands));
}

/// The length of the last document that would make the sum right, for the error text; empty if it
/// would be negative.
std::string nearest_last(const std::vector<std::int64_t>& documents, std::int64_t missing) {
  const std::int64_t last = documents.empty() ? 0 : documents.back();
  return last + missing < 0 ? "" : fmt::format("; nearest: {} as the last", last + missing);
}

// One square band on the diagonal per document.
Mask documents_mask(Lengths lengths, const std::vector<std::int64_t>& documents,
                    const Within& within_document) {
  check_equal("mask documents", lengths);
  const Distance distance =
      std::visit([](const auto& rule) { return within(rule); }, within_document);
  std::vector<Band> bands;
  std::int64_t begin = 0;
  for (const std::int64_t length : documents) {
    if (length < 0 || length > kMaxLength - begin) {
      fail<InvalidArgument>(
          "mask documents: a document of {} after {} given; lengths of 0 and "
          "more that add up to {} are required",
          count_of(length, "token"), begin, lengths.q);
    }
    const Interval document = {begin, begin + length};
    bands.push_back({document, document, distance.lo, distance.hi});
    begin = document.end;
  }
  if (begin != lengths.q) {
    fail<InvalidArgument>(
        "mask documents: lengths add up to {}, the sequence has {}; equal "
        "sums are required{}",
        begin, count_of(lengths.q, "token"), nearest_last(documents, lengths.q - begin));
  }
  return Mask(lengths.q, lengths.kv, std::move(bands));
}

}  // namespace armillary::plan

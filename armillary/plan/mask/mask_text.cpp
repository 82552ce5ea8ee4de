// Masks as they are written on the command line and in recipes. parse_mask() looks the name up in a
// table of parsers; each parser reads its own arguments, refuses all others and calls a factory of
// mask.h.
#include <fmt/format.h>

#include <array>
#include <optional>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"
#include "armillary/plan/mask/mask.h"

namespace armillary::plan {
namespace {

using Text = std::optional<std::string_view>;  // The arguments: text after the colon, if any.

/// The value of `align`. It may be left out only for equal lengths, for which both choices agree.
Align parse_align(const Arguments& arguments, Lengths lengths) {
  if (const auto text = arguments.find("align")) {
    constexpr std::array<std::string_view, 2> kNames = {"start", "end"};
    return static_cast<Align>(parse_choice(arguments.where() + " align", *text, kNames));
  }
  if (lengths.q != lengths.kv) {
    fail<InvalidArgument>(
        "{}: {}, {} and no align given; where lengths differ, align=start (first "
        "query on first key) or align=end (last query on last key) is required",
        arguments.where(), count_of(lengths.q, "query", "queries"), count_of(lengths.kv, "key"));
  }
  return Align::Start;
}

/// The keys `left` and `right`, both required.
Window parse_window(const Arguments& arguments) {
  return {.left = arguments.integer("left"), .right = arguments.integer("right")};
}

// One parser for each name, in the order of the table in parse_mask().

Mask parse_full(const Text& text, Lengths lengths) {
  Arguments("mask full", text, {}).refuse_values();
  return full_mask(lengths);
}

Mask parse_causal(const Text& text, Lengths lengths) {
  const Arguments arguments("mask causal", text, {"align"});
  arguments.refuse_values();
  return causal_mask(lengths, parse_align(arguments, lengths));
}

Mask parse_window_mask(const Text& text, Lengths lengths) {
  const Arguments arguments("mask window", text, {"left", "right", "align"});
  arguments.refuse_values();
  return window_mask(lengths, parse_window(arguments), parse_align(arguments, lengths));
}

Mask parse_prefix(const Text& text, Lengths lengths) {
  const Arguments arguments("mask prefix", text, {"align"});
  const std::int64_t prefix =
      parse_integer(arguments.where(), arguments.value("the number of keys that all see"));
  return prefix_mask(lengths, prefix, parse_align(arguments, lengths));
}

Mask parse_block_causal(const Text& text, Lengths lengths) {
  const Arguments arguments("mask block_causal", text, {});
  const std::string_view block = arguments.value("the tokens of a block");
  return block_causal_mask(lengths, parse_integer(arguments.where(), block));
}

/// The rule within a document: `causal` if none is given. `left` and `right` belong to `window`.
Within parse_within(const Arguments& arguments) {
  constexpr std::array<std::string_view, 3> kNames = {"causal", "full", "window"};
  const std::size_t choice = parse_choice(arguments.where() + " within",
                                          arguments.find("within").value_or(kNames[0]), kNames);
  if (choice == 2) return parse_window(arguments);
  for (const std::string_view key : {"left", "right"}) {
    if (arguments.find(key)) {
      fail<InvalidArgument>("{}: {} given without a window; within=window is required",
                            arguments.where(), key);
    }
  }
  if (choice == 1) return Full{};
  return Causal{};
}

/// Lengths without keys, then the keys of the rule within each document.
Mask parse_documents(const Text& text, Lengths lengths) {
  const Arguments arguments("mask documents", text, {"within", "left", "right"});
  std::vector<std::int64_t> documents;
  for (const std::string_view length : arguments.values()) {
    documents.push_back(parse_integer(arguments.where(), length));
  }
  return documents_mask(lengths, documents, parse_within(arguments));
}

constexpr std::string_view kBandsWhere = "mask bands";

[[noreturn]] void refuse_band(std::string_view text) {
  fail<InvalidArgument>("{}: {} given; Q0-Q1/K0-K1/LO..HI is required, such as 0-8/0-8/-3..0",
                        kBandsWhere, quote(text));
}

/// A range `BEGIN-END`; `band` is the whole band, for the error text.
Interval parse_range(std::string_view text, std::string_view band) {
  const std::vector<std::string_view> ends = split(text, '-');
  if (ends.size() != 2) refuse_band(band);
  return {parse_integer(kBandsWhere, ends[0]), parse_integer(kBandsWhere, ends[1])};
}

/// A band `Q0-Q1/K0-K1/LO..HI`. An empty LO or HI means any distance on that side.
Band parse_band(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, '/');
  if (parts.size() != 3) refuse_band(text);
  Band band = {.q = parse_range(parts[0], text), .k = parse_range(parts[1], text)};

  const std::size_t dots = parts[2].find("..");
  if (dots == std::string_view::npos) refuse_band(text);
  const IntegerRange any = {Distance::kAnyLo, Distance::kAnyHi};
  const std::string_view lo = parts[2].substr(0, dots);
  const std::string_view hi = parts[2].substr(dots + 2);
  if (!lo.empty()) band.lo = parse_integer(kBandsWhere, lo, any);
  if (!hi.empty()) band.hi = parse_integer(kBandsWhere, hi, any);
  return band;
}

/// Any bands; Mask checks that they lie inside the lengths and do not overlap.
Mask parse_bands(const Text& text, Lengths lengths) {
  std::vector<Band> bands;
  for (const std::string_view band : split(text.value_or(""), ';')) {
    bands.push_back(parse_band(band));
  }
  return Mask(lengths.q, lengths.kv, std::move(bands));
}

}  // namespace

std::string to_string(const Band& band) {
  const std::string lo = band.lo == Distance::kAnyLo ? "" : fmt::to_string(band.lo);
  const std::string hi = band.hi == Distance::kAnyHi ? "" : fmt::to_string(band.hi);
  return fmt::format("{}-{}/{}-{}/{}..{}", band.q.begin, band.q.end, band.k.begin, band.k.end, lo,
                     hi);
}

Mask parse_mask(std::string_view text, Lengths lengths) {
  // Both tables have the same order.
  using Parser = Mask (*)(const Text&, Lengths);
  static constexpr std::array<std::string_view, 7> kNames = {
      "full", "causal", "window", "prefix", "block_causal", "documents", "bands"};
  static constexpr std::array<Parser, 7> kParsers = {
      parse_full,         parse_causal,    parse_window_mask, parse_prefix,
      parse_block_causal, parse_documents, parse_bands};
  const Spec spec = parse_spec(text);
  return kParsers[parse_choice("mask", spec.name, kNames)](spec.arguments, lengths);
}

}  // namespace armillary::plan

// unicode.h: what tokenizers ask of Unicode: code points of UTF-8 and their categories.
//
// Categories are those of Unicode 16, as in PyPI `tokenizers` 0.23: utf8proc's, and a table of what
// came after its version.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace armillary::tokenizer {

/// Number of code points, surrogates included.
inline constexpr std::uint32_t kCodePoints = 0x110000;

/// A set of kinds of code points, a bit each. Kinds are the general categories, but that control
/// characters which are white space are a kind of their own: so `\s` is a set of kinds too.
using KindSet = std::uint32_t;
inline constexpr int kKinds = 31;
inline constexpr KindSet kAllKinds = (KindSet{1} << kKinds) - 1;

/// The kind of a code point, in [0, kKinds). Requires code_point < kCodePoints. Cost: two loads.
/// The table is made by the first call, in some 10 ms. Threads: any.
int kind_of_code_point(std::uint32_t code_point);

/// Code points from a multiple of it on to the next share a block.
inline constexpr std::uint32_t kKindBlock = 256;
/// A number of the block of a code point; blocks of equal numbers have equal kinds.
int kind_block(std::uint32_t code_point);

/// The kinds of a category `Lu`, or of a group of them `L`; nothing if there is none of the name.
std::optional<KindSet> kinds_of_category(std::string_view name);

/// White_Space: separators, tab, line feed, vertical tab, form feed, carriage return, next line.
KindSet white_space();

/// The code points that differ from this one in case alone, with itself; ascending.
/// Simple case folding, so `K` has U+212A too, and `s` U+017F. Cost: the first call some 10 ms.
std::vector<std::uint32_t> same_but_for_case(std::uint32_t code_point);

/// Takes the code point at `i`, and moves `i` behind it. Requires well-formed UTF-8 and i < size.
inline std::uint32_t next_code_point(std::string_view text, std::size_t& i) {
  const auto byte = [&](std::size_t j) -> std::uint32_t {
    return static_cast<unsigned char>(text[j]);
  };
  const std::uint32_t lead = byte(i);
  if (lead < 0x80U) {
    i += 1;
    return lead;
  }
  if (lead < 0xE0U) {
    i += 2;
    return (lead & 0x1FU) << 6U | (byte(i - 1) & 0x3FU);
  }
  if (lead < 0xF0U) {
    i += 3;
    return (lead & 0x0FU) << 12U | (byte(i - 2) & 0x3FU) << 6U | (byte(i - 1) & 0x3FU);
  }
  i += 4;
  return (lead & 0x07U) << 18U | (byte(i - 3) & 0x3FU) << 12U | (byte(i - 2) & 0x3FU) << 6U |
         (byte(i - 1) & 0x3FU);
}

/// Begin of the code point in front of `i`. Requires well-formed UTF-8 and 0 < i <= size.
inline std::size_t previous_code_point(std::string_view text, std::size_t i) {
  --i;
  while ((static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80U) --i;
  return i;
}

/// Appends the UTF-8 of a code point that is no surrogate.
void append_code_point(std::string& out, std::uint32_t code_point);

/// The text with U+FFFD for each longest part of it that begins a sequence of UTF-8 and does not
/// end it, as Python's errors="replace" and the Unicode standard (section 3.9) have it; nothing if
/// all of it is UTF-8.
std::optional<std::string> with_replacements(std::string_view text);

/// Number of well-formed bytes at the begin, none of which is above 0x7F.
std::size_t ascii_prefix(std::string_view text);

}  // namespace armillary::tokenizer

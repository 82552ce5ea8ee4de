// pattern_tree.h: a split pattern as a tree. For split_pattern.h only.
//
// The syntax is that part of Oniguruma's which tokenizers use, with its meaning there:
//
//   a  \n \r \t \f \v  \x{61}  \u0061   one code point, itself
//   .  [a-z\s]  [^..]  \p{L}  \P{Lu}  \s \S \d \D      one of a set; in [..] another [..] is its
//   union x? x* x+ x{2} x{2,} x{1,3}          as many as there are, fewer if the rest needs them
//   x?+ x*+ x++                         as many as there are
//   (..)  (?:..)  (?i:..)  (?i) at the begin     groups; case is ignored
//   (?=..) (?!..)  ^ $                  what follows; begin and end of a line
#pragma once

#include <string_view>
#include <vector>

#include "armillary/text/tokenizer/code_point_set.h"

namespace armillary::tokenizer {

enum class PatternNodeKind : std::uint8_t {
  Set,       ///< One code point of `set`.
  Sequence,  ///< Children, one after the other.
  Choice,    ///< The first child that leads to a match.
  Repeat,    ///< The only child, from `least` to `most` times.
  Ahead,     ///< The only child matches here, or does not; nothing is taken.
  LineBegin,
  LineEnd,
};

/// A part of a pattern.
struct PatternNode {
  PatternNodeKind kind = PatternNodeKind::Sequence;
  CodePointSet set = {};
  std::vector<PatternNode> children = {};
  int least = 0;
  int most = 0;                ///< -1: no bound.
  bool is_possessive = false;  ///< A Repeat gives nothing back.
  bool is_negated = false;     ///< An Ahead must not match.
};

/// Longest pattern, and largest bound of a repetition, that are read.
inline constexpr std::size_t kMostPatternBytes = 1 << 14;
inline constexpr int kMostRepeats = 1000;

/// @throws InvalidArgument that quotes the pattern and names the part of it that is not understood.
PatternNode parse_pattern(std::string_view pattern);

}  // namespace armillary::tokenizer

// pattern_tree.cpp: a recursive descent over the code points of a pattern: choices, sequences,
// repetitions, atoms. Everything that is not understood is refused, with its place.
#include "armillary/text/tokenizer/pattern_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"

namespace armillary::tokenizer {
namespace {

constexpr int kMostPatternDepth = 32;

class PatternParser {
 public:
  explicit PatternParser(std::string_view pattern) : pattern_(pattern) {}

  PatternNode parse() {
    if (pattern_.size() > kMostPatternBytes) refuse("its length");
    if (first_invalid_utf8(pattern_)) refuse("bytes that are no UTF-8");
    ignores_case_ = take("(?i)");
    PatternNode all = choice();
    if (!at_end()) refuse("')' without '('");
    return all;
  }

 private:
  [[noreturn]] void refuse(std::string_view part) const {
    fail<InvalidArgument>(
        "tokenizer: pattern {} has {} at byte {}; a pattern without it is required",
        quote(pattern_), part, at_);
  }

  bool at_end() const { return at_ == pattern_.size(); }
  bool sees(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool take(std::string_view text) {
    if (!sees(text)) return false;
    at_ += text.size();
    return true;
  }
  std::uint32_t take_code_point() {
    if (at_end()) refuse("an early end");
    return next_code_point(pattern_, at_);
  }

  PatternNode choice() {
    if (++depth_ > kMostPatternDepth) refuse("more than 32 groups in one another");
    PatternNode node{.kind = PatternNodeKind::Choice};
    do {
      node.children.push_back(sequence());
    } while (take("|"));
    --depth_;
    return node.children.size() == 1 ? std::move(node.children.front()) : node;
  }

  PatternNode sequence() {
    PatternNode node{.kind = PatternNodeKind::Sequence};
    while (!at_end() && !sees("|") && !sees(")")) node.children.push_back(repeat(atom()));
    return node;
  }

  /// The atom with the quantifiers behind it.
  PatternNode repeat(PatternNode atom) {
    int least = 0;
    int most = -1;
    bool is_counted = false;
    if (take("?")) {
      most = 1;
    } else if (take("+")) {
      least = 1;
    } else if (sees("{")) {
      std::tie(least, most) = bounds();
      is_counted = true;
    } else if (!take("*")) {
      return atom;
    }
    if (sees("?")) refuse("a lazy repetition");
    if (is_counted && sees("+")) refuse("a '+' behind '}'");
    if (sees("{") || sees("*")) refuse("a repetition of a repetition");
    PatternNode node{.kind = PatternNodeKind::Repeat, .least = least, .most = most};
    node.is_possessive = take("+");
    if (sees("+") || sees("?")) refuse("a repetition of a repetition");
    node.children.push_back(std::move(atom));
    return node;
  }

  /// `{2}`, `{2,}`, `{1,3}`.
  std::pair<int, int> bounds() {
    take("{");
    const int least = number();
    int most = least;
    if (take(",")) most = sees("}") ? -1 : number();
    if (!take("}") || (most >= 0 && most < least)) refuse("bounds other than {2}, {2,} and {1,3}");
    return {least, most};
  }

  int number() {
    int value = -1;
    while (!at_end() && pattern_[at_] >= '0' && pattern_[at_] <= '9') {
      value = std::max(value, 0) * 10 + (pattern_[at_++] - '0');
      if (value > kMostRepeats) refuse("a bound above 1000");
    }
    if (value < 0) refuse("bounds other than {2}, {2,} and {1,3}");
    return value;
  }

  PatternNode atom() {
    if (take("(")) return group();
    if (take("^")) return {.kind = PatternNodeKind::LineBegin};
    if (take("$")) return {.kind = PatternNodeKind::LineEnd};
    CodePointSet set;
    if (take("[")) {
      set = bracket(0);
    } else if (take(".")) {
      set = {.ranges = {{'\n', '\n'}}, .is_negated = true};
    } else if (sees("*") || sees("+") || sees("?") || sees("{")) {
      refuse("a repetition of nothing");
    } else {
      add_item(set, /*in_brackets=*/false);
    }
    return {.kind = PatternNodeKind::Set, .set = std::move(set)};
  }

  PatternNode group() {
    PatternNode node;
    const bool outside = ignores_case_;
    if (sees("?=") || sees("?!")) {
      node = {.kind = PatternNodeKind::Ahead, .is_negated = sees("?!")};
      at_ += 2;
      node.children.push_back(choice());
    } else {
      if (take("?i:")) {
        ignores_case_ = true;
      } else if (!take("?:") && sees("?")) {
        refuse(fmt::format("the group '({}'", excerpt(pattern_.substr(at_, 2))));
      }
      node = choice();
    }
    ignores_case_ = outside;
    if (!take(")")) refuse("'(' without ')'");
    return node;
  }

  /// A set in brackets, behind the first of them.
  CodePointSet bracket(int depth) {
    if (depth > kMostPatternDepth) refuse("more than 32 brackets in one another");
    CodePointSet set;
    const bool is_negated = take("^");
    bool is_first = true;
    while (is_first || !sees("]")) {
      if (at_end()) refuse("'[' without ']'");
      if (sees("&&")) refuse("'&&'");
      if (sees("[:")) refuse("'[:'");
      if (is_first && sees("]")) refuse("']' behind '['");
      is_first = false;
      if (take("[")) {
        const CodePointSet inner = bracket(depth + 1);
        if (inner.is_negated) refuse("a set with '^' in a set");
        set.kinds |= inner.kinds;
        set.ranges.insert(set.ranges.end(), inner.ranges.begin(), inner.ranges.end());
      } else {
        add_item(set, /*in_brackets=*/true);
      }
    }
    take("]");
    set.is_negated = is_negated;
    return set;
  }

  /// Adds one code point, a range of them in brackets, or a class.
  void add_item(CodePointSet& set, bool in_brackets) {
    if (sees("\\") && add_class(set)) return;
    const std::uint32_t first = literal();
    std::uint32_t last = first;
    // A '-' in front of ']' is itself.
    const bool is_range = in_brackets && sees("-") && !pattern_.substr(at_ + 1).starts_with(']');
    if (is_range) {
      take("-");
      last = literal();
      if (last < first) refuse("a range from a larger to a smaller code point");
    }
    if (!ignores_case_) {
      set.ranges.push_back({first, last});
      return;
    }
    if (last - first > 4096) refuse("a range of more than 4096 code points whose case is ignored");
    for (std::uint32_t c = first; c <= last; ++c) {
      for (const std::uint32_t other : same_but_for_case(c)) set.ranges.push_back({other, other});
    }
  }

  /// `\s`, `\d`, `\p{..}` and their opposites; whether there was one.
  bool add_class(CodePointSet& set) {
    const std::string_view two = pattern_.substr(at_, 2);
    KindSet kinds = 0;
    if (two == "\\s" || two == "\\S") {
      kinds = white_space();
    } else if (two == "\\d" || two == "\\D") {
      kinds = *kinds_of_category("Nd");
    } else if (two == "\\p" || two == "\\P") {
      const std::size_t end = pattern_.find('}', at_);
      const bool is_named = pattern_.substr(at_ + 2).starts_with('{') && end != std::string::npos;
      if (!is_named) refuse("'\\p' without a name in braces");
      const std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
      const auto known = kinds_of_category(name);
      if (!known) refuse(fmt::format("the property {}", quote(name)));
      if (ignores_case_ && name.size() == 2 && name[0] == 'L') {
        refuse("a category of letters whose case is ignored");
      }
      kinds = *known;
      at_ = end - 1;
    } else {
      return false;
    }
    at_ += 2;
    const bool is_opposite = two[1] == 'S' || two[1] == 'D' || two[1] == 'P';
    set.kinds |= is_opposite ? kAllKinds & ~kinds : kinds;
    return true;
  }

  /// One code point, which may be escaped.
  std::uint32_t literal() {
    if (!take("\\")) return take_code_point();
    const std::uint32_t escaped = take_code_point();
    switch (escaped) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'u':
        return hexadecimal(4);
      case 'x':
        if (take("{")) {
          const std::uint32_t value = hexadecimal(8);
          if (!take("}")) refuse("'\\x{' without '}'");
          return value;
        }
        return hexadecimal(2);
      default:
        break;
    }
    const bool is_word = (escaped >= '0' && escaped <= '9') || (escaped >= 'A' && escaped <= 'Z') ||
                         (escaped >= 'a' && escaped <= 'z') || escaped >= 0x80U;
    if (is_word) {
      std::string name = "\\";
      append_code_point(name, escaped);
      refuse(fmt::format("the escape {}", quote(name)));
    }
    return escaped;
  }

  std::uint32_t hexadecimal(int most_digits) {
    std::uint32_t value = 0;
    int digits = 0;
    for (; digits < most_digits && !at_end(); ++digits, ++at_) {
      const char c = pattern_[at_];
      const bool is_digit = c >= '0' && c <= '9';
      const char lower = static_cast<char>(c | 0x20);
      if (!is_digit && (lower < 'a' || lower > 'f')) break;
      value = value * 16 + static_cast<std::uint32_t>(is_digit ? c - '0' : lower - 'a' + 10);
    }
    const bool is_surrogate = value >= 0xD800U && value < 0xE000U;
    // Two digits above 0x7F are a byte there, not a code point.
    const bool is_byte = most_digits == 2 && value > 0x7FU;
    if (digits == 0 || value >= kCodePoints || is_surrogate || is_byte) {
      refuse("a number that is no code point");
    }
    return value;
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool ignores_case_ = false;
};

}  // namespace

PatternNode parse_pattern(std::string_view pattern) {
  return PatternParser(pattern).parse();
}

}  // namespace armillary::tokenizer

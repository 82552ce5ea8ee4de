// split_pattern_test.cpp: matches as a backtracking engine has them, refusals, and random patterns:
// no pattern crashes or hangs.
#include "armillary/text/tokenizer/split_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/text/tokenizer/split_patterns.h"
#include "tests/seed.h"

namespace armillary::tokenizer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// All matches, with what is between them in brackets.
std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const SplitPattern split(pattern);
  SplitPattern::Scratch scratch;
  std::int64_t steps_left = SplitPattern::most_steps(text);
  std::vector<std::string> all;
  for (std::size_t at = 0; at < text.size();) {
    const TextSpan span = split.find(text, at, scratch, steps_left);
    if (span.begin > at) all.push_back('[' + text.substr(at, span.begin - at) + ']');
    if (span.end > span.begin) all.push_back(text.substr(span.begin, span.end - span.begin));
    at = span.end;
  }
  return all;
}

TEST(SplitPattern, CutsAsGpt2) {
  EXPECT_THAT(matches(std::string(kGpt2Pattern), "It's  here, 12"),
              ElementsAre("It", "'s", " ", " here", ",", " 12"));
}

TEST(SplitPattern, RunsGiveBackWhatTheRestNeeds) {
  EXPECT_THAT(matches("a+ab", "aaab"), ElementsAre("aaab"));
  EXPECT_THAT(matches("a++ab|b", "aaab"), ElementsAre("[aaa]", "b"));
  EXPECT_THAT(matches("\\s+(?!\\S)|\\s+", "a   b"), ElementsAre("[a]", "  ", " ", "[b]"));
  EXPECT_THAT(matches("a{2,3}", "aaaaa"), ElementsAre("aaa", "aa"));
  EXPECT_THAT(matches("(?:ab|a)(?:c|bcd)", "abcd"), ElementsAre("abc", "[d]"));
  EXPECT_THAT(matches("(?:ab)+", "ababa"), ElementsAre("abab", "[a]"));
  EXPECT_THAT(matches("(?:ab){2}", "ababab"), ElementsAre("abab", "[ab]"));
  EXPECT_THAT(matches("x(?:ab)?", "xabx"), ElementsAre("xab", "x"));
}

TEST(SplitPattern, ReadsSetsAndClasses) {
  EXPECT_THAT(matches("[a-c\\d]+", "ab1-"), ElementsAre("ab1", "[-]"));
  EXPECT_THAT(matches("[^\\s\\p{L}]+", "a.. b"), ElementsAre("[a]", "..", "[ b]"));
  EXPECT_THAT(matches("[a[bc]-]+", "ab-c"), ElementsAre("ab-c"));
  EXPECT_THAT(matches("\\P{L}", "a1"), ElementsAre("[a]", "1"));
  EXPECT_THAT(matches("[\\S]", " a"), ElementsAre("[ ]", "a"));
  EXPECT_THAT(matches("\\x{e9}\\u00e9", "\xC3\xA9\xC3\xA9"), ElementsAre("\xC3\xA9\xC3\xA9"));
  EXPECT_THAT(matches(".+", "a\nb"), ElementsAre("a", "[\n]", "b"));
}

TEST(SplitPattern, IgnoresCaseInAGroup) {
  EXPECT_THAT(matches("(?i:'s)|x", "'S'\xC5\xBFX"), ElementsAre("'S", "'\xC5\xBF", "[X]"));
  EXPECT_THAT(matches("(?i)ab", "AbaB"), ElementsAre("Ab", "aB"));
}

TEST(SplitPattern, LinesEndBeforeLineFeeds) {
  EXPECT_THAT(matches("\\s+$", "a  \nb "), ElementsAre("[a]", "  ", "[\nb]", " "));
  EXPECT_THAT(matches("^a", "a\na"), ElementsAre("a", "[\n]", "a"));
}

TEST(SplitPattern, RefusesWhatItDoesNotKnow) {
  const auto refuses = [](const std::string& pattern, const std::string& part) {
    EXPECT_THAT([&] { SplitPattern{pattern}; }, ThrowsMessage<InvalidArgument>(HasSubstr(part)))
        << pattern;
  };
  refuses("(?<=a)b", "the group '(?<'");
  refuses("a+?", "a lazy repetition");
  refuses("\\w+", "the escape '\\w'");
  refuses("\\bx", "the escape '\\b'");
  refuses("(a)\\1", "the escape '\\1'");
  refuses("\\p{Han}", "the property 'Han'");
  refuses("\\pL", "a name in braces");
  refuses("[a&&b]", "'&&'");
  refuses("[[:alpha:]]", "'[:'");
  refuses("a{3,2}", "bounds");
  refuses("a{1,2}+", "a '+' behind '}'");
  refuses("a**", "a repetition of a repetition");
  refuses("*a", "a repetition of nothing");
  refuses("(a", "'(' without ')'");
  refuses("a)", "')' without '('");
  refuses("[a", "'[' without ']'");
  refuses("a*", "matches the empty text");
  refuses("(?!a)", "matches the empty text");
  refuses("", "matches the empty text");
  refuses("(?:a*)*b", "repeats a group that may be empty");
  refuses("a\xFF", "no UTF-8");
  refuses("a{2000}", "a bound above 1000");
  refuses("(?:(?:a{1}b){1000}c){1000}", "more than 20000 steps");
  refuses(std::string(100, '(') + 'a', "more than 32 groups");
  refuses(std::string(1 << 15, 'a'), "its length");
}

TEST(SplitPattern, EndsWhatTakesTooLong) {
  EXPECT_THAT([] { matches("(?:a|a)+b", std::string(64, 'a')); },
              ThrowsMessage<InvalidArgument>(HasSubstr("steps a byte")));
  // Each match looks at the whole rest.
  EXPECT_THAT([] { matches("a(?!a*b)|a", std::string(40000, 'a')); },
              ThrowsMessage<InvalidArgument>(HasSubstr("steps a byte")));
}

/// Whatever a pattern is, it is refused in one line, or it cuts a text into parts of it.
TEST(SplitPattern, RandomPatternsAreRefusedOrMatch) {
  const std::vector<std::string> parts{"a",   "b",     " ?",  "\\p{L}", "\\s", "+",  "*",   "?",
                                       "{2}", "{1,3}", "(",   ")",      "|",   "[",  "]",   "^",
                                       "(?:", "(?i:",  "(?!", "$",      "-",   "++", "\\n", "\xC3"};
  std::mt19937 random(test_seed());
  int good = 0;
  for (int trial = 0; trial < (test_all() ? 50000 : 2000); ++trial) {
    std::string pattern;
    for (unsigned i = random() % 10; i < 10; ++i) pattern += parts[random() % parts.size()];
    try {
      const std::string text = "ab a  bb\n\nab";
      std::string joined;
      for (const std::string& piece : matches(pattern, text)) {
        const bool is_between = piece.size() > 2 && piece.front() == '[' && piece.back() == ']';
        joined += is_between ? piece.substr(1, piece.size() - 2) : piece;
      }
      EXPECT_EQ(joined, text) << pattern;
      ++good;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << pattern;
    }
  }
  EXPECT_GT(good, 0);
}

}  // namespace
}  // namespace armillary::tokenizer

// split_pattern.h: the regular expression by which a tokenizer cuts text into words.
//
//   "'s| ?\p{L}+|\s+(?!\S)|\s+"  --SplitPattern-->  "it", "'s", "  ", " here"
//
// A match is that of a backtracking engine, as Oniguruma's in PyPI `tokenizers`: the first choice
// that leads to a match, and as much as each repetition can take.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/text/tokenizer/code_point_set.h"
#include "armillary/text/tokenizer/pattern_tree.h"

namespace armillary::tokenizer {

/// Bytes from begin to end.
struct TextSpan {
  std::size_t begin = 0;
  std::size_t end = 0;

  bool operator==(const TextSpan&) const = default;
};

enum class PatternStepKind : std::uint8_t {
  Take,   ///< A code point of `sets`.
  Run,    ///< From `least` to `most` of them, as many as there are.
  Fork,   ///< Goes on with the next step, and if that fails at `target`.
  Jump,   ///< To `target`.
  Ahead,  ///< Goes on at `target` if the steps behind it match here, or do not.
  LineBegin,
  LineEnd,
  Match,
};

/// One instruction of a compiled pattern.
struct PatternStep {
  PatternStepKind kind = PatternStepKind::Match;
  SetMask sets = 0;
  int least = 0;
  int most = 0;
  bool is_possessive = false;
  bool is_negated = false;
  std::size_t target = 0;
};

/// A place to which a match that fails goes back.
struct PatternReturn {
  std::size_t step = 0;
  std::size_t at = 0;
  std::size_t least_at = 0;  ///< Behind a Run: it may still give back what follows.
};

/// A compiled pattern. Threads: any number may match, each with a scratch of its own.
class SplitPattern {
 public:
  using Scratch = std::vector<PatternReturn>;

  /// @throws InvalidArgument as parse_pattern; also for a pattern that matches the empty text,
  /// repeats a group that may match it, has more than 64 sets, or is too large.
  explicit SplitPattern(std::string pattern);

  const std::string& pattern() const { return pattern_; }

  /// The steps that all matches of a text may take together, far more than it has bytes.
  static std::int64_t most_steps(std::string_view text);
  /// The first match that begins at `from` or behind it; an empty one if there is none. Its steps
  /// are taken off `steps_left`. Requires UTF-8 and `from` between code points.
  /// @throws InvalidArgument if no steps are left.
  TextSpan find(std::string_view text, std::size_t from, Scratch& scratch,
                std::int64_t& steps_left) const;

 private:
  /// The code points with which a part may begin, and whether it may match the empty text.
  struct FirstSets {
    SetMask sets = 0;
    bool may_be_empty = false;
  };
  /// One of the choices of the whole pattern.
  struct Branch {
    SetMask first = 0;
    std::size_t step = 0;
  };

  void number_sets(const PatternNode& node);
  SetMask bit_of(const CodePointSet& set) const;
  FirstSets first_sets(const PatternNode& node) const;
  void compile(const PatternNode& node);
  void compile_repeat(const PatternNode& node);
  std::size_t add(PatternStep step);
  /// End of the match of the steps from `step` on that begins at `at`; npos if there is none.
  std::size_t match(std::string_view text, std::size_t step, std::size_t at, Scratch& scratch,
                    std::int64_t& steps_left) const;
  /// Takes the code point at `at`; false if there is none in these sets.
  bool take(std::string_view text, SetMask sets, std::size_t& at) const;

  std::string pattern_;
  std::vector<CodePointSet> sets_;
  std::vector<PatternStep> steps_;
  std::vector<Branch> branches_;
  SetMask firsts_ = 0;  ///< Those of all branches.
  SetTable table_{{}};
};

}  // namespace armillary::tokenizer

// pre_tokenizer.h: cuts a normalized text into the words that the model sees.
//
//   "Hi  there"  --Split-->  "Hi" " " " there"  --Digits-->  ..  --model-->
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "armillary/text/tokenizer/split_pattern.h"

namespace armillary::tokenizer {

/// The fate of the matches of a Split.
enum class SplitBehavior : std::uint8_t {
  Removed,
  Isolated,
  MergedWithPrevious,
  MergedWithNext,
  Contiguous,  ///< Matches that follow one another are one piece.
};

/// Cuts at the matches of a pattern, or between them.
struct SplitStep {
  std::shared_ptr<const SplitPattern> pattern;
  SplitBehavior behavior = SplitBehavior::Isolated;
  bool is_inverted = false;
};

/// Puts a blank in front of a piece that begins with none.
struct PrefixBlankStep {};

/// Blanks become `mark`, which stands in front of the text too.
struct MetaspaceStep {
  enum class Prepend : std::uint8_t { Always, First, Never };

  std::string mark;  ///< One code point.
  Prepend prepend = Prepend::Always;
  bool splits = true;  ///< Cuts in front of each mark.
};

using PreTokenizerStep = std::variant<SplitStep, PrefixBlankStep, MetaspaceStep>;

/// Working memory of one thread.
struct PreTokenizerScratch {
  SplitPattern::Scratch returns;
};

/// Calls `emit` with each word of a text in order; words are not empty. `is_first`: the text begins
/// where the user's does. Threads: any, each with a scratch of its own. Requires UTF-8.
/// @throws InvalidArgument as SplitPattern::find.
void pre_tokenize(std::string_view text, bool is_first, const std::vector<PreTokenizerStep>& steps,
                  PreTokenizerScratch& scratch,
                  const std::function<void(std::string_view word)>& emit);

}  // namespace armillary::tokenizer

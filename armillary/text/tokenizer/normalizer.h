// normalizer.h: changes of a text before it is cut into words.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "armillary/text/tokenizer/normal_form.h"

namespace armillary::tokenizer {

/// Bytes that a text which is encoded, or made on the way, may have at most.
inline constexpr std::size_t kMostTextBytes = std::size_t{1} << 30;

/// Puts a text in front of every text that is not empty.
struct PrependText {
  std::string text;
};

/// Replaces a text that is not empty, from left to right.
struct ReplaceText {
  std::string text;
  std::string with;
};

using NormalizerStep = std::variant<NormalForm, PrependText, ReplaceText>;

/// The text with `step.with` for each `step.text`. @throws InvalidArgument for a result of more
/// than kMostTextBytes, before any of it is made: steps that follow one another multiply.
std::string replaced(std::string_view text, const ReplaceText& step);

/// All steps in their order. Requires UTF-8. @throws InvalidArgument as replaced().
std::string normalized(std::string_view text, const std::vector<NormalizerStep>& steps);

}  // namespace armillary::tokenizer

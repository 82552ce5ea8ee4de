#include "armillary/text/tokenizer/normalizer.h"

#include <algorithm>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"

namespace armillary::tokenizer {
namespace {

/// Refuses a result of more than kMostTextBytes.
void check_growth(std::string_view text, const ReplaceText& step) {
  if (step.with.size() <= step.text.size()) return;
  const std::size_t room = kMostTextBytes - std::min(text.size(), kMostTextBytes);
  const std::size_t most = room / (step.with.size() - step.text.size());
  if (text.size() / step.text.size() <= most) return;  // Wherever it stands.
  std::size_t count = 0;
  for (std::size_t at = text.find(step.text); at != std::string_view::npos;
       at = text.find(step.text, at + step.text.size())) {
    if (++count <= most) continue;
    fail<InvalidArgument>(
        "tokenizer: {} bytes of text, more than {} with {} for each {}; at most as many are "
        "required",
        text.size(), kMostTextBytes, quote(step.with), quote(step.text));
  }
}

}  // namespace

std::string replaced(std::string_view text, const ReplaceText& step) {
  check_growth(text, step);
  std::string out;
  while (true) {
    const std::size_t at = text.find(step.text);
    out += text.substr(0, at);
    if (at == std::string_view::npos) return out;
    out += step.with;
    text.remove_prefix(at + step.text.size());
  }
}

std::string normalized(std::string_view text, const std::vector<NormalizerStep>& steps) {
  std::string out(text);
  for (const NormalizerStep& step : steps) {
    if (const auto* form = std::get_if<NormalForm>(&step)) {
      out = normal_form(out, *form);
    } else if (const auto* prepend = std::get_if<PrependText>(&step)) {
      if (!out.empty()) out.insert(0, prepend->text);
    } else {
      out = replaced(out, std::get<ReplaceText>(step));
    }
  }
  return out;
}

}  // namespace armillary::tokenizer

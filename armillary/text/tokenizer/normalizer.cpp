#include "armillary/text/tokenizer/normalizer.h"

namespace armillary::tokenizer {

std::string replaced(std::string_view text, const ReplaceText& step) {
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

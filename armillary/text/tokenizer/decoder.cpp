// decoder.cpp: each step maps a list of texts to another, as in PyPI tokenizers; the last list is
// joined.
#include "armillary/text/tokenizer/decoder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "armillary/text/tokenizer/byte_alphabet.h"
#include "armillary/text/tokenizer/unicode.h"

namespace armillary::tokenizer {
namespace {

using Texts = std::vector<std::string>;

/// UTF-8, whatever it was.
std::string as_text(std::string bytes) {
  auto whole = with_replacements(bytes);
  return whole ? *std::move(whole) : std::move(bytes);
}

/// The byte of `<0x41>`.
std::optional<char> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const bool is_digit = c >= '0' && c <= '9';
    const char lower = static_cast<char>(c | 0x20);
    if (!is_digit && (lower < 'a' || lower > 'f')) return std::nullopt;
    value = value * 16 + (is_digit ? c - '0' : lower - 'a' + 10);
  }
  return static_cast<char>(value);
}

Texts apply_step(const LettersToBytes& /*step*/, const Texts& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += bytes_of_letters(token).value_or(token);
  return {as_text(std::move(bytes))};
}

Texts apply_step(const BytesFromTokens& /*step*/, Texts tokens) {
  Texts texts;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (with_replacements(bytes)) {
      texts.insert(texts.end(), bytes.size(), "\xEF\xBF\xBD");
    } else {
      texts.push_back(bytes);
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = byte_of_token(token)) {
      bytes.push_back(*byte);
      continue;
    }
    flush();
    texts.push_back(std::move(token));
  }
  flush();
  return texts;
}

Texts apply_step(const FuseTokens& /*step*/, const Texts& tokens) {
  return {fmt::to_string(fmt::join(tokens, ""))};
}

Texts apply_step(const StripToken& step, Texts tokens) {
  std::string stripped;
  append_code_point(stripped, step.code_point);
  for (std::string& token : tokens) {
    std::string_view rest = token;
    for (std::size_t i = 0; i < step.start && rest.starts_with(stripped); ++i) {
      rest.remove_prefix(stripped.size());
    }
    for (std::size_t i = 0; i < step.stop && rest.ends_with(stripped); ++i) {
      rest.remove_suffix(stripped.size());
    }
    token = std::string(rest);
  }
  return tokens;
}

Texts apply_step(const MarksToBlanks& step, Texts tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool is_removed = i == 0 && step.prepends;
    tokens[i] = replaced(tokens[i], {.text = step.mark, .with = is_removed ? "" : " "});
  }
  return tokens;
}

Texts apply_step(const ReplaceText& step, Texts tokens) {
  for (std::string& token : tokens) token = replaced(token, step);
  return tokens;
}

}  // namespace

std::string decoded(std::vector<std::string> tokens, const std::vector<DecoderStep>& steps) {
  if (steps.empty()) return fmt::to_string(fmt::join(tokens, " "));
  for (const DecoderStep& step : steps) {
    tokens = std::visit([&](const auto& now) { return apply_step(now, std::move(tokens)); }, step);
  }
  return fmt::to_string(fmt::join(tokens, ""));
}

}  // namespace armillary::tokenizer

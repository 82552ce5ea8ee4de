// token_text.cpp: the text of the tokens that were given is cut off that of all: both are decoded
// from the same first token, so whatever a decoder does to a first word it does to both.
#include "armillary/serve/token_text.h"

#include <algorithm>

#include "armillary/text/tokenizer/load_tokenizer.h"
#include "armillary/train/packed_text.h"

namespace armillary::serve {
namespace {

/// Tokens that are decoded again in front of new ones.
constexpr std::size_t kContext = 6;
/// A character has four bytes at most; more tokens than this that do not make one never will.
constexpr std::size_t kMostBroken = 8;
/// U+FFFD, which stands for a character that is not whole yet.
constexpr std::string_view kBroken = "\xEF\xBF\xBD";

/// The last tokens of a prompt.
std::vector<std::int64_t> last_of(std::span<const std::int64_t> prompt) {
  const std::span last = prompt.last(std::min(prompt.size(), kContext));
  return {last.begin(), last.end()};
}

}  // namespace

std::vector<std::int64_t> TokenText::tokens(std::string_view text) const {
  std::vector<std::int64_t> tokens;
  if (is_bytes()) {
    tokens.reserve(text.size());
    for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
    return tokens;
  }
  const std::vector<tokenizer::TokenId> ids = tokenizer_->encode(text, /*with_special=*/true);
  tokens.assign(ids.begin(), ids.end());
  return tokens;
}

std::string TokenText::text(std::span<const std::int64_t> tokens) const {
  if (is_bytes()) {
    std::string text;
    for (const std::int64_t token : tokens) {
      if (token < train::kSeparator) text += static_cast<char>(token);
    }
    return text;
  }
  std::vector<tokenizer::TokenId> ids;
  ids.reserve(tokens.size());
  for (const std::int64_t token : tokens) ids.push_back(static_cast<tokenizer::TokenId>(token));
  return tokenizer_->decode(ids, /*skip_special=*/true);
}

std::string TokenText::text_behind(std::span<const std::int64_t> prompt,
                                   std::span<const std::int64_t> tokens) const {
  std::vector<std::int64_t> all = last_of(prompt);
  const std::string before = text(all);
  all.insert(all.end(), tokens.begin(), tokens.end());
  const std::string whole = text(all);
  return whole.starts_with(before) ? whole.substr(before.size()) : text(tokens);
}

std::vector<std::int64_t> TokenText::ends() const {
  if (is_bytes()) return {train::kSeparator};
  const auto& end = tokenizer_->special_ids().end;
  return end ? std::vector<std::int64_t>{*end} : std::vector<std::int64_t>();
}

std::optional<TokenText> words_of(const ModelFile& file) {
  if (!file.tokenizer().empty()) {
    return TokenText(
        std::make_shared<const tokenizer::Tokenizer>(tokenizer::load_tokenizer(file.tokenizer())));
  }
  if (file.options().vocab_size == train::kVocabSize) return TokenText();
  return std::nullopt;
}

GrowingText::GrowingText(const TokenText& words, std::span<const std::int64_t> prompt)
    : words_(words), tokens_(last_of(prompt)), shown_(tokens_.size()) {}

std::string GrowingText::add(std::int64_t token) {
  tokens_.push_back(token);
  return new_text(/*is_last=*/false);
}

std::string GrowingText::rest() {
  return new_text(/*is_last=*/true);
}

std::string GrowingText::new_text(bool is_last) {
  const std::string before = words_.text(std::span(tokens_).first(shown_));
  std::string all = words_.text(tokens_);
  const bool is_whole =
      words_.is_bytes() || !all.ends_with(kBroken) || tokens_.size() - shown_ > kMostBroken;
  if (all.size() <= before.size() || !(is_last || is_whole)) return "";
  // The context of the next tokens stays.
  tokens_ = last_of(tokens_);
  shown_ = tokens_.size();
  return all.substr(before.size());
}

}  // namespace armillary::serve

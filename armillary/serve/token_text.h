// token_text.h: text to the tokens of a model and back: the words of a tokenizer, or bytes, as
// models have that were trained on text (train/packed_text.h).
//
//   prompt --tokens--> ids --Sessions--> new ids --GrowingText--> whole characters, as they come
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "armillary/serve/model_weights.h"
#include "armillary/text/tokenizer/tokenizer.h"

namespace armillary::serve {

/// Immutable. Threads: any number may call.
class TokenText {
 public:
  TokenText() = default;  ///< Bytes.
  explicit TokenText(std::shared_ptr<const tokenizer::Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {}

  /// Tokens of a text, with those that the tokenizer puts in front of it and behind, as
  /// transformers does.
  std::vector<std::int64_t> tokens(std::string_view text) const;
  /// The text of tokens without special ones: UTF-8, or any bytes without a tokenizer.
  std::string text(std::span<const std::int64_t> tokens) const;
  /// The same of tokens behind a prompt, of which a blank in front of them may be a part.
  std::string text_behind(std::span<const std::int64_t> prompt,
                          std::span<const std::int64_t> tokens) const;
  /// Tokens behind which a text ends: the tokenizer's, or the separator of documents.
  std::vector<std::int64_t> ends() const;
  bool is_bytes() const { return tokenizer_ == nullptr; }

 private:
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
};

/// The words of a model: its tokenizer's, or bytes if it has as many; nothing if it has neither.
/// @throws as tokenizer::load_tokenizer.
std::optional<TokenText> words_of(const ModelFile& file);

/// The text behind a prompt, token by token. The text of a token depends on those before it: a
/// character may be in several, and blanks belong to the word behind them. So the last tokens are
/// decoded together, and what is new is given when it ends with a whole character.
class GrowingText {
 public:
  /// `words` must outlive the object.
  GrowingText(const TokenText& words, std::span<const std::int64_t> prompt);

  /// The text that this token completes, often nothing.
  std::string add(std::int64_t token);
  /// The text that is left, complete or not.
  std::string rest();

 private:
  std::string new_text(bool is_last);

  const TokenText& words_;
  std::vector<std::int64_t> tokens_;  ///< The last ones.
  std::size_t shown_ = 0;             ///< How many of them are given.
};

}  // namespace armillary::serve

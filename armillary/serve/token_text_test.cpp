// token_text_test.cpp: tokens of bytes and of tokenizers, and texts that grow by whole characters.
#include "armillary/serve/token_text.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "armillary/text/tokenizer/huggingface.h"
#include "armillary/text/tokenizer/testing/small_tokenizers.h"

namespace armillary::serve {
namespace {

using Ids = std::vector<std::int64_t>;

TokenText words_of(const std::string& json) {
  return TokenText(std::make_shared<const tokenizer::Tokenizer>(
      tokenizer::read_huggingface(json, "", "tokenizer.json")));
}

/// Everything that a text gives for these tokens behind a prompt, a part for each and the rest.
std::vector<std::string> parts_of(const TokenText& words, const Ids& prompt, const Ids& tokens) {
  GrowingText text(words, prompt);
  std::vector<std::string> parts;
  parts.reserve(tokens.size() + 1);
  for (const std::int64_t token : tokens) parts.push_back(text.add(token));
  parts.push_back(text.rest());
  return parts;
}

TEST(TokenText, HasBytesWithoutATokenizer) {
  const TokenText bytes;
  EXPECT_EQ(bytes.tokens("a\xC3\xA9"), (Ids{'a', 0xC3, 0xA9}));
  EXPECT_EQ(bytes.text(Ids{'a', 0xC3, 256, 0xA9}), "a\xC3\xA9");
  EXPECT_EQ(bytes.ends(), Ids{256});
  EXPECT_EQ(parts_of(bytes, {}, {'a', 0xC3}), (std::vector<std::string>{"a", "\xC3", ""}));
}

TEST(TokenText, HasTheWordsOfATokenizer) {
  const TokenText letters = words_of(tokenizer::byte_level_json());
  EXPECT_EQ(letters.tokens("the the"), (Ids{257, 258}));
  EXPECT_EQ(letters.text(Ids{257, 260, 258}), "the the");  // 260 is special.
  EXPECT_EQ(letters.ends(), Ids{});
  // Special tokens in front, as transformers has them.
  EXPECT_EQ(words_of(tokenizer::byte_fallback_json()).tokens("the").front(), 1);
}

/// A character is shown when it is whole, and never twice.
TEST(GrowingText, ShowsWholeCharacters) {
  const TokenText letters = words_of(tokenizer::byte_level_json());
  EXPECT_EQ(parts_of(letters, letters.tokens("it"), {258, 0xE2, 0x82, 0xAC, 'x'}),
            (std::vector<std::string>{" the", "", "", "\xE2\x82\xAC", "x", ""}));
  EXPECT_EQ(parts_of(letters, {}, {0xE2, 0x82}),
            (std::vector<std::string>{"", "", "\xEF\xBF\xBD"}));
  // A byte that never becomes one is shown in the end, and what comes behind it.
  std::string all;
  for (const std::string& part : parts_of(letters, {}, Ids(30, 0x82))) all += part;
  EXPECT_EQ(all.size(), 3U * 30);
}

/// The blank of a first word is kept behind a prompt.
TEST(GrowingText, IsThatBehindItsPrompt) {
  const TokenText words = words_of(tokenizer::byte_fallback_json());
  const Ids prompt = words.tokens("a the");
  const std::int64_t the = prompt.back();
  Ids tokens;
  std::string expected;
  for (int i = 0; i < 20; ++i) {
    tokens.push_back(the);
    expected += " the";
  }
  std::string all;
  for (const std::string& part : parts_of(words, prompt, tokens)) all += part;
  EXPECT_EQ(all, expected);
  EXPECT_EQ(words.text_behind(prompt, tokens), expected);
}

}  // namespace
}  // namespace armillary::serve

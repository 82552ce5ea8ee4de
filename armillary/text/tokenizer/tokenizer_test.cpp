// tokenizer_test.cpp: files of each kind to ids and back; parts that are not implemented, by name;
// files that were changed at random. Ids of PyPI tokenizers: tests/tokenizers/.
#include "armillary/text/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/text/tokenizer/gguf.h"
#include "armillary/text/tokenizer/huggingface.h"
#include "armillary/text/tokenizer/load_tokenizer.h"
#include "armillary/text/tokenizer/testing/small_tokenizers.h"
#include "tests/seed.h"

namespace armillary::tokenizer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

Tokenizer of_json(const std::string& text, const std::string& config = {}) {
  return Tokenizer(read_huggingface(text, config, "tokenizer.json"));
}

Tokenizer of_gguf(const std::string& bytes) {
  return Tokenizer(read_gguf(std::as_bytes(std::span(bytes)), "model.gguf"));
}

/// Both files of one tokenizer.
std::vector<Tokenizer> byte_level() {
  std::vector<Tokenizer> both;
  both.push_back(of_json(byte_level_json()));
  both.push_back(of_gguf(byte_level_gguf()));
  return both;
}

std::vector<Tokenizer> byte_fallback() {
  std::vector<Tokenizer> both;
  both.push_back(of_json(byte_fallback_json()));
  both.push_back(of_gguf(byte_fallback_gguf()));
  return both;
}

TEST(Tokenizer, ByteLevelJoinsLettersOfBytes) {
  for (const Tokenizer& tokenizer : byte_level()) {
    EXPECT_EQ(tokenizer.vocab_size(), 262);
    EXPECT_THAT(tokenizer.encode("the the it"), ElementsAre(257, 258, ' ', 259));
    EXPECT_THAT(tokenizer.encode("x<|end|>the<tool>"), ElementsAre('x', 260, 257, 261));
    EXPECT_THAT(tokenizer.encode("<|end"), ElementsAre('<', '|', 'e', 'n', 'd'));
    EXPECT_THAT(tokenizer.encode("\xC3\xA9"), ElementsAre(0xC3, 0xA9));
    EXPECT_THAT(tokenizer.encode("\xFF"), ElementsAre(0xEF, 0xBF, 0xBD));
    EXPECT_THAT(tokenizer.encode(""), ElementsAre());
    const auto ids = tokenizer.encode("the\xC3\xA9<|end|>");
    EXPECT_EQ(tokenizer.decode(ids), "the\xC3\xA9<|end|>");
    EXPECT_EQ(tokenizer.decode(ids, true), "the\xC3\xA9");
    EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{0xC3, -1, 99999}), "\xEF\xBF\xBD");
  }
}

TEST(Tokenizer, ByteFallbackMarksBlanks) {
  for (const Tokenizer& tokenizer : byte_fallback()) {
    EXPECT_THAT(tokenizer.encode("the the"), ElementsAre(266, 266));
    EXPECT_THAT(tokenizer.encode("the", true), ElementsAre(1, 266));
    EXPECT_THAT(tokenizer.encode("x"), ElementsAre(259, 3 + 'x'));
    EXPECT_THAT(tokenizer.encode("a</s>a"), ElementsAre(259, 263, 2, 259, 263));
    const auto ids = tokenizer.encode("a \xF0\x9F\x98\x80 the");
    EXPECT_EQ(tokenizer.decode(ids), "a \xF0\x9F\x98\x80 the");
    EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{3 + 0xC3, 3 + 'a'}),
              "\xEF\xBF\xBD\xEF\xBF\xBD");
  }
}

TEST(Tokenizer, RolesAreThoseOfTheFiles) {
  EXPECT_EQ(of_gguf(byte_level_gguf()).special_ids().end, 260);
  EXPECT_EQ(of_gguf(byte_fallback_gguf()).special_ids().begin, 1);
  const Tokenizer with_roles =
      of_json(byte_level_json(), R"({"eos_token": {"content": "<|end|>"}, "pad_token": "<tool>"})");
  EXPECT_EQ(with_roles.special_ids().end, 260);
  EXPECT_EQ(with_roles.special_ids().padding, 261);
  EXPECT_FALSE(with_roles.special_ids().begin);
}

TEST(Tokenizer, AddedTokensTakeTheLongestAndWhiteSpace) {
  const Tokenizer tokenizer = of_json(with_change(
      byte_level_json(),
      R"("content":"<tool>","id":261,"lstrip":false,"normalized":false,"rstrip":false)",
      R"("content":"<|end|>x","id":261,"lstrip":true,"normalized":false,"rstrip":true)"));
  EXPECT_THAT(tokenizer.encode("a \t<|end|>x  b<|end|>"), ElementsAre('a', 261, 'b', 260));
}

/// Blanks that are tokens and take the blanks beside them: 10^6 of them are passed over once.
TEST(Tokenizer, AddedTokensOfWhiteSpaceTakeNoLongerThanTheText) {
  for (const char* takes : {R"("lstrip":true,"normalized":false,"rstrip":false)",
                            R"("lstrip":false,"normalized":false,"rstrip":true)"}) {
    const Tokenizer tokenizer = of_json(with_change(
        byte_level_json(),
        R"("content":"<tool>","id":261,"lstrip":false,"normalized":false,"rstrip":false)",
        std::string(R"("content":"\t","id":261,)") + takes));
    const std::vector<TokenId> ids = tokenizer.encode(std::string(1000000, '\t') + 'a');
    EXPECT_EQ(ids.size(), 1000001U) << takes;
    EXPECT_EQ(ids.back(), 'a') << takes;
  }
}

TEST(Tokenizer, TextsThatGrowWithoutEndAreRefused) {
  const ReplaceText step{.text = "a", .with = std::string(2000, 'a')};
  EXPECT_EQ(normalized("aba", {step}).size(), 4001U);
  EXPECT_THAT(
      [&] {
        normalized("a", {step, step, step});
      },
      ThrowsMessage<InvalidArgument>(
          HasSubstr("4000000 bytes of text, more than 1073741824 with 'aaa")));
}

TEST(Tokenizer, ThreadsGetTheSameIds) {
  const Tokenizer tokenizer = of_json(byte_level_json());
  const std::string text = "the it the it.the";
  const std::vector<std::string_view> texts(500, text);
  const auto alone = tokenizer.encode(text);
  for (const auto& ids : tokenizer.encode_all(texts)) EXPECT_EQ(ids, alone);
}

TEST(Tokenizer, ReadsFilesAndFolders) {
  const auto folder = std::filesystem::temp_directory_path() / "armillary_tokenizer_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.json") << byte_level_json();
  std::ofstream(folder / "tokenizer_config.json") << R"({"eos_token": "<|end|>"})";
  std::ofstream(folder / "model.gguf", std::ios::binary) << byte_level_gguf();
  const Tokenizer of_folder = load_tokenizer(folder.string());
  EXPECT_EQ(of_folder.special_ids().end, 260);
  EXPECT_EQ(of_folder.digest(), load_tokenizer((folder / "tokenizer.json").string()).digest());
  EXPECT_EQ(load_tokenizer((folder / "model.gguf").string()).vocab_size(), 262);
  EXPECT_THROW(load_tokenizer((folder / "none").string()), IoError);
  std::filesystem::remove_all(folder);
}

void refuses_json(const std::string& text, const std::string& part) {
  EXPECT_THAT([&] { of_json(text); }, ThrowsMessage<InvalidArgument>(HasSubstr(part)));
}

TEST(Tokenizer, RefusesPartsByTheirNames) {
  const std::string level = byte_level_json();
  const std::string fallback = byte_fallback_json();
  refuses_json("{", "is no JSON");
  refuses_json("[]", "tokenizer.json is a list");
  refuses_json(with_change(level, R"("type":"BPE")", R"("type":"Unigram")"), "model 'Unigram'");
  refuses_json(with_change(level, R"("type":"BPE")", R"("dropout":0.1,"type":"BPE")"),
               "dropout of model is 0.1");
  refuses_json(with_change(level, R"("padding":null)", R"("padding":{})"), "padding");
  refuses_json(with_change(level, R"("version")", R"("verzion")"), "key 'verzion'");
  refuses_json(with_change(level, R"("normalizer":null)", R"("normalizer":{"type":"Nmt"})"),
               "normalizer 'Nmt' is not implemented");
  refuses_json(with_change(level, R"("type":"ByteLevel")", R"("type":"BertPreTokenizer")"),
               "'BertPreTokenizer' is not implemented");
  refuses_json(with_change(fallback, R"("type":"TemplateProcessing")", R"("type":"Roberta")"),
               "post_processor 'Roberta'");
  refuses_json(with_change(fallback, R"("type":"Fuse")", R"("type":"CTC")"), "decoder 'CTC'");
  refuses_json(with_change(level, R"("single_word":false)", R"("single_word":true)"),
               "single_word");
  refuses_json(with_change(level, R"("id":260)", R"("id":3)"), "id 3 is of");
  refuses_json(with_change(level, R"("id":260)", R"("id":99999999)"), "id of added token");
  refuses_json(with_change(level, R"("id":260)", R"("id":-1)"), "id of added token");
  refuses_json(with_change(level, R"("t h")", R"("t zz")"), "merge 0 is \"t zz\"");
  refuses_json(with_change(level, R"("t h")", R"("t h e")"), "merge 0");
  refuses_json(with_change(level, R"("t h")", R"(["", "t"])"), "merge 0");
  refuses_json(with_change(level, R"("vocab":{)", R"("vocab":{"zzz":18446744073709551615,)"),
               "'zzz' has id -1");
  const std::string step = R"({"type":"NFC"})";
  const auto steps = [&](int count) {
    std::string all = step;
    for (int i = 1; i < count; ++i) all += ',' + step;
    return with_change(level, R"("normalizer":null)",
                       R"("normalizer":{"type":"Sequence","normalizers":[)" + all + "]}");
  };
  EXPECT_THAT(of_json(steps(64)).encode("x"), ElementsAre('x'));
  refuses_json(steps(65), "more than 64 steps with normalizer NFC");
  refuses_json(with_change(level, "<tool>", std::string(1025, 'x')),
               "added token 261 has 1025 bytes; at most 1024 are required");
  refuses_json(std::string(100000, '['), "is nested deeper than 64");
  refuses_json(with_change(level, R"("normalizer":null)",
                           R"("normalizer":)" + std::string(1000, '[') + std::string(1000, ']')),
               "is nested deeper than 64");
}

TEST(Tokenizer, RefusesGgufByNames) {
  const auto refuses = [](const std::string& bytes, const std::string& part) {
    EXPECT_THAT([&] { of_gguf(bytes); }, ThrowsMessage<InvalidArgument>(HasSubstr(part)));
  };
  const auto is_damaged = [](const std::string& bytes, const std::string& part) {
    EXPECT_THAT([&] { of_gguf(bytes); }, ThrowsMessage<IoError>(HasSubstr(part)));
  };
  const std::string level = byte_level_gguf();
  is_damaged("GGUF", "ends at byte 4");
  is_damaged("GGML" + level.substr(4), "does not begin with GGUF");
  is_damaged(with_change(level, std::string("GGUF\3", 5), std::string("GGUF\1", 5)), "version 1");
  refuses(with_change(level, "gpt2", "t5xx"), "tokenizer.ggml.model 't5xx'");
  refuses(with_change(level, "gpt-2", "gpt-9"), "tokenizer.ggml.pre 'gpt-9'");
  is_damaged(level.substr(0, level.size() / 2), "ends at byte");
  refuses(GgufWriter()
              .text("tokenizer.ggml.model", "llama")
              .texts("tokenizer.ggml.tokens", {std::string(300, 'a')})
              .floats("tokenizer.ggml.scores", {0})
              .bytes(),
          "has 300 bytes");
  is_damaged(GgufWriter().text("a", "b").text("a", "b").bytes(), "key 'a' twice");
  refuses(GgufWriter().text("tokenizer.ggml.model", "gpt2").bytes(), "0 tokens");
  refuses(GgufWriter().text("tokenizer.ggml.tokens", "gpt2").bytes(),
          "tokenizer.ggml.tokens of 'model.gguf' is 'gpt2'; an array of texts is required");
  std::string many = level;
  many[16] = many[17] = many[18] = many[19] = '\x7F';  // The number of keys.
  is_damaged(many, "ends at byte");
}

/// A changed file is read, or refused in one line: it never hangs, crashes or asks for all memory.
void expect_no_crash(const std::string& file, bool is_gguf, int trials) {
  std::mt19937 random(test_seed());
  if (test_all()) trials *= 100;
  for (int trial = 0; trial < trials; ++trial) {
    std::string bytes = file;
    for (unsigned change = random() % 4; change < 4; ++change) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, random() % 9);
          break;
        case 2:
          bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 40));
          break;
        default:
          bytes[at] = "\"[]{}:,0179\xFF\x7F"[random() % 13];
      }
    }
    try {
      const Tokenizer tokenizer = is_gguf ? of_gguf(bytes) : of_json(bytes);
      tokenizer.decode(tokenizer.encode("the it <|end|> \xF0\x9F\x98\x80\xFF 12", true));
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
}

TEST(Tokenizer, ChangedFilesAreReadOrRefused) {
  expect_no_crash(byte_level_json(), false, 400);
  expect_no_crash(byte_fallback_json(), false, 400);
  expect_no_crash(byte_level_gguf(), true, 800);
  expect_no_crash(byte_fallback_gguf(), true, 800);
}

}  // namespace
}  // namespace armillary::tokenizer

// small_tokenizers.cpp: JSON is built as values and GGUF byte by byte, both from the same lists of
// tokens and merges.
#include "armillary/text/tokenizer/testing/small_tokenizers.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "armillary/core/error.h"
#include "armillary/text/tokenizer/byte_alphabet.h"
#include "armillary/text/tokenizer/unicode.h"

namespace armillary::tokenizer {
namespace {

using nlohmann::json;

const std::vector<std::pair<std::string, std::string>> kLetterMerges{
    {"t", "h"}, {"th", "e"}, {"\xC4\xA0", "the"}, {"i", "t"}};
const std::vector<std::string> kMarkPieces{
    "\xE2\x96\x81", "t", "h", "e", "a", "th", "the", "\xE2\x96\x81the", "\xE2\x96\x81t"};

std::vector<std::string> letter_tokens() {
  std::vector<std::string> tokens(256);
  for (int byte = 0; byte < 256; ++byte) {
    append_code_point(tokens[static_cast<std::size_t>(byte)],
                      letter_of_byte(static_cast<unsigned char>(byte)));
  }
  for (const auto& [left, right] : kLetterMerges) tokens.push_back(left + right);
  return tokens;
}

std::vector<std::string> mark_tokens() {
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(fmt::format("<0x{:02X}>", byte));
  tokens.insert(tokens.end(), kMarkPieces.begin(), kMarkPieces.end());
  return tokens;
}

json vocabulary_of(const std::vector<std::string>& tokens) {
  json vocabulary = json::object();
  for (std::size_t id = 0; id < tokens.size(); ++id) vocabulary[tokens[id]] = id;
  return vocabulary;
}

json added_token(int id, const std::string& content, bool is_special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", is_special}};
}

template <class Number>
void append_number(std::string& bytes, Number number) {
  char raw[sizeof(number)];
  std::memcpy(raw, &number, sizeof(number));
  bytes.append(raw, sizeof(number));
}

void append_text(std::string& bytes, std::string_view text) {
  append_number(bytes, static_cast<std::uint64_t>(text.size()));
  bytes += text;
}

}  // namespace

std::string byte_level_json() {
  json merges = json::array();
  for (const auto& [left, right] : kLetterMerges) {
    merges.push_back(fmt::format("{} {}", left, right));
  }
  const json value{
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", {added_token(260, "<|end|>", true), added_token(261, "<tool>", false)}},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary_of(letter_tokens())}, {"merges", merges}}}};
  return value.dump();
}

std::string byte_fallback_json() {
  const std::string& mark = kMarkPieces[0];
  const json merges = json::array({json::array({"t", "h"}), json::array({"th", "e"}),
                                   json::array({mark, "the"}), json::array({mark, "t"})});
  const json special = {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}};
  const json value{
      {"version", "1.0"},
      {"added_tokens",
       {added_token(0, "<unk>", true), added_token(1, "<s>", true), added_token(2, "</s>", true)}},
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers",
         {{{"type", "Prepend"}, {"prepend", mark}},
          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", mark}}}}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
          {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
        {"special_tokens", {{"<s>", special}}}}},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"}, {"pattern", {{"String", mark}}}, {"content", " "}},
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}},
          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", vocabulary_of(mark_tokens())},
        {"merges", merges}}}};
  return value.dump();
}

std::string with_change(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  ARMILLARY_CHECK(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

void GgufWriter::begin(std::string_view key, std::uint32_t type) {
  ++count_;
  append_text(keys_, key);
  append_number(keys_, type);
}

GgufWriter& GgufWriter::text(std::string_view key, std::string_view value) {
  begin(key, 8);
  append_text(keys_, value);
  return *this;
}

GgufWriter& GgufWriter::number(std::string_view key, std::uint32_t value) {
  begin(key, 4);
  append_number(keys_, value);
  return *this;
}

GgufWriter& GgufWriter::boolean(std::string_view key, bool value) {
  begin(key, 7);
  append_number(keys_, static_cast<char>(value));
  return *this;
}

GgufWriter& GgufWriter::texts(std::string_view key, const std::vector<std::string>& values) {
  begin(key, 9);
  append_number(keys_, std::uint32_t{8});
  append_number(keys_, static_cast<std::uint64_t>(values.size()));
  for (const std::string& value : values) append_text(keys_, value);
  return *this;
}

GgufWriter& GgufWriter::floats(std::string_view key, const std::vector<float>& values) {
  begin(key, 9);
  append_number(keys_, std::uint32_t{6});
  append_number(keys_, static_cast<std::uint64_t>(values.size()));
  for (const float value : values) append_number(keys_, value);
  return *this;
}

GgufWriter& GgufWriter::integers(std::string_view key, const std::vector<std::int32_t>& values) {
  begin(key, 9);
  append_number(keys_, std::uint32_t{5});
  append_number(keys_, static_cast<std::uint64_t>(values.size()));
  for (const std::int32_t value : values) append_number(keys_, value);
  return *this;
}

std::string GgufWriter::bytes() const {
  std::string bytes = "GGUF";
  append_number(bytes, std::uint32_t{3});
  append_number(bytes, std::uint64_t{0});
  append_number(bytes, count_);
  return bytes + keys_;
}

std::string byte_level_gguf() {
  std::vector<std::string> tokens = letter_tokens();
  std::vector<std::int32_t> types(tokens.size(), 1);
  tokens.insert(tokens.end(), {"<|end|>", "<tool>"});
  types.insert(types.end(), {3, 4});
  std::vector<std::string> merges;
  merges.reserve(std::size(kLetterMerges));
  for (const auto& [left, right] : kLetterMerges) {
    merges.push_back(fmt::format("{} {}", left, right));
  }
  return GgufWriter()
      .text("tokenizer.ggml.model", "gpt2")
      .text("tokenizer.ggml.pre", "gpt-2")
      .texts("tokenizer.ggml.tokens", tokens)
      .integers("tokenizer.ggml.token_type", types)
      .texts("tokenizer.ggml.merges", merges)
      .number("tokenizer.ggml.eos_token_id", 260)
      .bytes();
}

std::string byte_fallback_gguf() {
  const std::vector<std::string> tokens = mark_tokens();
  std::vector<float> scores(tokens.size());
  std::vector<std::int32_t> types(tokens.size(), 1);
  for (std::size_t id = 0; id < tokens.size(); ++id) scores[id] = -static_cast<float>(id);
  types[0] = 2;
  types[1] = types[2] = 3;
  for (std::size_t id = 3; id < 259; ++id) types[id] = 6;
  return GgufWriter()
      .text("tokenizer.ggml.model", "llama")
      .texts("tokenizer.ggml.tokens", tokens)
      .floats("tokenizer.ggml.scores", scores)
      .integers("tokenizer.ggml.token_type", types)
      .number("tokenizer.ggml.bos_token_id", 1)
      .number("tokenizer.ggml.eos_token_id", 2)
      .number("tokenizer.ggml.unknown_token_id", 0)
      .bytes();
}

}  // namespace armillary::tokenizer

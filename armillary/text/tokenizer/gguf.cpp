// gguf.cpp: a byte-level tokenizer has its merges in the file. SentencePiece joins the two
// neighbours whose joined text is the token of the highest score, so its merges are made of the
// scores: every way to cut a token in two tokens, ranked by the token.
#include "armillary/text/tokenizer/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/user_text.h"
#include "armillary/io/content_hash.h"
#include "armillary/io/gguf.h"
#include "armillary/text/tokenizer/split_patterns.h"
#include "armillary/text/tokenizer/unicode.h"

namespace armillary::tokenizer {
namespace {

constexpr std::string_view kPrefix = "tokenizer.ggml.";
constexpr std::string_view kMark = "\xE2\x96\x81";  // U+2581
/// Longest token that may be joined; those of models have 16 code points, or are runs of blanks.
constexpr std::size_t kMostTokenBytes = 256;

enum TokenType : std::int64_t { Normal = 1, Unknown = 2, Control = 3, UserDefined = 4 };

std::string key_of(std::string_view name) {
  return std::string(kPrefix) + std::string(name);
}

/// The values of a file's tokenizer, by their names behind the prefix.
class TokenizerValues {
 public:
  TokenizerValues(std::span<const std::byte> file, const std::string& origin)
      : origin_(origin), all_(io::read_gguf_metadata(file, origin)) {}

  /// The value of a name; null if there is none.
  const std::string* text(std::string_view name) const { return find<std::string>(name, "a text"); }
  bool boolean(std::string_view name, bool otherwise) const {
    const bool* const value = find<bool>(name, "true or false");
    return value == nullptr ? otherwise : *value;
  }
  std::optional<std::uint64_t> id(std::string_view name) const {
    const std::uint64_t* const value = find<std::uint64_t>(name, "a whole number");
    return value == nullptr ? std::nullopt : std::optional(*value);
  }
  /// Elements of an array; empty if there is none.
  std::vector<std::string_view> texts(std::string_view name) const {
    const io::GgufArray* const value = array(name, io::GgufKind::Text, "an array of texts");
    return value == nullptr ? std::vector<std::string_view>() : value->texts();
  }
  std::vector<double> integers(std::string_view name) const {
    const io::GgufArray* const value = array(name, io::GgufKind::I32, "an array of int32");
    return value == nullptr ? std::vector<double>() : value->numbers();
  }
  std::vector<double> floats(std::string_view name) const {
    const io::GgufArray* const value = array(name, io::GgufKind::F32, "an array of float32");
    return value == nullptr ? std::vector<double>() : value->numbers();
  }

  /// All keys with their values.
  std::string identity() const {
    std::string bytes;
    for (const auto& [key, value] : all_) {
      if (!key.starts_with(kPrefix)) continue;
      bytes += fmt::format("{} {} ", key, value.index());
      const auto* const array = std::get_if<io::GgufArray>(&value);
      const auto* const text = std::get_if<std::string>(&value);
      if (array != nullptr) {
        bytes.append(reinterpret_cast<const char*>(array->bytes().data()), array->bytes().size());
      } else {
        bytes += text != nullptr ? *text : io::value_text(value);
      }
    }
    return bytes;
  }

 private:
  template <class Value>
  const Value* find(std::string_view name, std::string_view requirement) const {
    const auto entry = all_.find(key_of(name));
    if (entry == all_.end()) return nullptr;
    const auto* const value = std::get_if<Value>(&entry->second);
    if (value == nullptr) refuse(name, requirement);
    return value;
  }
  const io::GgufArray* array(std::string_view name, io::GgufKind kind,
                             std::string_view requirement) const {
    const auto* const value = find<io::GgufArray>(name, requirement);
    if (value != nullptr && value->kind() != kind) refuse(name, requirement);
    return value;
  }
  [[noreturn]] void refuse(std::string_view name, std::string_view requirement) const {
    fail<InvalidArgument>("tokenizer: {} of '{}' is {}; {} is required", key_of(name),
                          excerpt(origin_), io::value_text(all_.at(key_of(name))), requirement);
  }

  const std::string& origin_;
  io::GgufMetadata all_;
};

/// Reads the tokens, and which of them are added.
void read_tokens(const TokenizerValues& values, TokenizerParts& parts) {
  const std::vector<std::string_view> tokens = values.texts("tokens");
  const std::vector<double> types = values.integers("token_type");
  const bool fits = !tokens.empty() && (types.empty() || types.size() == tokens.size());
  if (!fits) {
    fail<InvalidArgument>(
        "tokenizer: '{}' has {} tokens and {} types of tokens; as many of both are required",
        excerpt(parts.origin), tokens.size(), types.size());
  }
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const std::string token(tokens[id]);
    if (first_invalid_utf8(token)) {
      fail<InvalidArgument>("tokenizer: token {} of '{}' is no UTF-8; texts in UTF-8 are required",
                            id, excerpt(parts.origin));
    }
    parts.vocabulary.add(static_cast<std::int64_t>(id), token);
    const auto type = types.empty() ? Normal : static_cast<std::int64_t>(types[id]);
    const bool is_added = type == Control || type == UserDefined || type == Unknown;
    // The first of equal texts counts, as in a search.
    if (!is_added || token.empty() || parts.vocabulary.find(token) != static_cast<TokenId>(id)) {
      continue;
    }
    parts.added.push_back(
        {.id = static_cast<TokenId>(id), .content = token, .is_special = type != UserDefined});
  }
}

/// The id of a role, in the vocabulary.
std::optional<TokenId> role(const TokenizerValues& values, std::string_view name,
                            const TokenizerParts& parts) {
  const std::optional<std::uint64_t> id = values.id(name);
  if (!id || *id == 0xFFFFFFFF) return std::nullopt;
  if (!parts.vocabulary.has(static_cast<std::int64_t>(*id))) {
    fail<InvalidArgument>("tokenizer: {} of '{}' is {}; the id of a token is required",
                          key_of(name), excerpt(parts.origin), *id);
  }
  return static_cast<TokenId>(*id);
}

void read_merges(const TokenizerValues& values, TokenizerParts& parts) {
  for (const std::string_view merge : values.texts("merges")) {
    // The first blank that has something in front of it parts the two.
    const std::size_t blank = merge.find(' ', 1);
    const bool has_two = blank != std::string_view::npos;
    const std::string left(merge.substr(0, blank));
    const std::string right(has_two ? merge.substr(blank + 1) : std::string_view());
    const auto left_id = parts.vocabulary.find(left);
    const auto right_id = parts.vocabulary.find(right);
    const auto joined_id = parts.vocabulary.find(left + right);
    if (right.empty() || !left_id || !right_id || !joined_id) {
      fail<InvalidArgument>(
          "tokenizer: merge {} of '{}' is {}; two tokens, whose joined text is a token, are "
          "required",
          parts.merges.size(), excerpt(parts.origin), quote(merge));
    }
    parts.merges.push_back({.left = *left_id,
                            .right = *right_id,
                            .joined = *joined_id,
                            .rank = static_cast<std::int32_t>(parts.merges.size())});
  }
}

void make_merges_of_scores(const TokenizerValues& values, TokenizerParts& parts) {
  const std::vector<double> scores = values.floats("scores");
  const auto count = static_cast<std::size_t>(parts.vocabulary.size());
  if (scores.size() != count) {
    fail<InvalidArgument>("tokenizer: '{}' has {} scores of {} tokens; one of each is required",
                          excerpt(parts.origin), scores.size(), count);
  }
  std::vector<TokenId> order(count);
  std::iota(order.begin(), order.end(), 0);
  // NaN is no order: it goes last.
  const auto score = [&](TokenId id) {
    const double s = scores[static_cast<std::size_t>(id)];
    return s == s ? s : -1e30;
  };
  std::ranges::stable_sort(order, [&](TokenId a, TokenId b) { return score(a) > score(b); });
  std::vector<bool> is_added(count);
  for (const AddedToken& token : parts.added) is_added[static_cast<std::size_t>(token.id)] = true;
  std::int32_t rank = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0 && score(order[i]) != score(order[i - 1])) ++rank;
    const std::string_view token = parts.vocabulary.token(order[i]);
    if (parts.vocabulary.find(token) != order[i]) continue;
    if (token.size() > kMostTokenBytes) {
      if (is_added[static_cast<std::size_t>(order[i])]) continue;
      fail<InvalidArgument>("tokenizer: token {} of '{}' has {} bytes; at most {} are required",
                            order[i], excerpt(parts.origin), token.size(), kMostTokenBytes);
    }
    for (std::size_t cut = 0; cut < token.size();) {
      next_code_point(token, cut);
      const auto left = parts.vocabulary.find(token.substr(0, cut));
      const auto right = parts.vocabulary.find(token.substr(cut));
      if (cut == token.size() || !left || !right) continue;
      parts.merges.push_back({.left = *left, .right = *right, .joined = order[i], .rank = rank});
    }
  }
}

void read_byte_level(const TokenizerValues& values, TokenizerParts& parts) {
  const std::string* const name = values.text("pre");
  const std::string pre = name == nullptr ? "default" : *name;
  const std::vector<NamedPreTokenizer>& all = named_pre_tokenizers();
  const auto kind = std::ranges::find(all, pre, &NamedPreTokenizer::name);
  if (kind == all.end()) {
    std::vector<std::string> names;
    names.reserve(std::size(all));
    for (const NamedPreTokenizer& one : all) names.emplace_back(one.name);
    fail<InvalidArgument>("tokenizer: {} {} of '{}' is not implemented; {} is required",
                          key_of("pre"), quote(pre), excerpt(parts.origin), list_names(names));
  }
  for (const std::string_view pattern : kind->patterns) {
    parts.pre_tokenizer.emplace_back(isolating(pattern));
  }
  parts.model.is_byte_level = true;
  parts.model.ignores_merges = kind->ignores_merges;
  parts.decoder.emplace_back(LettersToBytes());
  read_merges(values, parts);
  const bool adds = values.boolean("add_bos_token", kind->adds_begin);
  if (adds && parts.special.begin) parts.before.push_back(*parts.special.begin);
}

void read_sentencepiece(const TokenizerValues& values, TokenizerParts& parts) {
  const bool prepends = values.boolean("add_space_prefix", true);
  if (values.boolean("remove_extra_whitespaces", false)) {
    fail<InvalidArgument>(
        "tokenizer: {} of '{}' is true, which is not implemented; false is required",
        key_of("remove_extra_whitespaces"), excerpt(parts.origin));
  }
  if (prepends) parts.normalizer.emplace_back(PrependText{std::string(kMark)});
  parts.normalizer.emplace_back(ReplaceText{.text = " ", .with = std::string(kMark)});
  parts.model.has_byte_fallback = true;
  parts.model.fuses_unknown = true;
  parts.model.unknown = parts.special.unknown;
  make_merges_of_scores(values, parts);
  parts.decoder = {ReplaceText{.text = std::string(kMark), .with = " "}, BytesFromTokens(),
                   FuseTokens()};
  if (prepends) parts.decoder.emplace_back(StripToken{.code_point = ' ', .start = 1});
  if (values.boolean("add_bos_token", true) && parts.special.begin) {
    parts.before.push_back(*parts.special.begin);
  }
}

}  // namespace

TokenizerParts read_gguf(std::span<const std::byte> file, const std::string& origin) {
  const TokenizerValues values(file, origin);
  TokenizerParts parts;
  parts.origin = origin;
  parts.digest = io::content_hash(values.identity());
  read_tokens(values, parts);
  parts.special = {.begin = role(values, "bos_token_id", parts),
                   .end = role(values, "eos_token_id", parts),
                   .padding = role(values, "padding_token_id", parts),
                   .unknown = role(values, "unknown_token_id", parts)};
  const std::string* const name = values.text("model");
  const std::string model = name == nullptr ? "none" : *name;
  if (model == "gpt2") {
    read_byte_level(values, parts);
  } else if (model == "llama") {
    read_sentencepiece(values, parts);
  } else {
    fail<InvalidArgument>("tokenizer: {} {} of '{}' is not implemented; gpt2 or llama is required",
                          key_of("model"), quote(model), excerpt(origin));
  }
  if (values.boolean("add_eos_token", false) && parts.special.end) {
    parts.after.push_back(*parts.special.end);
  }
  return parts;
}

}  // namespace armillary::tokenizer

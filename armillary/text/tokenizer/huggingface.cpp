// huggingface.cpp: each part of the file is read by its own function into the steps of the
// tokenizer; what no function knows is refused by its name.
#include "armillary/text/tokenizer/huggingface.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/json_text.h"
#include "armillary/core/names.h"
#include "armillary/core/user_text.h"
#include "armillary/io/content_hash.h"
#include "armillary/text/tokenizer/split_patterns.h"
#include "armillary/text/tokenizer/tokenizer_fields.h"
#include "armillary/text/tokenizer/unicode.h"

namespace armillary::tokenizer {
namespace {

using nlohmann::json;

constexpr int kMostSequences = 16;
constexpr int kMostSteps = 64;  ///< A text goes through them by recursion.

[[noreturn]] void refuse_type(const std::string& part, const std::string& type,
                              const std::vector<std::string>& known) {
  fail<InvalidArgument>("tokenizer: {} {} is not implemented; {} is required", part, quote(type),
                        list_names(known));
}

/// Calls `read` with the type and the fields of a part, or of each of the parts of a Sequence,
/// which are under `key`. Nothing for null.
void for_each_part(
    const std::string& part, const json& value, const std::string& key,
    const std::function<void(const std::string& type, TokenizerFields& fields)>& read,
    int depth = 0) {
  if (value.is_null()) return;
  if (depth > kMostSequences) {
    fail<InvalidArgument>(
        "tokenizer: {} has more than {} sequences in one another; fewer are "
        "required",
        part, kMostSequences);
  }
  TokenizerFields outside(part, value);
  const std::string type = outside.text("type");
  if (type == "Sequence") {
    for (const json& one : outside.list(key)) for_each_part(part, one, key, read, depth + 1);
    outside.finish();
    return;
  }
  TokenizerFields fields(part + " " + excerpt(type), value);
  fields.ignore({"type"});
  read(type, fields);
  fields.finish();
}

json parse_json(std::string_view text, const std::string& origin) {
  if (const auto byte = too_deep_json_at(text, kMostJsonDepth)) {
    fail<InvalidArgument>("tokenizer: '{}' is nested deeper than {} at byte {}; less is required",
                          excerpt(origin), kMostJsonDepth, *byte);
  }
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    fail<InvalidArgument>("tokenizer: '{}' is no JSON; tokenizer.json of Hugging Face is required",
                          excerpt(origin));
  }
  return value;
}

/// The text of {"String": ".."}.
std::string text_pattern(TokenizerFields& fields) {
  TokenizerFields pattern(fields.where() + " pattern", fields.get("pattern"));
  std::string text = pattern.text("String");
  pattern.finish();
  if (text.empty()) fields.refuse("pattern", "a text that is not empty");
  return text;
}

/// One code point.
std::string mark_of(TokenizerFields& fields, const std::string& key) {
  std::string mark = fields.text(key);
  std::size_t end = 0;
  if (!mark.empty()) next_code_point(mark, end);
  if (mark.empty() || end != mark.size()) fields.refuse(key, "one character");
  return mark;
}

// The model: tokens and merges.

BpeMerge merge_of(const json& value, std::int32_t rank, const TokenVocabulary& vocabulary) {
  std::string left;
  std::string right;
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    left = value[0].get<std::string>();
    right = value[1].get<std::string>();
  } else if (value.is_string()) {
    const auto& both = value.get_ref<const std::string&>();
    left = both.substr(0, both.find(' '));
    right = both.substr(std::min(left.size() + 1, both.size()));
    if (right.find(' ') != std::string::npos) right.clear();
  }
  const auto left_id = vocabulary.find(left);
  const auto right_id = vocabulary.find(right);
  const auto joined_id = vocabulary.find(left + right);
  if (left.empty() || right.empty() || !left_id || !right_id || !joined_id) {
    fail<InvalidArgument>(
        "tokenizer: merge {} is {}; two tokens, whose joined text is a token, are required", rank,
        excerpt(value.dump(-1, ' ', false, json::error_handler_t::replace)));
  }
  return {.left = *left_id, .right = *right_id, .joined = *joined_id, .rank = rank};
}

void read_model(const json& value, TokenizerParts& parts) {
  TokenizerFields fields("model", value);
  const json& type = fields.get("type");
  if (!type.is_null() && type != "BPE") refuse_type("model", fields.text("type"), {"BPE"});
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    fields.require_nothing(key);
  }
  parts.model.has_byte_fallback = fields.boolean("byte_fallback", false);
  parts.model.fuses_unknown = fields.boolean("fuse_unk", false);
  parts.model.ignores_merges = fields.boolean("ignore_merges", false);
  fields.ignore({"cache_capacity"});
  const json& tokens = fields.get("vocab");
  if (!tokens.is_object() || tokens.empty()) fields.refuse("vocab", "an object of tokens");
  for (const auto& [token, id] : tokens.items()) {
    const bool fits = id.is_number_unsigned() && id.get<std::uint64_t>() < kMostTokens;
    parts.vocabulary.add(fits ? id.get<std::int64_t>() : -1, token);
  }
  const json& merges = fields.list("merges");
  if (merges.size() > static_cast<std::size_t>(kMostTokens)) {
    fields.refuse("merges", fmt::format("one of at most {} merges", kMostTokens));
  }
  for (const json& merge : merges) {
    parts.merges.push_back(
        merge_of(merge, static_cast<std::int32_t>(parts.merges.size()), parts.vocabulary));
  }
  if (!fields.get("unk_token").is_null()) {
    parts.model.unknown = parts.vocabulary.find(fields.text("unk_token"));
    if (!parts.model.unknown) fields.refuse("unk_token", "a token of the vocabulary");
  }
  fields.finish();
}

// The parts in front of it.

void read_normalizer(const std::string& type, TokenizerFields& fields, TokenizerParts& parts) {
  constexpr std::array<std::pair<std::string_view, NormalForm>, 4> kForms{
      {{"NFC", NormalForm::Nfc},
       {"NFD", NormalForm::Nfd},
       {"NFKC", NormalForm::Nfkc},
       {"NFKD", NormalForm::Nfkd}}};
  for (const auto& [name, form] : kForms) {
    if (type != name) continue;
    parts.normalizer.emplace_back(form);
    return;
  }
  if (type == "Prepend") {
    parts.normalizer.emplace_back(PrependText{fields.text("prepend")});
  } else if (type == "Replace") {
    parts.normalizer.emplace_back(ReplaceText{text_pattern(fields), fields.text("content")});
  } else {
    refuse_type("normalizer", type,
                {"NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace", "Sequence"});
  }
}

/// The pattern of a Split: a regular expression, or a text.
std::shared_ptr<const SplitPattern> split_pattern_of(TokenizerFields& fields) {
  TokenizerFields pattern(fields.where() + " pattern", fields.get("pattern"));
  std::string regex;
  if (!pattern.get("Regex").is_null()) {
    regex = pattern.text("Regex");
  } else {
    for (const char byte : pattern.text("String")) {
      const bool is_sign = (byte >= '!' && byte <= '/') || (byte >= ':' && byte <= '@') ||
                           (byte >= '[' && byte <= '`') || (byte >= '{' && byte <= '~');
      if (is_sign) regex += '\\';
      regex += byte;
    }
  }
  pattern.finish();
  return std::make_shared<SplitPattern>(std::move(regex));
}

SplitStep split_step_of(TokenizerFields& fields) {
  constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kBehaviors{
      {{"Removed", SplitBehavior::Removed},
       {"Isolated", SplitBehavior::Isolated},
       {"MergedWithPrevious", SplitBehavior::MergedWithPrevious},
       {"MergedWithNext", SplitBehavior::MergedWithNext},
       {"Contiguous", SplitBehavior::Contiguous}}};
  SplitStep step{.pattern = split_pattern_of(fields),
                 .is_inverted = fields.boolean("invert", false)};
  const std::string behavior = fields.text("behavior");
  for (const auto& [name, value] : kBehaviors) {
    if (behavior != name) continue;
    step.behavior = value;
    return step;
  }
  fields.refuse("behavior", "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

/// Whether Metaspace puts its mark in front of a text.
MetaspaceStep::Prepend prepend_of(TokenizerFields& fields) {
  if (!fields.boolean("add_prefix_space", true)) {
    fields.ignore({"prepend_scheme"});
    return MetaspaceStep::Prepend::Never;
  }
  if (fields.get("prepend_scheme").is_null()) return MetaspaceStep::Prepend::Always;
  const std::string scheme = fields.text("prepend_scheme");
  if (scheme == "always") return MetaspaceStep::Prepend::Always;
  if (scheme == "first") return MetaspaceStep::Prepend::First;
  if (scheme == "never") return MetaspaceStep::Prepend::Never;
  fields.refuse("prepend_scheme", "always, first or never");
}

void read_pre_tokenizer(const std::string& type, TokenizerFields& fields, TokenizerParts& parts) {
  if (parts.model.is_byte_level) {
    fail<InvalidArgument>(
        "tokenizer: pre_tokenizer {} behind ByteLevel is not implemented; ByteLevel as the last is "
        "required",
        quote(type));
  }
  if (type == "ByteLevel") {
    if (fields.boolean("add_prefix_space", true)) {
      parts.pre_tokenizer.emplace_back(PrefixBlankStep());
    }
    if (fields.boolean("use_regex", true))
      parts.pre_tokenizer.emplace_back(isolating(kGpt2Pattern));
    fields.ignore({"trim_offsets"});
    parts.model.is_byte_level = true;
  } else if (type == "Split") {
    parts.pre_tokenizer.emplace_back(split_step_of(fields));
  } else if (type == "Digits") {
    SplitStep step = isolating(R"(\p{N})");
    if (!fields.boolean("individual_digits", false)) step.behavior = SplitBehavior::Contiguous;
    parts.pre_tokenizer.emplace_back(std::move(step));
  } else if (type == "Metaspace") {
    MetaspaceStep step{.mark = mark_of(fields, "replacement"),
                       .prepend = prepend_of(fields),
                       .splits = fields.boolean("split", true)};
    fields.ignore({"str_rep"});
    parts.pre_tokenizer.emplace_back(std::move(step));
  } else {
    refuse_type("pre_tokenizer", type, {"ByteLevel", "Split", "Digits", "Metaspace", "Sequence"});
  }
}

// The parts behind it.

/// The ids of a special token of a template.
void add_special(const std::string& name, const json& special_tokens, std::vector<TokenId>& ids) {
  const auto place = special_tokens.is_object() ? special_tokens.find(name) : special_tokens.end();
  if (!special_tokens.is_object() || place == special_tokens.end()) {
    fail<InvalidArgument>(
        "tokenizer: post_processor TemplateProcessing has no token {}; one in "
        "special_tokens is required",
        quote(name));
  }
  TokenizerFields token("post_processor special token", *place);
  token.ignore({"id", "tokens"});
  for (const json& id : token.list("ids")) {
    const bool fits = id.is_number_unsigned() && id.get<std::uint64_t>() < kMostTokens;
    if (!fits) token.refuse("ids", "a list of ids");
    ids.push_back(id.get<TokenId>());
  }
  token.finish();
}

void read_post_processor(const std::string& type, TokenizerFields& fields, TokenizerParts& parts) {
  if (type == "ByteLevel") {  // It changes offsets, which we have none of.
    fields.ignore({"add_prefix_space", "trim_offsets", "use_regex"});
    return;
  }
  if (type != "TemplateProcessing") {
    refuse_type("post_processor", type, {"TemplateProcessing", "ByteLevel", "Sequence"});
  }
  fields.ignore({"pair"});
  const json& special_tokens = fields.get("special_tokens");
  bool is_behind = false;
  for (const json& piece : fields.list("single")) {
    TokenizerFields one(fields.where() + " piece", piece);
    if (!one.get("Sequence").is_null()) {
      if (std::exchange(is_behind, true)) fields.refuse("single", "the text once");
      continue;
    }
    TokenizerFields token(fields.where() + " piece", one.get("SpecialToken"));
    add_special(token.text("id"), special_tokens, is_behind ? parts.after : parts.before);
  }
  if (!is_behind) fields.refuse("single", "a template with the text");
}

void read_decoder(const std::string& type, TokenizerFields& fields, TokenizerParts& parts) {
  if (type == "ByteLevel") {
    fields.ignore({"add_prefix_space", "trim_offsets", "use_regex"});
    parts.decoder.emplace_back(LettersToBytes());
  } else if (type == "ByteFallback") {
    parts.decoder.emplace_back(BytesFromTokens());
  } else if (type == "Fuse") {
    parts.decoder.emplace_back(FuseTokens());
  } else if (type == "Strip") {
    const std::string content = mark_of(fields, "content");
    std::size_t end = 0;
    StripToken step{.code_point = next_code_point(content, end)};
    for (const auto& [key, member] :
         {std::pair("start", &StripToken::start), std::pair("stop", &StripToken::stop)}) {
      const std::int64_t count = fields.integer(key);
      if (count < 0) fields.refuse(key, "at least 0");
      step.*member = static_cast<std::size_t>(count);
    }
    parts.decoder.emplace_back(step);
  } else if (type == "Metaspace") {
    const MetaspaceStep::Prepend prepend = prepend_of(fields);
    parts.decoder.emplace_back(MarksToBlanks{.mark = mark_of(fields, "replacement"),
                                             .prepends = prepend != MetaspaceStep::Prepend::Never});
    fields.ignore({"split", "str_rep"});
  } else if (type == "Replace") {
    parts.decoder.emplace_back(ReplaceText{text_pattern(fields), fields.text("content")});
  } else {
    refuse_type("decoder", type,
                {"ByteLevel", "ByteFallback", "Fuse", "Strip", "Metaspace", "Replace", "Sequence"});
  }
}

AddedToken added_token_of(const json& value) {
  TokenizerFields fields("added token", value);
  AddedToken token{.content = fields.text("content"),
                   .is_special = fields.boolean("special", false),
                   .is_normalized = fields.boolean("normalized", true),
                   .takes_left = fields.boolean("lstrip", false),
                   .takes_right = fields.boolean("rstrip", false)};
  const std::int64_t id = fields.integer("id");
  if (id < 0 || id >= kMostTokens) {
    fields.refuse("id", fmt::format("one at least 0 and below {}", kMostTokens));
  }
  token.id = static_cast<TokenId>(id);
  if (fields.boolean("single_word", false)) fields.refuse("single_word", "false");
  fields.finish();
  return token;
}

/// The ids of the roles that tokenizer_config.json names.
void read_roles(std::string_view config, const std::string& origin, TokenizerParts& parts) {
  if (config.empty()) return;
  const json value = parse_json(config, origin + " (tokenizer_config.json)");
  constexpr std::array<std::pair<const char*, std::optional<TokenId> SpecialIds::*>, 4> kRoles{
      {{"bos_token", &SpecialIds::begin},
       {"eos_token", &SpecialIds::end},
       {"pad_token", &SpecialIds::padding},
       {"unk_token", &SpecialIds::unknown}}};
  for (const auto& [key, role] : kRoles) {
    const auto place = value.is_object() ? value.find(key) : value.end();
    if (!value.is_object() || place == value.end()) continue;
    const json& token = place->is_object() ? place->value("content", json()) : *place;
    if (!token.is_string()) continue;
    for (const AddedToken& added : parts.added) {
      if (added.content == token.get_ref<const std::string&>()) parts.special.*role = added.id;
    }
    const auto id = parts.vocabulary.find(token.get_ref<const std::string&>());
    if (id) parts.special.*role = *id;
  }
}

}  // namespace

TokenizerParts read_huggingface(std::string_view text, std::string_view config,
                                const std::string& origin) {
  const json value = parse_json(text, origin);
  TokenizerParts parts;
  parts.origin = origin;
  parts.digest = io::content_hash(text);
  TokenizerFields fields("tokenizer.json", value);
  fields.ignore({"version"});
  for (const char* key : {"truncation", "padding"}) {
    if (!fields.get(key).is_null()) fields.refuse(key, "null, as it is not implemented,");
  }
  read_model(fields.get("model"), parts);
  const auto with = [&](auto read) {
    return [&parts, read, steps = 0](const std::string& type, TokenizerFields& of) mutable {
      if (++steps > kMostSteps) {
        fail<InvalidArgument>("tokenizer: more than {} steps with {}; at most as many are required",
                              kMostSteps, of.where());
      }
      read(type, of, parts);
    };
  };
  for_each_part("normalizer", fields.get("normalizer"), "normalizers", with(read_normalizer));
  for_each_part("pre_tokenizer", fields.get("pre_tokenizer"), "pretokenizers",
                with(read_pre_tokenizer));
  for_each_part("post_processor", fields.get("post_processor"), "processors",
                with(read_post_processor));
  for_each_part("decoder", fields.get("decoder"), "decoders", with(read_decoder));
  const bool is_empty_sequence = parts.decoder.empty() && !fields.get("decoder").is_null();
  if (is_empty_sequence) parts.decoder.emplace_back(FuseTokens());
  if (!fields.get("added_tokens").is_null()) {
    for (const json& token : fields.list("added_tokens")) {
      parts.added.push_back(added_token_of(token));
    }
  }
  fields.finish();
  if (parts.model.is_byte_level && parts.model.has_byte_fallback) {
    fail<InvalidArgument>(
        "tokenizer: byte_fallback with ByteLevel is not implemented; one of them is required");
  }
  read_roles(config, origin, parts);
  if (!parts.special.unknown) parts.special.unknown = parts.model.unknown;
  return parts;
}

}  // namespace armillary::tokenizer

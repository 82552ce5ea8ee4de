// index.cpp: the index as JSON, with the hash of its own text at the end, and as lines for people
// and for checkpoints.
#include "armillary/text/corpus/index.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/input_file.h"
#include "armillary/core/json_text.h"
#include "armillary/core/user_text.h"
#include "armillary/io/content_hash.h"

namespace armillary::corpus {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kCorpusVersion = 1;
constexpr double kMostWeight = 1000;
constexpr std::size_t kMostListedFiles = 1000;
constexpr std::int64_t kMostIndexBytes = std::int64_t{256} << 20;

constexpr std::array<std::pair<const char*, std::int64_t PackerCounts::*>, 7> kCounts{
    {{"documents", &PackerCounts::documents},
     {"empty", &PackerCounts::empty},
     {"tokens", &PackerCounts::tokens},
     {"sequences", &PackerCounts::sequences},
     {"cuts", &PackerCounts::cuts},
     {"padding", &PackerCounts::padding},
     {"dropped", &PackerCounts::dropped}}};

std::string index_ending(std::string_view body) {
  return fmt::format(",\"hash\":\"{}\"}}\n", io::content_hash(body));
}

Json json_of(const PackerCounts& counts) {
  Json json;
  for (const auto& [key, member] : kCounts) json[key] = counts.*member;
  return json;
}

Json json_of(const IndexedSource& source) {
  Json json{{"name", source.name},
            {"weight", source.weight},
            {"train", json_of(source.train)},
            {"validation", json_of(source.validation)},
            {"files", Json::array()},
            {"shards", Json::array()}};
  for (const SourceFile& file : source.files) {
    json["files"].push_back({{"path", file.path}, {"bytes", file.bytes}, {"hash", file.hash}});
  }
  for (const IndexedShard& shard : source.shards) {
    json["shards"].push_back({{"file", shard.file},
                              {"part", to_string(shard.part)},
                              {"sequences", shard.shape.sequences},
                              {"pieces", shard.shape.pieces},
                              {"hash", shard.hash}});
  }
  return json;
}

/// Fields of an index; each throws IoError that names it.
class IndexFields {
 public:
  IndexFields(const Json& json, const std::string& path) : json_(json), path_(path) {}

  [[noreturn]] void refuse(const char* key) const {
    fail<IoError>(
        "corpus: '{}' has no field '{}' of its kind; an index of format_version {} is "
        "required",
        excerpt(path_), key, kCorpusVersion);
  }
  const Json& at(const char* key) const {
    if (!json_.is_object() || !json_.contains(key)) refuse(key);
    return *json_.find(key);
  }
  IndexFields object(const char* key) const { return {at(key), path_}; }
  std::string text(const char* key) const {
    if (!at(key).is_string()) refuse(key);
    return at(key).get<std::string>();
  }
  std::int64_t count(const char* key, std::int64_t most = INT64_MAX) const {
    const Json& value = at(key);
    const bool fits = value.is_number_unsigned() &&
                      value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most);
    if (!fits) refuse(key);
    return value.get<std::int64_t>();
  }
  double number(const char* key, double most) const {
    if (!at(key).is_number()) refuse(key);
    const auto value = at(key).get<double>();
    if (!(value >= 0 && value <= most)) refuse(key);
    return value;
  }
  std::vector<IndexFields> list(const char* key) const {
    if (!at(key).is_array()) refuse(key);
    std::vector<IndexFields> all;
    for (const Json& item : at(key)) all.emplace_back(item, path_);
    return all;
  }

 private:
  const Json& json_;
  const std::string& path_;
};

PackerCounts counts_of(const IndexFields& fields) {
  PackerCounts counts;
  for (const auto& [key, member] : kCounts) counts.*member = fields.count(key);
  return counts;
}

IndexedShard shard_of(const IndexFields& fields, const CorpusIndex& index) {
  IndexedShard shard{.file = fields.text("file"), .hash = fields.text("hash")};
  if (shard.file.empty() || shard.file.find('/') != std::string::npos) fields.refuse("file");
  const std::string part = fields.text("part");
  if (part != "train" && part != "validation") fields.refuse("part");
  shard.part = part == "train" ? CorpusPart::Train : CorpusPart::Validation;
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  shard.shape = {.seq_len = index.seq_len,
                 .sequences = fields.count("sequences", kMost),
                 .pieces = fields.count("pieces", kMost),
                 .token_bytes = token_bytes(index.vocab_size)};
  return shard;
}

IndexedSource source_of(const IndexFields& fields, const CorpusIndex& index) {
  IndexedSource source{.name = fields.text("name"),
                       .weight = fields.number("weight", kMostWeight),
                       .train = counts_of(fields.object("train")),
                       .validation = counts_of(fields.object("validation"))};
  for (const IndexFields& file : fields.list("files")) {
    source.files.push_back({file.text("path"), file.count("bytes"), file.text("hash")});
  }
  for (const IndexFields& shard : fields.list("shards")) {
    source.shards.push_back(shard_of(shard, index));
  }
  return source;
}

CorpusIndex index_of(const IndexFields& fields) {
  if (fields.count("format_version") != kCorpusVersion) fields.refuse("format_version");
  CorpusIndex index{.tokenizer = fields.text("tokenizer"),
                    .tokenizer_digest = fields.text("tokenizer_digest"),
                    .vocab_size = fields.count("vocab_size", tokenizer::kMostTokens)};
  index.separator = static_cast<tokenizer::TokenId>(
      fields.count("separator", std::max<std::int64_t>(index.vocab_size - 1, 0)));
  index.seq_len = fields.count("seq_len", INT32_MAX - 1);
  if (index.seq_len < 1) fields.refuse("seq_len");
  const std::string packing = fields.text("packing");
  if (packing != "cut" && packing != "best_fit") fields.refuse("packing");
  index.packing = packing == "cut" ? PackingKind::Cut : PackingKind::BestFit;
  index.validation = fields.number("validation", 1);
  index.seed = fields.count("seed");
  for (const IndexFields& source : fields.list("sources")) {
    index.sources.push_back(source_of(source, index));
  }
  return index;
}

}  // namespace

std::string_view to_string(CorpusPart part) {
  return part == CorpusPart::Train ? "train" : "validation";
}

std::int64_t IndexedSource::sequences(CorpusPart part) const {
  std::int64_t sum = 0;
  for (const IndexedShard& shard : shards) {
    if (shard.part == part) sum += shard.shape.sequences;
  }
  return sum;
}

std::int64_t IndexedSource::sequences_per_epoch() const {
  return static_cast<std::int64_t>(
      std::floor(weight * static_cast<double>(sequences(CorpusPart::Train))));
}

std::string to_text(const CorpusIndex& index) {
  Json json{{"format_version", kCorpusVersion},
            {"tokenizer", index.tokenizer},
            {"tokenizer_digest", index.tokenizer_digest},
            {"vocab_size", index.vocab_size},
            {"separator", index.separator},
            {"seq_len", index.seq_len},
            {"packing", to_string(index.packing)},
            {"validation", index.validation},
            {"seed", index.seed},
            {"sources", Json::array()}};
  for (const IndexedSource& source : index.sources) json["sources"].push_back(json_of(source));
  std::string body = json_text(json);
  body.pop_back();
  return body + index_ending(body);
}

CorpusIndex parse_index(const std::string& path, std::string_view text) {
  const std::size_t ending = index_ending("").size();
  const std::string_view body = text.substr(0, text.size() - std::min(text.size(), ending));
  if (text.size() <= ending || text.substr(body.size()) != index_ending(body)) {
    fail<IoError>(
        "corpus: '{}' is not as `armillary data prepare` wrote it; the whole text with "
        "its hash is required",
        excerpt(path));
  }
  const JsonRead read = read_json_text(text);
  if (read.fault) {
    fail<IoError>("corpus: '{}' {}; an index is required", excerpt(path), to_string(*read.fault));
  }
  return index_of(IndexFields(read.value, path));
}

CorpusIndex read_index(const std::string& folder) {
  const std::string path = folder + "/" + kIndexName;
  return parse_index(path, read_input({.where = "corpus",
                                       .required = "the index of `armillary data prepare`",
                                       .most_bytes = kMostIndexBytes},
                                      path));
}

std::vector<std::string> identity_of(const CorpusIndex& index) {
  std::vector<std::string> lines;
  const auto add = [&](const std::string& key, const std::string& value) {
    lines.push_back(key + " = " + value);
  };
  add("tokenizer", index.tokenizer + " " + index.tokenizer_digest);
  add("separator", fmt::to_string(index.separator));
  add("seq_len", fmt::to_string(index.seq_len));
  add("packing", std::string(to_string(index.packing)));
  add("packing seed", fmt::to_string(index.seed));
  add("validation", fmt::to_string(index.validation));
  // Lists that are too long to be shown, or kept in each checkpoint, are one line.
  const auto add_list = [&](const std::string& name, const std::vector<std::string>& list) {
    if (list.size() <= kMostListedFiles) {
      lines.insert(lines.end(), list.begin(), list.end());
      return;
    }
    std::string all;
    for (const std::string& line : list) all += line + '\n';
    add(name, fmt::format("{} files {}", list.size(), io::content_hash(all)));
  };
  for (const IndexedSource& source : index.sources) {
    add("weight of " + source.name, fmt::to_string(source.weight));
    std::vector<std::string> files;
    files.reserve(source.files.size());
    for (const SourceFile& file : source.files) {
      files.push_back(fmt::format("file {} = {} bytes {}", file.path, file.bytes, file.hash));
    }
    add_list("source " + source.name, files);
  }
  std::vector<std::string> shards;
  for (const IndexedSource& source : index.sources) {
    for (const IndexedShard& shard : source.shards) {
      shards.push_back(fmt::format("shard {} = {}", shard.file, shard.hash));
    }
  }
  add_list("shards", shards);
  return lines;
}

std::string describe(const CorpusIndex& index) {
  std::string text = fmt::format(
      "tokenizer {} of {} tokens, separator {}; sequences of {} tokens, packing {}\n{:<16}"
      "{:>12}{:>8}{:>15}{:>11}{:>9}{:>10}{:>9}{:>11}\n",
      index.tokenizer, index.vocab_size, index.separator, index.seq_len, to_string(index.packing),
      "source", "documents", "empty", "tokens", "sequences", "cuts", "padding", "dropped",
      "per epoch");
  const auto row = [&](const std::string& name, const PackerCounts& counts,
                       const std::string& per_epoch) {
    text += fmt::format("{:<16}{:>12}{:>8}{:>15}{:>11}{:>9}{:>10}{:>9}{:>11}\n", name,
                        counts.documents, counts.empty, counts.tokens, counts.sequences,
                        counts.cuts, counts.padding, counts.dropped, per_epoch);
  };
  std::int64_t epoch = 0;
  double unread = 0;
  for (const IndexedSource& source : index.sources) {
    epoch += source.sequences_per_epoch();
    unread += source.weight * static_cast<double>(source.train.sequences) -
              static_cast<double>(source.sequences_per_epoch());
    row(source.name, source.train, fmt::to_string(source.sequences_per_epoch()));
    if (source.validation.documents > 0) row("  validation", source.validation, "-");
  }
  return text +
         fmt::format("an epoch reads {} and drops {:.2f}, the parts that weights leave of one\n",
                     count_of(epoch, "sequence"), unread);
}

}  // namespace armillary::corpus

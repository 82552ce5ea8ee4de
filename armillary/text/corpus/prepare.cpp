// prepare.cpp: documents are encoded in batches, on all cores, and packed in their order; each
// source has a packer and a row of shards for either part.
#include "armillary/text/corpus/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/io/file_system.h"
#include "armillary/io/run_files.h"
#include "armillary/io/text_files.h"
#include "armillary/text/corpus/corpus.h"
#include "armillary/text/corpus/keyed_permutation.h"

namespace armillary::corpus {
namespace {

constexpr std::size_t kBatchBytes = std::size_t{8} << 20;
constexpr std::uint64_t kValidationStream = 3;

/// The shards of one part of a source.
class ShardRow {
 public:
  ShardRow(const PrepareRequest& request, std::size_t source, CorpusPart part, int token_bytes)
      : request_(request), source_(source), part_(part), token_bytes_(token_bytes) {}

  void add(const PackedSequence& sequence) {
    if (writer_ && writer_->sequences() == request_.shard_sequences) close();
    if (!writer_) {
      file_ = fmt::format("{}-{:03}-{:05}.tokens", to_string(part_), source_, shards_.size());
      writer_.emplace(request_.folder + "/" + file_, request_.seq_len, token_bytes_);
    }
    writer_->add(sequence);
  }

  /// The shards, in their order.
  std::vector<IndexedShard> finish() {
    if (writer_) close();
    return std::move(shards_);
  }

 private:
  void close() {
    const ShardShape shape = writer_->finish();
    writer_.reset();
    const Shard shard(request_.folder + "/" + file_, shape);
    shards_.push_back({.file = file_, .part = part_, .shape = shape, .hash = shard.hash()});
  }

  const PrepareRequest& request_;
  std::size_t source_;
  CorpusPart part_;
  int token_bytes_;
  std::string file_;
  std::optional<ShardWriter> writer_;
  std::vector<IndexedShard> shards_;
};

/// Documents on their way to the shards of a source.
class SourceWriter {
 public:
  SourceWriter(const PrepareRequest& request, const tokenizer::Tokenizer& tokenizer,
               const CorpusIndex& index, std::size_t source)
      : request_(request),
        tokenizer_(tokenizer),
        source_(source),
        train_shards_(request, source, CorpusPart::Train, token_bytes(index.vocab_size)),
        validation_shards_(request, source, CorpusPart::Validation, token_bytes(index.vocab_size)),
        train_(options_of(index), [this](const PackedSequence& s) { train_shards_.add(s); }),
        validation_(options_of(index),
                    [this](const PackedSequence& s) { validation_shards_.add(s); }) {}

  void add(std::string_view document) {
    bytes_ += document.size();
    batch_.emplace_back(document);
    if (bytes_ >= kBatchBytes) encode();
  }

  void finish(IndexedSource& source) {
    encode();
    train_.finish();
    validation_.finish();
    source.train = train_.counts();
    source.validation = validation_.counts();
    source.shards = train_shards_.finish();
    for (IndexedShard& shard : validation_shards_.finish()) {
      source.shards.push_back(std::move(shard));
    }
  }

 private:
  PackerOptions options_of(const CorpusIndex& index) const {
    return {.seq_len = index.seq_len,
            .kind = index.packing,
            .separator = index.separator,
            .seed = mixed_key({static_cast<std::uint64_t>(index.seed), source_})};
  }

  void encode() {
    const std::vector<std::string_view> texts(batch_.begin(), batch_.end());
    for (std::vector<tokenizer::TokenId>& ids : tokenizer_.encode_all(texts)) {
      // Upper bits of a hash of the number of the document.
      const std::uint64_t draw = mixed_key({static_cast<std::uint64_t>(request_.seed),
                                            kValidationStream, source_, documents_++}) >>
                                 11U;
      const bool is_validation = static_cast<double>(draw) * 0x1p-53 < request_.validation;
      (is_validation ? validation_ : train_).add(std::move(ids));
    }
    batch_.clear();
    bytes_ = 0;
  }

  const PrepareRequest& request_;
  const tokenizer::Tokenizer& tokenizer_;
  std::size_t source_;
  std::uint64_t documents_ = 0;
  std::vector<std::string> batch_;
  std::size_t bytes_ = 0;
  ShardRow train_shards_;
  ShardRow validation_shards_;
  Packer train_;
  Packer validation_;
};

void check_request(const PrepareRequest& request) {
  if (request.sources.empty()) {
    fail<InvalidArgument>("data prepare: no source given; at least 1 is required");
  }
  std::set<std::string> names;
  for (const SourceRequest& source : request.sources) {
    if (!names.insert(source.name).second) {
      fail<InvalidArgument>("data prepare: two sources are called {}; different names are required",
                            quote(source.name));
    }
    if (!(source.weight > 0 && source.weight <= 1000)) {
      fail<InvalidArgument>(
          "data prepare: weight {} of {}; one above 0 and at most 1000 is required", source.weight,
          quote(source.name));
    }
  }
  if (request.seq_len < 1 || request.seq_len >= INT32_MAX) {
    fail<InvalidArgument>("data prepare: sequences of {} tokens; at least 1 is required",
                          request.seq_len);
  }
  if (!(request.validation >= 0 && request.validation < 1)) {
    fail<InvalidArgument>("data prepare: validation {}; a share at least 0 and below 1 is required",
                          request.validation);
  }
  if (is_corpus(request.folder)) {
    fail<IoError>("data prepare: '{}' has {} already; another folder is required",
                  excerpt(request.folder), kIndexName);
  }
}

tokenizer::TokenId separator_of(const PrepareRequest& request,
                                const tokenizer::Tokenizer& tokenizer) {
  const auto id = request.separator.empty() ? tokenizer.special_ids().end
                                            : tokenizer.vocabulary().find(request.separator);
  if (id) return *id;
  fail<InvalidArgument>(
      "data prepare: {} of '{}'; the token behind each document is required (--separator)",
      request.separator.empty() ? "no end token is named by the files"
                                : quote(request.separator) + " is no token",
      excerpt(tokenizer.origin()));
}

}  // namespace

CorpusIndex prepare(const PrepareRequest& request, const tokenizer::Tokenizer& tokenizer) {
  check_request(request);
  CorpusIndex index{.tokenizer = std::filesystem::path(tokenizer.origin()).filename().string(),
                    .tokenizer_digest = tokenizer.digest(),
                    .vocab_size = tokenizer.vocab_size(),
                    .separator = separator_of(request, tokenizer),
                    .seq_len = request.seq_len,
                    .packing = request.packing,
                    .validation = request.validation,
                    .seed = request.seed};
  io::make_folders(io::real_file_system(), request.folder);
  for (std::size_t i = 0; i < request.sources.size(); ++i) {
    const SourceRequest& of = request.sources[i];
    IndexedSource source{.name = of.name, .weight = of.weight};
    SourceWriter writer(request, tokenizer, index, i);
    for (const std::string& path : io::text_paths(of.path, request.documents.extensions)) {
      source.files.push_back(read_documents(
          path, request.documents, [&](std::string_view document) { writer.add(document); }));
    }
    writer.finish(source);
    if (source.train.documents + source.validation.documents == 0) {
      fail<IoError>("data prepare: source {} at '{}' has no document; at least 1 is required",
                    quote(of.name), excerpt(of.path));
    }
    index.sources.push_back(std::move(source));
  }
  io::real_file_system().sync_folder(request.folder);
  io::write_file(request.folder + "/" + kIndexName, to_text(index));
  return index;
}

}  // namespace armillary::corpus

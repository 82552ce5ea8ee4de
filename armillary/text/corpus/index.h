// index.h: corpus.json, the list of everything in a folder of prepared tokens. It is written last:
// a folder without it is none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/text/corpus/packer.h"
#include "armillary/text/corpus/shard.h"

namespace armillary::corpus {

inline constexpr const char* kIndexName = "corpus.json";

/// The two parts of a corpus: documents are in one of them.
enum class CorpusPart : std::uint8_t { Train, Validation };
std::string_view to_string(CorpusPart part);  ///< "train", "validation"

/// A file that documents were read from.
struct SourceFile {
  std::string path;
  std::int64_t bytes = 0;
  std::string hash;  ///< io::content_hash of it.
};

struct IndexedShard {
  std::string file;  ///< Name in the folder.
  CorpusPart part = CorpusPart::Train;
  ShardShape shape = {};
  std::string hash = {};
};

/// Documents of one kind, which an epoch reads `weight` times.
struct IndexedSource {
  std::string name;
  double weight = 1;
  std::vector<SourceFile> files = {};
  PackerCounts train = {};
  PackerCounts validation = {};
  std::vector<IndexedShard> shards = {};

  /// Sequences of a part.
  std::int64_t sequences(CorpusPart part) const;
  /// Sequences of it that an epoch reads: weight x sequences, rounded down.
  std::int64_t sequences_per_epoch() const;
};

struct CorpusIndex {
  std::string tokenizer;         ///< Name of its file, without folders.
  std::string tokenizer_digest;  ///< tokenizer::Tokenizer::digest().
  std::int64_t vocab_size = 0;
  tokenizer::TokenId separator = 0;
  std::int64_t seq_len = 0;
  PackingKind packing = PackingKind::BestFit;
  double validation = 0;  ///< Share of documents.
  std::int64_t seed = 0;
  std::vector<IndexedSource> sources = {};
};

/// JSON whose last field is the hash of all that stands before it.
std::string to_text(const CorpusIndex& index);

/// Reads to_text(). @throws IoError that names `path`: a text that was changed, another version, a
/// missing field or one of another kind.
CorpusIndex parse_index(const std::string& path, std::string_view text);

/// The index of a folder. @throws IoError likewise.
CorpusIndex read_index(const std::string& folder);

/// Everything that decides the sequences, a line each: "tokenizer = smol.json 1f..". A run that
/// resumes must be given the same. More than 1,000 files of a source are one line.
std::vector<std::string> identity_of(const CorpusIndex& index);

/// A table for people: documents, tokens, sequences, what is cut, padded and dropped, and what an
/// epoch reads of each source.
std::string describe(const CorpusIndex& index);

}  // namespace armillary::corpus

// prepare.h: files of text to a folder of token shards.
//
//   files --documents--> tokenizer --ids--> train or validation --packer--> shards, index
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "armillary/text/corpus/documents.h"
#include "armillary/text/corpus/index.h"
#include "armillary/text/tokenizer/tokenizer.h"

namespace armillary::corpus {

/// Documents of one kind.
struct SourceRequest {
  std::string name;
  std::string path;   ///< A file or a folder.
  double weight = 1;  ///< Times that an epoch reads it; above 0.
};

struct PrepareRequest {
  std::string folder;  ///< Made if it is missing; must have no index.
  std::vector<SourceRequest> sources;
  DocumentOptions documents;
  std::int64_t seq_len = 0;
  PackingKind packing = PackingKind::BestFit;
  std::string separator;  ///< Text of the token behind each document; empty: the tokenizer's end.
  double validation = 0;  ///< Share of the documents that are for validation; below 1.
  std::int64_t seed = 0;  ///< Chooses them, and the order of documents in sequences.
  std::int64_t shard_sequences = std::int64_t{1} << 16;  ///< At most, of a shard.
};

/// Writes shards, and the index last: a folder that was not finished has none. The same request and
/// files give the same bytes. Documents are encoded on all cores. Memory: some hundred MiB.
/// @throws InvalidArgument for a request that cannot be met: no source, equal names, no separator;
/// IoError as read_documents, and if the folder has an index or cannot be written.
CorpusIndex prepare(const PrepareRequest& request, const tokenizer::Tokenizer& tokenizer);

}  // namespace armillary::corpus

// corpus.h: a folder of prepared tokens as numbered sequences.
//
//   epoch e, place i --order of (seed, e)--> source and its draw d --pass d / n of (seed,
//   source)--> sequence of the source --shard--> tokens
//
// An epoch draws weight x n of the n sequences of a source, rounded down; draws go on over epochs,
// so that every sequence of a source is read once before any is read again, whatever its weight.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "armillary/text/corpus/index.h"
#include "armillary/text/corpus/shard.h"

namespace armillary::corpus {

/// Whether a path is a folder that prepare() has written.
bool is_corpus(const std::string& path);

/// A mapped corpus. Immutable. Threads: any number may read.
class Corpus {
 public:
  /// Opens all shards of a part. Cost: one read of the index. @throws IoError as read_index and
  /// Shard; InvalidArgument if the part has no sequence.
  Corpus(const std::string& folder, CorpusPart part);

  const CorpusIndex& index() const { return index_; }
  /// Sequences of an epoch; of validation, all.
  std::int64_t sequences_per_epoch() const { return per_epoch_; }

  /// The sequence with this number, counted on over epochs. It depends on the number, the seed and
  /// the folder alone. Those of validation lie in the order of the shards. The corpus must outlive
  /// it. Cost: O(its pieces). Requires number >= 0. @throws IoError as Shard::at.
  MappedSequence at(std::int64_t number, std::uint64_t seed) const;

  /// Reads all shards of the part and compares their hashes. @throws IoError that names the first
  /// that was changed.
  void verify() const;

 private:
  struct PartOfSource {
    std::vector<std::unique_ptr<Shard>> shards;
    std::vector<std::int64_t> ends;   ///< Sequences in a shard and those before it.
    std::vector<std::string> hashes;  ///< As they must be.
    std::vector<std::string> files;
    std::int64_t sequences = 0;
    std::int64_t per_epoch = 0;
  };

  MappedSequence read(const PartOfSource& source, std::int64_t sequence) const;

  CorpusIndex index_;
  CorpusPart part_;
  std::vector<PartOfSource> sources_;
  std::int64_t per_epoch_ = 0;
};

}  // namespace armillary::corpus

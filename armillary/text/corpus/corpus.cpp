#include "armillary/text/corpus/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/text/corpus/keyed_permutation.h"

namespace armillary::corpus {
namespace {

/// Streams of the seed: the order of an epoch, and the passes over a source.
enum OrderStream : std::uint64_t { EpochStream = 1, PassStream = 2 };

std::uint64_t unsigned_of(std::int64_t number) {
  return static_cast<std::uint64_t>(number);
}

}  // namespace

bool is_corpus(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path + "/" + kIndexName, error);
}

Corpus::Corpus(const std::string& folder, CorpusPart part)
    : index_(read_index(folder)), part_(part) {
  for (const IndexedSource& source : index_.sources) {
    PartOfSource mine;
    for (const IndexedShard& shard : source.shards) {
      if (shard.part != part) continue;
      mine.shards.push_back(std::make_unique<Shard>(folder + "/" + shard.file, shard.shape));
      mine.sequences += shard.shape.sequences;
      mine.ends.push_back(mine.sequences);
      mine.hashes.push_back(shard.hash);
      mine.files.push_back(folder + "/" + shard.file);
    }
    mine.per_epoch = part == CorpusPart::Train ? source.sequences_per_epoch() : mine.sequences;
    per_epoch_ += mine.per_epoch;
    sources_.push_back(std::move(mine));
  }
  if (per_epoch_ == 0) {
    fail<InvalidArgument>("corpus: '{}' has no sequence for {}; at least 1 is required{}",
                          excerpt(folder), to_string(part),
                          part == CorpusPart::Validation ? ": prepare it with --validation" : "");
  }
}

MappedSequence Corpus::at(std::int64_t number, std::uint64_t seed) const {
  const std::int64_t epoch = number / per_epoch_;
  std::int64_t place = number % per_epoch_;
  const bool is_shuffled = part_ == CorpusPart::Train;
  if (is_shuffled) {
    const KeyedPermutation order(unsigned_of(per_epoch_),
                                 mixed_key({seed, EpochStream, unsigned_of(epoch)}));
    place = static_cast<std::int64_t>(order.at(unsigned_of(place)));
  }
  std::size_t source = 0;
  while (place >= sources_[source].per_epoch) place -= sources_[source++].per_epoch;
  const PartOfSource& of = sources_[source];
  if (!is_shuffled) return read(of, place);
  // Draws go on where the epoch before has ended.
  const std::int64_t draw = epoch * of.per_epoch + place;
  const KeyedPermutation pass(
      unsigned_of(of.sequences),
      mixed_key({seed, PassStream, source, unsigned_of(draw / of.sequences)}));
  return read(of, static_cast<std::int64_t>(pass.at(unsigned_of(draw % of.sequences))));
}

MappedSequence Corpus::read(const PartOfSource& source, std::int64_t sequence) const {
  const auto end = std::ranges::upper_bound(source.ends, sequence);
  const auto shard = static_cast<std::size_t>(end - source.ends.begin());
  const std::int64_t place = sequence - (shard == 0 ? 0 : source.ends[shard - 1]);
  MappedSequence mapped = source.shards[shard]->at(place);
  mapped.origin = fmt::format("{} {}", source.hashes[shard], place);
  return mapped;
}

void Corpus::verify() const {
  for (const PartOfSource& source : sources_) {
    for (std::size_t i = 0; i < source.shards.size(); ++i) {
      const std::string hash = source.shards[i]->hash();
      if (hash == source.hashes[i]) continue;
      fail<IoError>("corpus: '{}' has hash {}; {}, that of the index, is required",
                    excerpt(source.files[i]), hash, source.hashes[i]);
    }
  }
}

}  // namespace armillary::corpus

// token_data.h: the token shards of `armillary data prepare` as training data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "armillary/text/corpus/corpus.h"
#include "armillary/train/data.h"

namespace armillary::train {

/// A corpus (text/corpus/corpus.h) in the order of a seed.
///
/// (1) The label of a token is the next one of its document; the separator behind a document, the
/// last token before a cut of which nothing follows, and padding have kIgnoredLabel. (2) Padding is
/// a document of its own, so masks of documents hide it. (3) parts() reads the lengths of
/// documents, and its rows the tokens that are asked for with those behind them. Its digest is of
/// the index, the seed, the documents and the place in a shard: a shard that was changed behind its
/// index is told by corpus::Corpus::verify() alone.
class TokenData : public Data {
 public:
  /// @throws as corpus::Corpus.
  TokenData(const std::string& folder, corpus::CorpusPart part, std::int64_t seed);

  std::int64_t seq_len() const { return corpus_.index().seq_len; }

  std::int64_t vocab_size() const override { return corpus_.index().vocab_size; }
  std::int64_t sequences_per_epoch() const override { return corpus_.sequences_per_epoch(); }
  Sequence at(std::int64_t index) const override;
  std::optional<SequenceParts> parts(std::int64_t index) const override;
  std::vector<std::string> identity() const override;

 private:
  corpus::Corpus corpus_;
  corpus::CorpusPart part_;
  std::int64_t seed_;
  std::string hash_;  ///< Hash of the index.
};

}  // namespace armillary::train

#include "armillary/train/token_data.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "armillary/io/content_hash.h"

namespace armillary::train {
namespace {

/// Tokens at these positions, and their labels.
model::Fields rows_of(const corpus::MappedSequence& sequence,
                      std::span<const std::int64_t> positions) {
  std::vector<std::int64_t> ends(sequence.pieces.size());
  std::partial_sum(sequence.pieces.begin(), sequence.pieces.end(), ends.begin());
  const std::int64_t seq_len = ends.back();
  const std::int64_t padding = sequence.has_padding ? seq_len - sequence.pieces.back() : seq_len;
  const auto length = static_cast<std::int64_t>(positions.size());
  const at::Tensor tokens_L = at::empty({length}, at::kLong);
  const at::Tensor labels_L = at::empty({length}, at::kLong);
  auto* const tokens = tokens_L.mutable_data_ptr<std::int64_t>();
  auto* const labels = labels_L.mutable_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const std::int64_t next = positions[i] + 1;
    tokens[i] = sequence.token(positions[i]);
    labels[i] = model::kIgnoredLabel;
    if (next > padding) continue;
    // Behind the last piece stands the token that follows, or none.
    const bool is_followed = next == seq_len ? sequence.token(next) != corpus::kNothingFollows
                                             : !std::ranges::binary_search(ends, next);
    if (is_followed) labels[i] = sequence.token(next);
  }
  return {{model::kTokens, tokens_L}, {model::kLabels, labels_L}};
}

}  // namespace

TokenData::TokenData(const std::string& folder, corpus::CorpusPart part, std::int64_t seed)
    : corpus_(folder, part),
      part_(part),
      seed_(seed),
      hash_(io::content_hash(corpus::to_text(corpus_.index()))) {}

Sequence TokenData::at(std::int64_t index) const {
  const corpus::MappedSequence mapped = corpus_.at(index, static_cast<std::uint64_t>(seed_));
  std::vector<std::int64_t> all(static_cast<std::size_t>(seq_len()));
  std::iota(all.begin(), all.end(), 0);
  return {.fields = rows_of(mapped, all), .documents = mapped.pieces};
}

std::optional<SequenceParts> TokenData::parts(std::int64_t index) const {
  corpus::MappedSequence mapped = corpus_.at(index, static_cast<std::uint64_t>(seed_));
  std::vector<std::int64_t> documents = mapped.pieces;
  // Ranks with the same index have the same tokens there; most of them are for other ranks.
  const std::string hash =
      io::content_hash(fmt::format("{} {} {} {} {}", hash_, seed_, mapped.origin,
                                   fmt::join(documents, ","), mapped.has_padding));
  return SequenceParts{
      .documents = std::move(documents),
      .digest = std::stoull(hash.substr(0, 16), nullptr, 16) | 1,
      .rows = [mapped = std::move(mapped)](std::span<const std::int64_t> positions) {
        return rows_of(mapped, positions);
      }};
}

std::vector<std::string> TokenData::identity() const {
  std::vector<std::string> lines = corpus::identity_of(corpus_.index());
  lines.push_back("part = " + std::string(corpus::to_string(part_)));
  return lines;
}

}  // namespace armillary::train

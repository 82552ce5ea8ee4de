// data.cpp: checks of sequences, and the helpers that make masks and shards of them.
#include "armillary/train/data.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>

#include "armillary/core/error.h"

namespace armillary::train {
namespace {

/// Sum of the lengths.
std::int64_t total(std::span<const std::int64_t> lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

/// Refuses a value outside the vocabulary. `what` is "token" or "label".
void check_value(const char* what, std::int64_t value, std::size_t position, std::int64_t index,
                 std::int64_t vocab_size) {
  if (value >= 0 && value < vocab_size) return;
  fail<InvalidArgument>(
      "data: {} {} at position {} of sequence {}; one at least 0 and below {}, the vocabulary, is "
      "required",
      what, value, position, index, vocab_size);
}

}  // namespace

std::int64_t Sequence::targets() const {
  return std::count_if(labels.begin(), labels.end(),
                       [](std::int64_t label) { return label != kIgnoredLabel; });
}

Sequence checked_sequence(const Data& data, std::int64_t index, std::int64_t seq_len) {
  Sequence sequence = data.at(index);
  const auto length = static_cast<std::size_t>(seq_len);
  // Lengths first: all of them are seq_len.
  const std::int64_t in_documents = total(sequence.documents);
  if (sequence.tokens.size() != length || sequence.labels.size() != length ||
      in_documents != seq_len) {
    fail<InvalidArgument>(
        "data: sequence {} has {} tokens, {} labels and documents of {} tokens; training.seq_len "
        "{} of each is required",
        index, sequence.tokens.size(), sequence.labels.size(), in_documents, seq_len);
  }
  // Then every token, and every label that is not ignored.
  for (std::size_t i = 0; i < length; ++i) {
    check_value("token", sequence.tokens[i], i, index, data.vocab_size());
    if (sequence.labels[i] == kIgnoredLabel) continue;
    check_value("label", sequence.labels[i], i, index, data.vocab_size());
  }
  return sequence;
}

plan::Mask sequence_mask(std::string_view text, std::span<const std::int64_t> documents) {
  const std::int64_t length = total(documents);
  const plan::Lengths lengths{.q = length, .kv = length};
  // "documents:within=causal" becomes "documents:7,5,12,within=causal".
  constexpr std::string_view kDocuments = "documents";
  if (text == kDocuments || text.starts_with("documents:within=")) {
    std::string written = fmt::format("documents:{}", fmt::join(documents, ","));
    if (text != kDocuments) written += fmt::format(",{}", text.substr(kDocuments.size() + 1));
    return plan::parse_mask(written, lengths);
  }
  return plan::parse_mask(text, lengths);
}

std::vector<std::int64_t> gather(std::span<const std::int64_t> values,
                                 std::span<const std::int64_t> positions) {
  std::vector<std::int64_t> share;
  share.reserve(positions.size());
  for (const std::int64_t position : positions) {
    share.push_back(values[static_cast<std::size_t>(position)]);
  }
  return share;
}

}  // namespace armillary::train

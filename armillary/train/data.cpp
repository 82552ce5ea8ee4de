// data.cpp: checks of sequences, and masks of their documents.
#include "armillary/train/data.h"

#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>

#include <numeric>
#include <string>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/user_text.h"

namespace armillary::train {
namespace {

constexpr std::string_view kDocuments = "documents";

/// Sum of the lengths.
std::int64_t total(std::span<const std::int64_t> lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

/// Refuses a token or label outside the vocabulary; `ignored` labels may be.
void check_words(const std::string& name, const at::Tensor& values, std::int64_t index,
                 std::int64_t vocab_size) {
  const bool is_label = name == model::kLabels;
  if (!is_label && name != model::kTokens) return;
  const at::Tensor words = values.contiguous();
  if (words.scalar_type() != at::kLong || words.dim() != 1) {
    fail<InvalidArgument>(
        "data: field {} of sequence {} is {} with {} dims; int64 with 1 is required", name, index,
        c10::toString(words.scalar_type()), words.dim());
  }
  const auto* const begin = words.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < words.numel(); ++i) {
    const std::int64_t word = begin[i];
    if ((word >= 0 && word < vocab_size) || (is_label && word == model::kIgnoredLabel)) continue;
    fail<InvalidArgument>(
        "data: {} {} at position {} of sequence {}; one at least 0 and below {}, the vocabulary, "
        "is required",
        is_label ? "label" : "token", word, i, index, vocab_size);
  }
}

}  // namespace

Sequence checked_sequence(const Data& data, std::int64_t index, const SequenceShape& shape) {
  Sequence sequence = data.at(index);
  for (const std::string& name : shape.fields) {
    if (sequence.fields.contains(name)) continue;
    const std::vector<std::string> names = sequence.fields.names();
    fail<InvalidArgument>(
        "data: sequence {} has {}; the field {}, which the model reads, is required", index,
        names.empty() ? "no fields" : "fields " + fmt::to_string(fmt::join(names, ", ")),
        quote(name));
  }
  // Lengths first: all of them are seq_len.
  const std::int64_t in_documents = total(sequence.documents);
  bool fits = in_documents == shape.seq_len;
  std::string lengths;
  for (const auto& [name, values] : sequence.fields) {
    const std::int64_t length = values.dim() == 0 ? 0 : values.size(0);
    fits = fits && length == shape.seq_len;
    lengths += fmt::format("{}{} {}", lengths.empty() ? "" : ", ", length, name);
  }
  if (!fits) {
    fail<InvalidArgument>(
        "data: sequence {} has {} and documents of {}; training.seq_len {} of each is "
        "required",
        index, lengths, count_of(in_documents, "token"), shape.seq_len);
  }
  for (const auto& [name, values] : sequence.fields) {
    check_words(name, values, index, data.vocab_size());
  }
  return sequence;
}

bool reads_documents(std::string_view mask) {
  return mask == kDocuments || mask.starts_with("documents:within=");
}

plan::Mask sequence_mask(std::string_view text, std::span<const std::int64_t> documents) {
  const std::int64_t length = total(documents);
  const plan::Lengths lengths{.q = length, .kv = length};
  // "documents:within=causal" becomes "documents:7,5,12,within=causal".
  if (reads_documents(text)) {
    std::string written = fmt::format("documents:{}", fmt::join(documents, ","));
    if (text != kDocuments) written += fmt::format(",{}", text.substr(kDocuments.size() + 1));
    return plan::parse_mask(written, lengths);
  }
  return plan::parse_mask(text, lengths);
}

}  // namespace armillary::train

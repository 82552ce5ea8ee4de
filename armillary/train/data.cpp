// data.cpp: checks of sequences, and masks of their documents. A sequence that the data have whole
// is checked whole, once; one in parts is checked where its rows are read.
#include "armillary/train/data.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <fmt/ranges.h>

#include <numeric>
#include <string>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/train/checkpoint/checkpoint.h"

namespace armillary::train {
namespace {

constexpr std::string_view kDocuments = "documents";

/// Sum of the lengths.
std::int64_t total(std::span<const std::int64_t> lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

/// Place of the values of a field in the data.
struct FieldPlace {
  std::int64_t index = 0;                        ///< Number of the sequence.
  std::span<const std::int64_t> positions = {};  ///< Those of the values; empty: all, in order.
};

/// Refuses fields without one that the model reads.
void check_names(const model::Fields& fields, std::int64_t index,
                 const std::vector<std::string>& required) {
  for (const std::string& name : required) {
    if (fields.contains(name)) continue;
    const std::vector<std::string> names = fields.names();
    fail<InvalidArgument>(
        "data: sequence {} has {}; the field {}, which the model reads, is required", index,
        names.empty() ? "no fields" : "fields " + fmt::to_string(fmt::join(names, ", ")),
        quote(name));
  }
}

/// Refuses a token or label outside the vocabulary; `ignored` labels may be.
void check_words(const std::string& name, const at::Tensor& values, const FieldPlace& place,
                 std::int64_t vocab_size) {
  const bool is_label = name == model::kLabels;
  if (!is_label && name != model::kTokens) return;
  const at::Tensor words = values.contiguous();
  if (words.scalar_type() != at::kLong || words.dim() != 1) {
    fail<InvalidArgument>(
        "data: field {} of sequence {} is {} with {} dims; int64 with 1 is required", name,
        place.index, c10::toString(words.scalar_type()), words.dim());
  }
  const auto* const begin = words.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < words.numel(); ++i) {
    const std::int64_t word = begin[i];
    if ((word >= 0 && word < vocab_size) || (is_label && word == model::kIgnoredLabel)) continue;
    fail<InvalidArgument>(
        "data: {} {} at position {} of sequence {}; one at least 0 and below {}, the vocabulary, "
        "is required",
        is_label ? "label" : "token", word,
        place.positions.empty() ? i : place.positions[static_cast<std::size_t>(i)], place.index,
        vocab_size);
  }
}

/// A sequence that is there whole, in parts.
SequenceParts parts_of(Sequence sequence) {
  const std::uint64_t digest = digest_of(sequence);
  return {.documents = std::move(sequence.documents),
          .digest = digest,
          .rows = [fields = std::move(sequence.fields)](std::span<const std::int64_t> positions) {
            const at::Tensor positions_L =
                at::tensor(at::IntArrayRef(positions.data(), positions.size()), at::kLong);
            model::Fields rows;
            for (const auto& [name, values] : fields) {
              rows.set(name, values.index_select(0, positions_L));
            }
            return rows;
          }};
}

/// Refuses fields that are not those of the positions.
void check_values(const model::Fields& rows, const Data& data, const FieldPlace& place) {
  for (const auto& [name, values] : rows) {
    const auto length = static_cast<std::int64_t>(place.positions.size());
    const std::int64_t count = values.dim() == 0 ? 0 : values.size(0);
    if (count != length) {
      fail<InvalidArgument>("data: field {} of sequence {} has {} for {}; one each is required",
                            name, place.index, count_of(count, "value"),
                            count_of(length, "position"));
    }
    check_words(name, values, place, data.vocab_size());
  }
}

}  // namespace

Sequence checked_sequence(const Data& data, std::int64_t index, const SequenceShape& shape) {
  Sequence sequence = data.at(index);
  check_names(sequence.fields, index, shape.fields);
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
    check_words(name, values, {.index = index}, data.vocab_size());
  }
  return sequence;
}

bool reads_documents(std::string_view mask) {
  return mask == kDocuments || mask.starts_with("documents:within=");
}

SequenceParts checked_parts(const Data& data, std::int64_t index, const SequenceShape& shape) {
  std::optional<SequenceParts> parts = data.parts(index);
  if (!parts) return parts_of(checked_sequence(data, index, shape));
  const std::int64_t in_documents = total(parts->documents);
  if (in_documents != shape.seq_len) {
    fail<InvalidArgument>(
        "data: sequence {} has documents of {}; training.seq_len {} of each is required", index,
        count_of(in_documents, "token"), shape.seq_len);
  }
  parts->rows = [rows = std::move(parts->rows), names = shape.fields, &data,
                 index](std::span<const std::int64_t> positions) {
    model::Fields fields = rows(positions);
    check_names(fields, index, names);
    check_values(fields, data, {.index = index, .positions = positions});
    return fields;
  };
  return *std::move(parts);
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

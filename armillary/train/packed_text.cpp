// packed_text.cpp: the packing is stored as bytes and the first token of each document; tokens and
// labels are made when a sequence is asked for.
#include "armillary/train/packed_text.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/io/content_hash.h"

namespace armillary::train {
namespace {

/// Uniform in [0, n), by rejection. std::uniform_int_distribution may differ between standard
/// libraries.
std::uint64_t random_below(std::mt19937_64& random, std::uint64_t n) {
  const std::uint64_t limit = random.max() - random.max() % n;
  std::uint64_t value = random();
  while (value >= limit) value = random();
  return value % n;
}

/// A seed of its own for each stream: 0 orders the documents, e + 1 the sequences of epoch e.
std::uint64_t mix(std::int64_t seed, std::int64_t stream) {
  std::seed_seq sequence{seed & 0xFFFFFFFF, seed >> 32, stream & 0xFFFFFFFF, stream >> 32};
  std::uint32_t words[2];
  sequence.generate(std::begin(words), std::end(words));
  return (static_cast<std::uint64_t>(words[0]) << 32U) | words[1];
}

}  // namespace

PackedText::PackedText(const std::vector<std::string>& documents, PackingOptions options)
    : options_(options) {
  // The bytes of the documents in packing order. Separators take a position each, but no byte.
  begins_.push_back(0);
  const auto count = static_cast<std::int64_t>(documents.size());
  for (const std::int64_t i : permutation(count, mix(options.seed, 0))) {
    const std::string& document = documents[static_cast<std::size_t>(i)];
    bytes_ += document;
    begins_.push_back(begins_.back() + static_cast<std::int64_t>(document.size()) + 1);
  }
  if (options.seq_len < 1 || sequences() < 1) {
    fail<InvalidArgument>(
        "data: {} with {} for training.seq_len {}; at least seq_len + 1 tokens "
        "are required; nearest seq_len: {}",
        count_of(documents.size(), "document"), count_of(tokens(), "token"), options.seq_len,
        std::max<std::int64_t>(tokens() - 1, 1));
  }
  hash_ = io::content_hash(bytes_) + io::content_hash(std::as_bytes(std::span(begins_)));
}

std::int64_t PackedText::sequences() const {
  return (tokens() - 1) / options_.seq_len;
}

Sequence PackedText::at(std::int64_t index) const {
  const std::int64_t begin = begin_of(index);
  std::vector<std::int64_t> all(static_cast<std::size_t>(options_.seq_len));
  std::iota(all.begin(), all.end(), 0);
  return {.fields = rows_from(begin, all), .documents = documents_from(begin)};
}

std::optional<SequenceParts> PackedText::parts(std::int64_t index) const {
  const std::int64_t begin = begin_of(index);
  // Ranks with the same packing have the same tokens from there on.
  const std::string hash =
      io::content_hash(fmt::format("{} {} {}", hash_, begin, options_.seq_len));
  return SequenceParts{.documents = documents_from(begin),
                       .digest = std::stoull(hash.substr(0, 16), nullptr, 16) | 1,
                       .rows = [this, begin](std::span<const std::int64_t> positions) {
                         return rows_from(begin, positions);
                       }};
}

std::int64_t PackedText::begin_of(std::int64_t index) const {
  const std::int64_t epoch = index / sequences();
  const auto order = permutation(sequences(), mix(options_.seed, epoch + 1));
  return order[static_cast<std::size_t>(index % sequences())] * options_.seq_len;
}

std::vector<std::int64_t> PackedText::documents_from(std::int64_t begin) const {
  const std::int64_t end = begin + options_.seq_len;
  std::vector<std::int64_t> documents;
  auto next = std::upper_bound(begins_.begin(), begins_.end(), begin);
  for (std::int64_t position = begin; position < end; position = *next++) {
    documents.push_back(std::min(*next, end) - position);
  }
  return documents;
}

model::Fields PackedText::rows_from(std::int64_t begin,
                                    std::span<const std::int64_t> positions) const {
  const auto length = static_cast<std::int64_t>(positions.size());
  const at::Tensor tokens_L = at::empty({length}, at::kLong);
  const at::Tensor labels_L = at::empty({length}, at::kLong);
  auto* const tokens = tokens_L.data_ptr<std::int64_t>();
  auto* const labels = labels_L.data_ptr<std::int64_t>();
  // `next` points to the end of the document at the position; the last one held the one before.
  auto next = begins_.begin();
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const std::int64_t position = begin + positions[i];
    if (next == begins_.begin() || position >= *next || position < *(next - 1)) {
      next = std::upper_bound(begins_.begin(), begins_.end(), position);
    }
    // The number of the document is also the number of separators before it.
    const auto document = next - begins_.begin() - 1;
    const auto token = [&](std::int64_t at) -> std::int64_t {
      if (at == *next - 1) return kSeparator;
      return static_cast<unsigned char>(bytes_[static_cast<std::size_t>(at - document)]);
    };
    tokens[i] = token(position);
    labels[i] = position + 1 < *next ? token(position + 1) : model::kIgnoredLabel;
  }
  return {{model::kTokens, tokens_L}, {model::kLabels, labels_L}};
}

std::vector<std::int64_t> permutation(std::int64_t n, std::uint64_t seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  // Fisher-Yates shuffle. std::shuffle may differ between standard libraries.
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random_below(random, i)]);
  }
  return order;
}

}  // namespace armillary::train

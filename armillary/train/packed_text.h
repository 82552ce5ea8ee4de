// packed_text.h: documents of bytes, packed into sequences of tokens.
//
//   documents, shuffled once    |import os...<sep>|# Copyright ...<sep>|def f(): ...<sep>| ...
//   cut every seq_len tokens    |---- sequence 0 ----|---- sequence 1 ----|---- sequence 2 ----|
//   sequences, shuffled anew each epoch
//
// A token is a byte, or kSeparator after the last byte of a document. The label of a token is the
// next token; the separator has kIgnoredLabel, because the next document does not continue this
// one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "armillary/train/data.h"

namespace armillary::train {

inline constexpr std::int64_t kSeparator = 256;  ///< Ends a document.
inline constexpr std::int64_t kVocabSize = 257;  ///< 256 bytes and the separator.

struct PackingOptions {
  std::int64_t seq_len = 0;  ///< Tokens of a sequence; at least 1.
  std::int64_t seed = 0;     ///< Seed of both shuffles.
};

/// All documents packed into sequences.
///
/// (1) Every token is in exactly one sequence of an epoch, except the last token of the packing and
///     fewer than seq_len tokens before it.
/// (2) `at(i)` depends on documents, options and i only, so a run can resume at any step.
/// (3) i counts on over epochs: epoch e has sequences e n to (e + 1) n - 1, with n = sequences(),
///     in an order of its own.
class PackedText : public Data {
 public:
  /// @throws InvalidArgument if the documents hold fewer than seq_len + 1 tokens.
  PackedText(const std::vector<std::string>& documents, PackingOptions options);

  std::int64_t sequences() const;  ///< Sequences per epoch.
  /// Tokens of the packing, separators included.
  std::int64_t tokens() const { return begins_.back(); }

  std::int64_t vocab_size() const override { return kVocabSize; }
  std::int64_t sequences_per_epoch() const override { return sequences(); }

  /// Requires index >= 0. Cost: O(sequences + seq_len).
  Sequence at(std::int64_t index) const override;
  /// Cost: O(sequences + documents of the sequence); of rows(), O(1) for each position that is in
  /// the document of the one before.
  std::optional<SequenceParts> parts(std::int64_t index) const override;

 private:
  /// First token of a sequence in the packing.
  std::int64_t begin_of(std::int64_t index) const;
  std::vector<std::int64_t> documents_from(std::int64_t begin) const;
  model::Fields rows_from(std::int64_t begin, std::span<const std::int64_t> positions) const;

  PackingOptions options_;
  std::string bytes_;                 ///< The documents in packing order, without separators.
  std::vector<std::int64_t> begins_;  ///< First token of each document, and the end of the last.
  std::string hash_;                  ///< Hash of both.
};

/// 0 .. n-1 in a random order that depends on n and seed only, the same on every platform.
std::vector<std::int64_t> permutation(std::int64_t n, std::uint64_t seed);

}  // namespace armillary::train

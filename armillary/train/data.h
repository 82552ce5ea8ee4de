// data.h: documents of bytes -> packed sequences of tokens -> what one rank trains on. No tensors.
//
//   documents, shuffled once    |import os...<sep>|# Copyright ...<sep>|def f(): ...<sep>| ...
//   cut every seq_len tokens    |---- sequence 0 ----|---- sequence 1 ----|---- sequence 2 ----|
//   sequences, shuffled each epoch
//
// A token is a byte, or kSeparator after the last byte of a document. The label of a token is the
// token after it. Labels are made here, on the whole sequence, so sharding never loses the label
// that lies on another rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/plan/mask.h"

namespace armillary::train {

inline constexpr std::int64_t kSeparator = 256;      ///< Ends a document.
inline constexpr std::int64_t kVocabSize = 257;      ///< 256 bytes and the separator.
inline constexpr std::int64_t kIgnoredLabel = -100;  ///< No target here; PyTorch's ignore_index.

/// One packed sequence of seq_len tokens.
struct Sequence {
  std::vector<std::int64_t> tokens;
  /// The next token, or kIgnoredLabel on the last token of a document: what follows it is no
  /// continuation.
  std::vector<std::int64_t> labels;
  /// Lengths of the pieces of documents, in order; their sum is seq_len.
  std::vector<std::int64_t> documents;

  std::int64_t targets() const;  ///< Number of labels that are not ignored.
};

struct PackingOptions {
  std::int64_t seq_len = 0;
  std::int64_t seed = 0;
};

/// All documents packed into sequences. Immutable; threads may share it.
///
/// (1) Every token but the last, and fewer than seq_len at the end of the packing, is a token of
///     exactly one sequence.
/// (2) `at(i)` depends on documents, options and i only: a run resumes by its step number.
/// (3) i counts on over epochs; each epoch has an order of its own.
class PackedText {
 public:
  /// @throws InvalidArgument if the documents hold fewer than seq_len + 1 tokens.
  PackedText(const std::vector<std::string>& documents, PackingOptions options);

  std::int64_t sequences() const;  ///< Per epoch.
  std::int64_t tokens() const { return begins_.back(); }

  /// Requires index >= 0. Cost: O(sequences + seq_len).
  Sequence at(std::int64_t index) const;

 private:
  PackingOptions options_;
  std::string bytes_;                 ///< The documents in packing order, without separators.
  std::vector<std::int64_t> begins_;  ///< First token of each document, and the end of the last.
};

/// 0 .. n-1 in a random order that depends on n and seed only, on every platform.
std::vector<std::int64_t> permutation(std::int64_t n, std::uint64_t seed);

/// The mask of a sequence with these documents. `text` is `documents[:within=..]` for the documents
/// given here, or any mask of plan::parse_mask over the whole sequence.
/// @throws InvalidArgument as plan::parse_mask.
plan::Mask sequence_mask(std::string_view text, std::span<const std::int64_t> documents);

/// values[p] for each position p: a rank's share of tokens or labels, in the order of its shard.
std::vector<std::int64_t> gather(std::span<const std::int64_t> values,
                                 std::span<const std::int64_t> positions);

}  // namespace armillary::train

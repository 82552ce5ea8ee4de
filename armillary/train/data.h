// data.h: what a model is trained on: sequences of tokens by number. No tensors, no text
// (packed_text.h).
//
//   Data --at(i)--> Sequence --documents--> mask --layout--> positions of a rank
//                       '--------gather of tokens and labels----------'----> what the rank trains
//                       on
//
// Labels are those of the whole sequence, so sharding never loses the label that lies on another
// rank.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "armillary/plan/mask.h"

namespace armillary::train {

inline constexpr std::int64_t kIgnoredLabel = -100;  ///< No target here; PyTorch's ignore_index.

/// One sequence of training.seq_len tokens.
struct Sequence {
  std::vector<std::int64_t> tokens;
  /// By token: what is to be predicted there, or kIgnoredLabel.
  std::vector<std::int64_t> labels;
  /// Lengths of the documents that the sequence is made of, in order; their sum is its length.
  std::vector<std::int64_t> documents;

  std::int64_t targets() const;  ///< Number of labels that are not ignored.
};

/// Sequences by number; step s of a run with b of them a step reads (s - 1) b to s b - 1.
/// Immutable: the ranks of a process read it at the same time.
class Data {
 public:
  virtual ~Data() = default;

  /// Tokens, and labels that are not ignored, are at least 0 and below it.
  virtual std::int64_t vocab_size() const = 0;

  /// Depends on the index alone: every rank reads the same. Requires index >= 0.
  virtual Sequence at(std::int64_t index) const = 0;
};

/// data.at(index), with what plans and models rely on. @throws InvalidArgument if its tokens, its
/// labels or the tokens of its documents are not seq_len, or one is not of the vocabulary.
/// Cost: O(seq_len).
Sequence checked_sequence(const Data& data, std::int64_t index, std::int64_t seq_len);

/// The mask of a sequence with these documents. `text` is `documents[:within=..]` for the documents
/// given here, or any mask of plan::parse_mask over the whole sequence.
/// @throws InvalidArgument as plan::parse_mask.
plan::Mask sequence_mask(std::string_view text, std::span<const std::int64_t> documents);

/// values[p] for each position p: a rank's share of tokens or labels, in the order of its shard.
std::vector<std::int64_t> gather(std::span<const std::int64_t> values,
                                 std::span<const std::int64_t> positions);

}  // namespace armillary::train

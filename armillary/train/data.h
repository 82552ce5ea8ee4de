// data.h: training data as numbered sequences of tokens. No tensors, no text (packed_text.h).
//
//   Data --at(i)--> Sequence --documents--> mask --layout--> positions of a rank
//                       '----------------------------------------'--gather--> its tokens, labels
//
// Labels are made for the whole sequence before it is sharded, so a token whose next token lies on
// another rank has its label all the same.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "armillary/plan/mask.h"

namespace armillary::train {

inline constexpr std::int64_t kIgnoredLabel =
    -100;  ///< A token without a target; PyTorch's ignore_index.

/// One sequence of training.seq_len tokens.
struct Sequence {
  std::vector<std::int64_t> tokens;
  /// For each token the token to predict there, or kIgnoredLabel.
  std::vector<std::int64_t> labels;
  /// Lengths of the documents in the sequence, in order; their sum is its length.
  std::vector<std::int64_t> documents;

  std::int64_t targets() const;  ///< Number of labels that are not ignored.
};

/// Sequences by number. Step s (from 1) of a run with b sequences a step reads (s - 1) b to s b
/// - 1. Immutable: ranks that are threads of one process read it at the same time.
class Data {
 public:
  virtual ~Data() = default;

  /// Tokens, and labels that are not ignored, are in [0, vocab_size).
  virtual std::int64_t vocab_size() const = 0;

  /// Depends on the index alone, so every rank reads the same sequence. Requires index >= 0.
  virtual Sequence at(std::int64_t index) const = 0;
};

/// data.at(index), checked for everything that plans and models rely on. Cost: O(seq_len).
/// @throws InvalidArgument unless tokens, labels and the tokens of all documents are seq_len in
/// number, and every token and label is in the vocabulary.
Sequence checked_sequence(const Data& data, std::int64_t index, std::int64_t seq_len);

/// The mask of a sequence with these documents. `text` is `documents[:within=..]`, which takes the
/// lengths given here, or any mask of plan::parse_mask over the whole sequence.
/// @throws InvalidArgument as plan::parse_mask.
plan::Mask sequence_mask(std::string_view text, std::span<const std::int64_t> documents);

/// values[p] for each position p: the tokens or labels of a rank, in the order of its shard.
std::vector<std::int64_t> gather(std::span<const std::int64_t> values,
                                 std::span<const std::int64_t> positions);

}  // namespace armillary::train

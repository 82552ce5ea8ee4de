// data.h: training data as numbered sequences of named fields. No text (packed_text.h).
//
//   Data --at(i)--> Sequence --documents--> mask --layout--> positions of a rank
//                       '--fields--------------------------------'--rows_of--> its tokens, labels
//
// Labels are made for the whole sequence before it is sharded, so a token whose next token lies on
// another rank has its label all the same.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/model/fields.h"
#include "armillary/plan/mask/mask.h"

namespace armillary::train {

/// One sequence of training.seq_len tokens.
struct Sequence {
  model::Fields fields;  ///< Each [seq_len, ..].
  /// Lengths of the documents in the sequence, in order; their sum is its length.
  std::vector<std::int64_t> documents;
};

/// Sequences by number. Step s (from 1) of a run with b sequences a step reads (s - 1) b to s b
/// - 1. Immutable: ranks that are threads of one process read it at the same time.
class Data {
 public:
  virtual ~Data() = default;

  /// Tokens, and labels that are not ignored, are in [0, vocab_size); 0 if there are none.
  virtual std::int64_t vocab_size() const = 0;

  /// Depends on the index alone, so every rank reads the same sequence. Requires index >= 0.
  virtual Sequence at(std::int64_t index) const = 0;
};

/// The sequence that a run must be given.
struct SequenceShape {
  std::int64_t seq_len = 0;
  std::vector<std::string> fields;  ///< Those that the model reads (Model::fields).
};

/// data.at(index), checked for everything that plans and models rely on. Cost: O(seq_len).
/// @throws InvalidArgument unless the fields are there, they and the tokens of all documents are
/// seq_len in number, and every token and label is in the vocabulary.
Sequence checked_sequence(const Data& data, std::int64_t index, const SequenceShape& shape);

/// Whether the mask of this text, as sequence_mask() reads it, depends on the documents.
bool reads_documents(std::string_view mask);

/// The mask of a sequence with these documents. `text` is `documents[:within=..]`, which takes the
/// lengths given here, or any mask of plan::parse_mask over the whole sequence.
/// @throws InvalidArgument as plan::parse_mask.
plan::Mask sequence_mask(std::string_view text, std::span<const std::int64_t> documents);

}  // namespace armillary::train

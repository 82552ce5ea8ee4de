// data.h: training data as numbered sequences of named fields. No text (packed_text.h), no files
// (token_data.h).
//
//   Data --parts(i)--> documents --> mask --layout--> positions of a rank
//                '---> rows(positions) -----------------> its tokens, labels
//
// The label of a token is the next one of the whole sequence, also where that lies on another rank.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
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

/// A sequence that is read in parts: its documents say, with a layout, which tokens a rank has, and
/// those alone are read. The Data must outlive it.
struct SequenceParts {
  std::vector<std::int64_t> documents;  ///< As Sequence::documents.
  std::uint64_t digest = 0;  ///< Equal on ranks that read the same whole sequence; never 0.
  /// The fields at these positions, in this order: each [L, ..].
  std::function<model::Fields(std::span<const std::int64_t> positions)> rows;
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

  /// The same sequence in parts, for data that can make some tokens without all of them: the memory
  /// of a rank is then that of its own. Nothing: each rank reads the whole sequence by at().
  virtual std::optional<SequenceParts> parts(std::int64_t /*index*/) const { return {}; }

  /// Sequences of an epoch; 0 if there are no epochs.
  virtual std::int64_t sequences_per_epoch() const { return 0; }

  /// Everything that decides the sequences, a line each: "packing = best_fit". Ranks of a run, and
  /// a run that resumes, must have the same. Without lines, sequences are compared.
  virtual std::vector<std::string> identity() const { return {}; }
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

/// The same of data.parts(index), or of data.at(index) where there are no parts. In parts rows()
/// checks the fields, their lengths and words as it reads them.
SequenceParts checked_parts(const Data& data, std::int64_t index, const SequenceShape& shape);

/// Whether the mask of this text, as sequence_mask() reads it, depends on the documents.
bool reads_documents(std::string_view mask);

/// The mask of a sequence with these documents. `text` is `documents[:within=..]`, which takes the
/// lengths given here, or any mask of plan::parse_mask over the whole sequence.
/// @throws InvalidArgument as plan::parse_mask.
plan::Mask sequence_mask(std::string_view text, std::span<const std::int64_t> documents);

}  // namespace armillary::train

// forward_loss.h: the loss of a store's parameters on sequences, forward alone: of an evaluation,
// and of validation between the steps of a run.
//
// Ranks along dp take sequences in turn; one that has none left runs another once more, and does
// not count it. Passes are those of forward_pass.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "armillary/train/data.h"
#include "armillary/train/forward_pass.h"
#include "armillary/train/training_options.h"

namespace armillary::train {

struct EvalResult {
  double loss = 0;  ///< Mean over the targets of all sequences.
  std::int64_t sequences = 0;
  std::int64_t targets = 0;
};

/// The sequences from number 0 on that a loss is of, those of an epoch if `count` is 0.
/// @throws InvalidArgument that begins with `where` for a number that the data have not.
std::int64_t checked_sequences(std::string_view where, const Data& data, std::int64_t count);

/// Those of a validation loss. @throws likewise.
std::int64_t validation_sequences(const TrainingOptions& training, const Data& data);

/// The loss on so many sequences, from number 0 on; equal on all ranks, and up to rounding on every
/// mesh. Requires a recipe with one sequence in a pass (eval_recipe). Collective over the mesh.
/// @throws on every rank as checked_parts and expect_same_data.
EvalResult forward_loss(const ForwardParts& parts, const Data& data, std::int64_t sequences);

}  // namespace armillary::train

// forward_loss.h: the loss of a store's parameters on sequences, forward alone: of an evaluation,
// and of validation between the steps of a run.
//
// Ranks along dp take sequences in turn; one that has none left runs another once more, and does
// not count it. Every pass begins together: a rank that cannot read its sequence ends all of them
// with its text, before a tile moves. Gathers of parameters and attention are those of a step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "armillary/comm/mesh.h"
#include "armillary/model/model.h"
#include "armillary/train/data.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/recording.h"
#include "armillary/train/store.h"

namespace armillary::train {

struct EvalResult {
  double loss = 0;  ///< Mean over the targets of all sequences.
  std::int64_t sequences = 0;
  std::int64_t targets = 0;
};

/// One rank's part of a model and its groups.
struct LossParts {
  const comm::Mesh& mesh;
  model::Model& model;
  Store& store;
  const Recipe& recipe;                   ///< One sequence in a pass (eval_recipe).
  const cost::ModelAttention& attention;  ///< With the heads of this rank along tp.
  const std::string& strategy;
  const std::shared_ptr<model::TensorParallel>& tensor_parallel;  ///< Null: tp is 1.
  const std::shared_ptr<model::ExpertParallel>& expert_parallel;  ///< Null: no experts.
  const Recording* recording = nullptr;                           ///< Null: nothing is recorded.
};

/// The sequences from number 0 on that a loss is of, those of an epoch if `count` is 0.
/// @throws InvalidArgument that begins with `where` for a number that the data have not.
std::int64_t checked_sequences(std::string_view where, const Data& data, std::int64_t count);

/// Those of a validation loss. @throws likewise.
std::int64_t validation_sequences(const TrainingOptions& training, const Data& data);

/// The loss on so many sequences, from number 0 on; equal on all ranks, and up to rounding on every
/// mesh. Collective over the mesh. @throws on every rank as checked_parts and expect_same_data.
EvalResult forward_loss(const LossParts& parts, const Data& data, std::int64_t sequences);

}  // namespace armillary::train

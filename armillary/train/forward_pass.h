// forward_pass.h: one pass over the units of a store's parameters, forward alone: of a loss
// (forward_loss.h) or a sample.
//
// Every pass begins together: a rank that cannot read its sequences ends all of them with its text,
// before a tile moves. Gathers of parameters and attention are those of a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "armillary/comm/mesh.h"
#include "armillary/model/model.h"
#include "armillary/train/data.h"
#include "armillary/train/microbatch.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/recording.h"
#include "armillary/train/store.h"

namespace armillary::train {

/// One rank's part of a model and its groups.
struct ForwardParts {
  const comm::Mesh& mesh;
  model::Model& model;
  Store& store;
  const Recipe& recipe;                   ///< Its local_batch_size is the sequences of a pass.
  const cost::ModelAttention& attention;  ///< With the heads of this rank along tp.
  const std::string& strategy;
  const std::shared_ptr<model::TensorParallel>& tensor_parallel;  ///< Null: tp is 1.
  const std::shared_ptr<model::ExpertParallel>& expert_parallel;  ///< Null: no experts.
  const Recording* recording = nullptr;                           ///< Null: nothing is recorded.
};

/// This rank's tokens of the sequences of a pass, from number `first` on. Collective over the mesh.
/// @throws on every rank as read_microbatch, or as expect_same_data if ranks along tp read
/// different ones.
Microbatch read_pass(const ForwardParts& parts, const Data& data, std::int64_t first);

/// The output of the last unit on these fields of the tokens of a pass, which may be others than
/// were read. Collective over the ranks that share parameters or sequences.
at::Tensor forward_pass(const ForwardParts& parts, const Microbatch& pass,
                        const model::Fields& batch);

}  // namespace armillary::train

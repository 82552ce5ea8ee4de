// step_shape.h: the training step of a recipe as numbers, which plan/step makes into programs and
// proves.
#pragma once

#include "armillary/model/model.h"
#include "armillary/plan/step/shape.h"
#include "armillary/train/parallelism.h"
#include "armillary/train/training_options.h"

namespace armillary::train {

/// The step of a model on the mesh of a recipe.
/// @throws InvalidArgument for what the programs of plan/step cannot say yet: copies of a share
/// (data_parallel_replicate_degree), and KV heads that some ranks along tp share.
plan::step::StepShape step_shape_of(const model::Model& model,
                                    const ParallelismOptions& parallelism,
                                    const TrainingOptions& training);

}  // namespace armillary::train

// step_shape.h: the training step of a recipe as numbers, which plan/step makes into programs and
// proves.
#pragma once

#include "armillary/core/mesh_shape.h"
#include "armillary/model/model.h"
#include "armillary/plan/step/shape.h"
#include "armillary/train/optimizer_options.h"
#include "armillary/train/parallelism.h"
#include "armillary/train/training_options.h"

namespace armillary::train {

/// The step of a model on the mesh of a recipe, with the shards that its stores hold.
/// @throws InvalidArgument if data_parallel_replicate_degree does not divide dp, if parameters are
/// shared by some ranks along tp in more than one way, or for an ep that the mesh or the model has
/// not.
plan::step::StepShape step_shape_of(const model::Model& model,
                                    const ParallelismOptions& parallelism,
                                    const TrainingOptions& training,
                                    const OptimizerOptions& optimizer = {});
/// The same on another mesh than that of the recipe's degrees.
plan::step::StepShape step_shape_of(const model::Model& model, const MeshShape& mesh,
                                    const ParallelismOptions& parallelism,
                                    const TrainingOptions& training,
                                    const OptimizerOptions& optimizer = {});

}  // namespace armillary::train

// recipe_parts.h: the parts of a run that a recipe asks for: its model, the attention problem of a
// sequence and the strategy for it, its learning rates, its folder of checkpoints. For the trainer
// and those beside it; the parts themselves know no recipe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/model/model.h"
#include "armillary/plan/problem.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/train/recipe.h"

namespace armillary::train {

/// Checks keys against each other: axes that are not built are 1, heads divide dim, the strategy
/// solves the problem on this world with this layout and mask, the vocabulary is at least that of
/// text, learned positions are enough for a sequence, or it is a picture of the model's, the mask
/// is that of the model's window, or full for pictures, parameters can be counted (decoder_cost.h),
/// dtypes fit each other (dtypes.h), the mesh has ranks that can share experts (step_shape.h), keys
/// of checkpoints are the defaults if none are saved, keys of a decay if no rate decays, and
/// rollbacks have checkpoints.
/// @throws InvalidArgument.
void validate(const Recipe& recipe);
/// The same for data with a vocabulary of this size.
void validate(const Recipe& recipe, std::int64_t vocab_size);

/// The part of validate() that is of keys with a meaning on some meshes only: the sequences of a
/// step, dtypes that travel, inputs and parameters that stay gathered. @throws InvalidArgument.
void check_mesh_keys(const Recipe& recipe);

/// Settings of a legal recipe that do nothing, a line each: an axis of 1 is legal with any
/// strategy, layout and stage of ZeRO, so that one recipe runs on any mesh, and no guard for spikes
/// or validation with any shape of it.
std::vector<std::string> settings_without_effect(const Recipe& recipe);

/// Checks that the strategy can be made, and solves the attention problem on all ranks along tp.
/// Requires a legal model. @throws InvalidArgument.
void check_strategy(const Recipe& recipe);

/// Folder of the checkpoints of a run.
std::string checkpoint_folder(const Recipe& recipe);

RunRates rates_of(const Recipe& recipe);

/// The dtype of Q, K and V.
plan::Dtype plan_dtype_of(const TrainingOptions& training);

/// Cost of the recipe's model; makes no model.
cost::ModelCost model_cost(const Recipe& recipe);

/// The recipe's model. A store draws its parameters from training.seed.
std::unique_ptr<model::Model> make_model(const Recipe& recipe);

/// The heads of rank `index` of `tp`. @throws InvalidArgument if tp ranks cannot share them, with
/// the nearest legal tp.
cost::ModelAttention heads_along_tp(const cost::ModelAttention& shape, int index, int tp);

/// The attention problem of one pass, the same in every layer, for attention of this shape; for the
/// recipe's own model if no shape is given. Several sequences have one mask (joined_mask).
/// @throws InvalidArgument for a mask or layout that is not legal.
plan::Problem attention_problem(const Recipe& recipe, const cost::ModelAttention& shape,
                                const plan::Mask& mask);
plan::Problem attention_problem(const Recipe& recipe, const plan::Mask& mask);

/// The strategy of all steps of a recipe.
struct ChosenStrategy {
  plan::Strategy strategy;
  std::string
      reason;  ///< The line of predict/tune/automatic.h if the recipe says `auto`; else empty.
};
/// The choice for attention of this shape on `world` ranks. Documents give each step other masks;
/// it is made for sequences of one document each. This process alone chooses.
/// @throws as tune::choose and plan::parse_strategy.
ChosenStrategy chosen_strategy(const Recipe& recipe, const cost::ModelAttention& shape, int world);

/// The same for all ranks of a group, with the choice of rank 0. Collective.
ChosenStrategy chosen_strategy(const Recipe& recipe, const cost::ModelAttention& shape,
                               comm::Communicator& comm);

}  // namespace armillary::train

// recipe.h: a training run as a TOML file: model, data, optimizer and parallelism.
//
//   recipe.toml --load_recipe--> Recipe --apply_setting (--set a.b=c)--> validate (recipe_parts.h)
//                                   '----print_recipe--> TOML again, every key with its meaning
//
// Reading is strict. An unknown section or key, or a value of another type or out of its range, is
// an error that says what was given, what is required and the nearest legal name. Sections and keys
// have torchtitan's names if it has them. A section belongs to the room that reads it, which has
// its defaults, meanings and legal values (core/section.h); here they are gathered, and no room
// below the trainer sees a recipe. `armillary train RECIPE --print-config` prints the meanings. The
// keys of [model] are those of the model that model.name says.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/model/model_options.h"
#include "armillary/model/recompute.h"
#include "armillary/train/checkpoint/checkpoint_options.h"
#include "armillary/train/lr_schedule.h"
#include "armillary/train/optimizer_options.h"
#include "armillary/train/parallelism.h"
#include "armillary/train/run_options.h"
#include "armillary/train/training_options.h"

namespace armillary::train {

/// Each section is a member, and each key a member of its section.
struct Recipe {
  JobOptions job;
  model::ModelOptions model;
  TrainingOptions training;
  model::RecomputeOptions activation_checkpoint;
  OptimizerOptions optimizer;
  LrScheduleOptions lr_scheduler;
  ParallelismOptions parallelism;
  CheckpointOptions checkpoint;
  CommOptions comm;
  MetricsOptions metrics;
};

/// Reads a recipe file. Checks names, types and ranges of single keys.
/// @throws IoError if the file is missing, a folder or unreadable; InvalidArgument otherwise, with
/// file, line and key.
Recipe load_recipe(const std::string& path);

/// The same from text; errors call it `origin`.
Recipe parse_recipe(std::string_view text, const std::string& origin);

/// The same for the recipe of a checkpoint, which an older version may have written: there
/// training.local_batch_size was what training.global_batch_size is now.
Recipe parse_saved_recipe(std::string_view text, const std::string& origin);

/// Applies `section.key=value`, for example `training.steps=50`. The value is TOML; a string may
/// also stand without quotes. `model.scale=tiny` is scale_tiny() of scale.h, `model.scale=full`
/// changes nothing, `model.from=PATH` is take_model() of model_from.h.
/// @throws InvalidArgument as load_recipe, or as take_model().
void apply_setting(Recipe& recipe, std::string_view setting);

/// The recipe as TOML with a comment after each key. `parse_recipe(print_recipe(r))` equals `r`.
std::string print_recipe(const Recipe& recipe);

/// The keys that decide the result of a run, a line each: "training.steps = 50". Left out are paths
/// and the keys of [job] and [metrics].
std::vector<std::string> settings(const Recipe& recipe);

}  // namespace armillary::train

// recipe.h: a training run as a TOML file: model, data, optimizer and parallelism.
//
//   recipe.toml --load_recipe--> Recipe --apply_setting (--set a.b=c)--> validate --> trainer.h
//                                   '----print_recipe--> TOML again, every key with its meaning
//
// Reading is strict. An unknown section or key, or a value of another type or out of its range, is
// an error that says what was given, what is required and the nearest legal name. Sections and keys
// have torchtitan's names if it has them. Defaults are the values below. recipe_fields.cpp has the
// meaning and the legal values of each key; `armillary train RECIPE --print-config` prints the
// meanings. The keys of [model] are those of the model that model.name says.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "armillary/train/mesh.h"
#include "armillary/train/models/model_options.h"

namespace armillary::train {

/// Each section is a member, and each key a member of its section.
struct Recipe {
  /// Files of the run; no effect on its result.
  struct Job {
    std::string dump_folder = "runs/default";
    std::string description;
  } job;
  ModelOptions model;  ///< Sizes of the model (models/model_options.h).
  /// Data, length and arithmetic. Lengths are in tokens, over all ranks unless said otherwise.
  struct Training {
    std::string dataset_path;
    std::string dataset_extensions = ".py,.txt,.md";
    std::int64_t seq_len = 4096;
    std::int64_t local_batch_size = 1;
    std::int64_t steps = 100;
    double max_norm = 1.0;
    std::string mixed_precision_param = "float32";
    std::int64_t loss_chunk_tokens = 1024;  ///< Tokens of one rank.
    std::int64_t seed = 0;
  } training;
  /// Recomputation policy (models/recompute.h).
  struct ActivationCheckpoint {
    std::string mode = "none";
  } activation_checkpoint;
  /// AdamW (optimizer.h).
  struct Optimizer {
    std::string name = "AdamW";
    double lr = 3e-3;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
  } optimizer;
  /// Warm-up, stable phase and decay (lr_schedule.h).
  struct LrScheduler {
    std::int64_t warmup_steps = 10;
    double decay_ratio = 1.0;
    std::string decay_type = "cosine";
    double min_lr_factor = 0.1;
  } lr_scheduler;
  /// Mesh (mesh.h), threads, and the attention over the ranks along cp, by names of plan/.
  struct Parallelism {
    std::int64_t pipeline_parallel_degree = 1;
    std::int64_t data_parallel_replicate_degree = 1;
    std::int64_t context_parallel_degree = 1;
    std::int64_t tensor_parallel_degree = 1;
    std::int64_t threads_per_rank = 1;
    std::string strategy = "ring";
    std::string layout = "zigzag";
    std::string mask = "documents";
    std::string wire = "accumulator";
    std::string proofs;
  } parallelism;
  /// Checkpoints of the run, in a folder of job.dump_folder (checkpoint/saver.h).
  struct Checkpoint {
    bool enable = false;
    std::string folder = "checkpoints";
    std::int64_t interval = 500;  ///< Steps.
    std::int64_t keep_latest_k = 10;
  } checkpoint;
  /// Deadline of every wait of a rank for another.
  struct Comm {
    double train_timeout_seconds = 100;
  } comm;
  /// Output of metrics (metrics_writer.h); no effect on the result.
  struct Metrics {
    std::int64_t log_freq = 1;
  } metrics;
};

/// Reads a recipe file. Checks names, types and ranges of single keys.
/// @throws IoError if the file is missing, a folder or unreadable; InvalidArgument otherwise, with
/// file, line and key.
Recipe load_recipe(const std::string& path);

/// The same from text; errors call it `origin`.
Recipe parse_recipe(std::string_view text, const std::string& origin);

/// Applies `section.key=value`, for example `training.steps=50`. The value is TOML; a string may
/// also stand without quotes.
/// @throws InvalidArgument as load_recipe.
void apply_setting(Recipe& recipe, std::string_view setting);

/// Folder of the checkpoints of a run.
std::string checkpoint_folder(const Recipe& recipe);

/// The mesh that [parallelism] asks for.
MeshShape mesh_of(const Recipe& recipe);

/// Checks keys against each other: axes that are not built are 1, heads divide dim, the strategy
/// solves the problem on this world with this layout and mask, the layers have fewer than 2^62
/// parameters. @throws InvalidArgument.
void validate(const Recipe& recipe);

/// The recipe as TOML with a comment after each key. `parse_recipe(print_recipe(r))` equals `r`.
std::string print_recipe(const Recipe& recipe);

/// The keys that decide the result of a run, a line each: "training.steps = 50". Left out are paths
/// and the keys of [job] and [metrics].
std::vector<std::string> settings(const Recipe& recipe);

}  // namespace armillary::train

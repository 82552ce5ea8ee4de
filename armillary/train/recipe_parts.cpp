// recipe_parts.cpp: reads the sections of a recipe together. Each part is told its own keys alone:
// a model its ModelRun, attention its plan::Problem.
#include "armillary/train/recipe_parts.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "armillary/attention/shared_choice.h"
#include "armillary/core/checked.h"
#include "armillary/core/error.h"
#include "armillary/core/threads.h"
#include "armillary/core/user_text.h"
#include "armillary/model/registry.h"
#include "armillary/predict/tune/automatic.h"
#include "armillary/runtime/dtypes.h"
#include "armillary/train/data.h"
#include "armillary/train/dtypes.h"
#include "armillary/train/mesh.h"
#include "armillary/train/model_from.h"
#include "armillary/train/packed_text.h"
#include "armillary/train/step_shape.h"

namespace armillary::train {
namespace {

/// The keys of a recipe that every model is told.
model::ModelRun run_of(const Recipe& recipe) {
  return {.dtype = dtypes_of(recipe.training).param,
          .recompute = model::parse_recompute(recipe.activation_checkpoint.mode),
          .loss_chunk_tokens = recipe.training.loss_chunk_tokens,
          .keep_gathered_inputs = recipe.parallelism.tensor_parallel_keep_inputs,
          .seq_len = recipe.training.seq_len};
}

/// Refuses parallelism.wire = input where it changes nothing.
void check_narrow_transfer(const Recipe& recipe) {
  if (recipe.parallelism.context_parallel_degree == 1) {
    fail<InvalidArgument>(
        "recipe: parallelism.wire = input with context_parallel_degree 1, where nothing of "
        "attention travels; accumulator is required");
  }
  if (recipe.training.mixed_precision_param == "bfloat16") return;
  fail<InvalidArgument>(
      "recipe: parallelism.wire = input with training.mixed_precision_param = {}, whose "
      "accumulator has the same dtype; accumulator is required; nearest: "
      "training.mixed_precision_param = bfloat16",
      recipe.training.mixed_precision_param);
}

/// Refuses keys of checkpoints in a run that saves none.
void check_saving(const CheckpointOptions& checkpoint) {
  if (checkpoint.enable) return;
  const auto require = [](const char* key, std::int64_t value, std::int64_t usual) {
    if (value == usual) return;
    fail<InvalidArgument>(
        "recipe: checkpoint.{} = {} with checkpoint.enable = false, where nothing is saved; {}, "
        "the default, is required; nearest: checkpoint.enable = true",
        key, value, usual);
  };
  const CheckpointOptions usual;
  require("interval", checkpoint.interval, usual.interval);
  require("keep_latest_k", checkpoint.keep_latest_k, usual.keep_latest_k);
}

/// Refuses keys of a decay that changes no rate.
void check_decay(const LrScheduleOptions& schedule) {
  const LrScheduleOptions usual;
  const bool lasts = schedule.decay_ratio > 0;
  if (lasts && schedule.min_lr_factor < 1) return;
  const std::string_view cause = lasts ? "min_lr_factor = 1" : "decay_ratio = 0";
  const auto require = [&](std::string_view key, const auto& value, const auto& of_usual) {
    if (value == of_usual) return;
    fail<InvalidArgument>(
        "recipe: lr_scheduler.{} = {} with lr_scheduler.{}, where no rate decays; {}, the default, "
        "is required",
        key, value, cause, of_usual);
  };
  require("decay_type", schedule.decay_type, usual.decay_type);
  if (lasts) return require("decay_ratio", schedule.decay_ratio, usual.decay_ratio);
  require("min_lr_factor", schedule.min_lr_factor, usual.min_lr_factor);
}

/// Sees a setting that does nothing, and where.
using UnusedSetting = std::function<void(const std::string& setting, std::string_view where)>;

/// Adds those of the guard for spikes and of validation.
void add_unused_watching(const TrainingOptions& mine, const UnusedSetting& add) {
  const TrainingOptions usual;
  const auto compare = [&](const char* key, auto TrainingOptions::*member, std::string_view where) {
    if (mine.*member != usual.*member) {
      add(fmt::format("training.{} = {}", key, mine.*member), where);
    }
  };
  if (mine.validation_interval == 0) {
    const std::string_view where = "validation_interval 0, where nothing is validated";
    compare("validation_path", &TrainingOptions::validation_path, where);
    compare("validation_sequences", &TrainingOptions::validation_sequences, where);
  }
  if (mine.spike_guard == "none") {
    const std::string_view where = "spike_guard none, where no step is judged";
    compare("spike_loss_factor", &TrainingOptions::spike_loss_factor, where);
    compare("spike_norm_factor", &TrainingOptions::spike_norm_factor, where);
    compare("spike_window", &TrainingOptions::spike_window, where);
  }
  if (mine.spike_guard != "rollback") {
    const std::string where = "spike_guard " + mine.spike_guard + ", where no run goes back";
    compare("spike_skip", &TrainingOptions::spike_skip, where);
    compare("spike_rollbacks", &TrainingOptions::spike_rollbacks, where);
  }
}

/// Refuses a mask under which the patches of a picture do not all see each other.
void check_picture_mask(const Recipe& recipe) {
  if (recipe.model.name != "dit") return;
  const std::int64_t length = recipe.training.seq_len;
  const std::string& mask = recipe.parallelism.mask;
  if (sequence_mask(mask, std::span(&length, 1)) == plan::full_mask({length, length})) return;
  fail<InvalidArgument>(
      "recipe: parallelism.mask {} with model.name dit, whose patches all see each other; full is "
      "required",
      excerpt(mask));
}

/// The mask of a pass. Real documents are not known yet; one as long as its sequence is legal in
/// every mask that is legal with any documents.
plan::Mask mask_of_pass(const Recipe& recipe) {
  const TrainingOptions& training = recipe.training;
  const std::vector<plan::Mask> masks(
      static_cast<std::size_t>(training.local_batch_size),
      sequence_mask(recipe.parallelism.mask, std::span(&training.seq_len, 1)));
  return joined_mask(masks);
}

/// The strategy that a recipe names, or the one that `choose` gives for its problem.
ChosenStrategy chosen_by(const Recipe& recipe, const cost::ModelAttention& shape, int world,
                         const std::function<tune::AutomaticChoice(const plan::Problem&)>& choose) {
  const std::string& text = recipe.parallelism.strategy;
  if (!tune::is_automatic(text)) return {.strategy = plan::parse_strategy(text), .reason = {}};
  plan::Problem problem = attention_problem(recipe, shape, mask_of_pass(recipe));
  problem.world = world;
  tune::AutomaticChoice choice = choose(problem);
  return {.strategy = std::move(choice.strategy), .reason = std::move(choice.line)};
}

}  // namespace

plan::Dtype plan_dtype_of(const TrainingOptions& training) {
  return runtime::plan_dtype(dtypes_of(training).param, "training.dtype");
}

void validate(const Recipe& recipe) {
  validate(recipe, kVocabSize);
}

void validate(const Recipe& recipe, std::int64_t vocab_size) {
  if (recipe.job.dump_folder.empty()) {
    fail<InvalidArgument>("recipe: job.dump_folder is empty; a folder is required");
  }
  if (recipe.metrics.enable_tensorboard && recipe.metrics.save_tb_folder.empty()) {
    fail<InvalidArgument>("recipe: metrics.save_tb_folder is empty; a folder is required");
  }
  if (recipe.checkpoint.folder.empty()) {
    fail<InvalidArgument>("recipe: checkpoint.folder is empty; a folder is required");
  }
  check_saving(recipe.checkpoint);
  check_decay(recipe.lr_scheduler);
  if (recipe.training.spike_guard == "rollback" && !recipe.checkpoint.enable) {
    fail<InvalidArgument>(
        "recipe: training.spike_guard = rollback with checkpoint.enable = false, which leaves "
        "nothing to go back to; true is required; nearest: training.spike_guard = stop");
  }
  model::check_model(recipe.model);
  model::check_sequences(recipe.model, {recipe.training.seq_len, vocab_size});
  check_window(recipe);
  check_picture_mask(recipe);
  const MeshShape mesh = mesh_of(recipe.parallelism);
  check_built(mesh);
  const std::int64_t ranks =
      checked_product("recipe: ranks of the mesh", {mesh.pp, mesh.dp, mesh.cp, mesh.tp});
  if (ranks > kMaxThreads) {
    fail<InvalidArgument>("recipe: a mesh of {} ranks; at most {} are required", ranks,
                          kMaxThreads);
  }
  check_mesh_keys(recipe);
  const std::unique_ptr<model::Model> model = make_model(recipe);
  model::check_parameters(model->parameters(), model->units(), mesh.tp);
  if (recipe.parallelism.expert_parallel_degree > 1) {
    step_shape_of(*model, recipe.parallelism, recipe.training);
  }
  check_strategy(recipe);
}

void check_mesh_keys(const Recipe& recipe) {
  const ParallelismOptions& parallelism = recipe.parallelism;
  const MeshShape mesh = mesh_of(parallelism);
  check_batch(mesh, recipe.training);
  check_dtypes(recipe.training, std::int64_t{mesh.dp} * mesh.cp);
  if (mesh.tp == 1 && parallelism.tensor_parallel_keep_inputs) {
    fail<InvalidArgument>(
        "recipe: parallelism.tensor_parallel_keep_inputs is true with tensor_parallel_degree 1, "
        "where nothing is gathered; false is required");
  }
  if (parallelism.zero < 3 && !parallelism.reshard_after_forward) {
    fail<InvalidArgument>(
        "recipe: parallelism.reshard_after_forward is false with zero = {}, where parameters are "
        "whole; true is required; nearest: zero = 3",
        parallelism.zero);
  }
  if (!parallelism.reshard_after_forward &&
      parallelism.data_parallel_shard_degree * parallelism.context_parallel_degree == 1) {
    fail<InvalidArgument>(
        "recipe: parallelism.reshard_after_forward is false with data_parallel_shard_degree 1 and "
        "context_parallel_degree 1, where parameters are whole; true is required");
  }
  if (parallelism.transfer_dtype == "input") check_narrow_transfer(recipe);
}

void check_strategy(const Recipe& recipe) {
  if (tune::is_automatic(recipe.parallelism.strategy)) {
    return tune::check_strategy_text(recipe.parallelism.strategy);
  }
  const plan::Mask mask = mask_of_pass(recipe);
  const plan::Strategy strategy = plan::parse_strategy(recipe.parallelism.strategy);
  const cost::ModelAttention all = model_cost(recipe).attention;
  const int tp = mesh_of(recipe.parallelism).tp;
  for (int index = 0; index < tp; ++index) {
    plan::check_legal(attention_problem(recipe, heads_along_tp(all, index, tp), mask), strategy);
  }
}

std::vector<std::string> settings_without_effect(const Recipe& recipe) {
  const ParallelismOptions& mine = recipe.parallelism;
  const ParallelismOptions usual;
  std::vector<std::string> lines;
  const auto add = [&](const std::string& setting, std::string_view where) {
    lines.push_back(fmt::format("{} has no effect with {}", setting, where));
  };
  // Ranks along tp may have the same experts.
  const bool divides_experts =
      recipe.model.name == "moe" && mine.tensor_parallel_degree > mine.expert_parallel_degree;
  const std::int64_t replicas = mine.data_parallel_shard_degree * mine.context_parallel_degree;
  if (mine.zero > 1 && replicas == 1 && !divides_experts) {
    add(fmt::format("parallelism.zero = {}", mine.zero),
        "data_parallel_shard_degree 1 and context_parallel_degree 1, where nothing is divided");
  }
  const std::string_view alone = "context_parallel_degree 1, where no sequence is spread";
  const bool is_spread = mine.context_parallel_degree > 1;
  if (!is_spread && mine.strategy != usual.strategy && !tune::is_automatic(mine.strategy)) {
    add("parallelism.strategy = " + mine.strategy, alone);
  }
  if (!is_spread && mine.layout != usual.layout) {
    add("parallelism.layout = " + mine.layout, alone);
  }
  const std::int64_t interval = recipe.training.check_replicas;
  if (interval > 0 && interval != TrainingOptions().check_replicas && mesh_of(mine).ranks() == 1) {
    add(fmt::format("training.check_replicas = {}", interval), "one rank");
  }
  const MetricsOptions& metrics = recipe.metrics;
  if (!metrics.enable_tensorboard && metrics.save_tb_folder != MetricsOptions().save_tb_folder) {
    add("metrics.save_tb_folder = " + metrics.save_tb_folder, "enable_tensorboard false");
  }
  add_unused_watching(recipe.training, add);
  return lines;
}

std::string checkpoint_folder(const Recipe& recipe) {
  return recipe.job.dump_folder + "/" + recipe.checkpoint.folder;
}

RunRates rates_of(const Recipe& recipe) {
  return {.rates = {.peak = recipe.optimizer.lr,
                    .schedule = recipe.lr_scheduler,
                    .steps = recipe.training.steps},
          .settings = settings(recipe)};
}

cost::ModelAttention heads_along_tp(const cost::ModelAttention& shape, int index, int tp) {
  if (tp == 1) return shape;
  if (shape.kv_heads < 1) {
    fail<InvalidArgument>(
        "mesh: tp {} with a model that counts {} KV heads; at least 1 is required; nearest: tp 1",
        tp, shape.kv_heads);
  }
  // As the matrices that make them (model/decoder_parameters.cpp).
  const model::Parameter q{.name = "query heads",
                           .shape = {shape.heads},
                           .placement = model::TpSplit::Columns,
                           .grain = shape.heads / shape.kv_heads,
                           .piece = 1};
  const model::Parameter kv{.name = "KV heads",
                            .shape = {shape.kv_heads},
                            .placement = model::TpSplit::Columns,
                            .copied = true};
  cost::ModelAttention mine = shape;
  mine.heads = model::range_of(q, index, tp).size[0];
  mine.kv_heads = model::range_of(kv, index, tp).size[0];
  return mine;
}

plan::Problem attention_problem(const Recipe& recipe, const cost::ModelAttention& shape,
                                const plan::Mask& mask) {
  plan::Problem problem;
  // Self-attention: as many keys as queries, and values as wide as keys.
  problem.world = static_cast<int>(recipe.parallelism.context_parallel_degree);
  problem.heads = static_cast<int>(shape.heads);
  problem.kv_heads = static_cast<int>(shape.kv_heads);
  problem.head_dim = static_cast<int>(shape.head_dim);
  problem.value_dim = problem.head_dim;
  problem.dtype = plan_dtype_of(recipe.training);
  problem.mask = mask;
  problem.layout = plan::parse_layout(recipe.parallelism.layout);
  problem.transfer_dtype = plan::parse_transfer_dtype(recipe.parallelism.transfer_dtype);
  return problem;
}

plan::Problem attention_problem(const Recipe& recipe, const plan::Mask& mask) {
  return attention_problem(recipe, model_cost(recipe).attention, mask);
}

cost::ModelCost model_cost(const Recipe& recipe) {
  return model::model_cost(recipe.model, run_of(recipe));
}

ChosenStrategy chosen_strategy(const Recipe& recipe, const cost::ModelAttention& shape, int world) {
  return chosen_by(recipe, shape, world, [&](const plan::Problem& problem) {
    return tune::choose(recipe.parallelism.strategy, problem);
  });
}

ChosenStrategy chosen_strategy(const Recipe& recipe, const cost::ModelAttention& shape,
                               comm::Communicator& comm) {
  return chosen_by(recipe, shape, comm.world(), [&](const plan::Problem& problem) {
    return attention::choose_together(comm, recipe.parallelism.strategy, problem);
  });
}

std::unique_ptr<model::Model> make_model(const Recipe& recipe) {
  return model::make_model(recipe.model, run_of(recipe));
}

}  // namespace armillary::train

// The part of the verb `advise` that reads recipes, and `train --mesh`: the question which mesh is
// fastest, with the keys of the recipe.
#include "cli/torch/recipe_model.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/model/registry.h"
#include "armillary/train/data.h"
#include "armillary/train/dtypes.h"
#include "armillary/train/recipe_parts.h"
#include "cli/advise.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

/// Refuses what `advise` cannot ask of a recipe of a dit.
void check_dit_question(const train::Recipe& recipe, const std::string& path, cost::StepKind kind) {
  if (recipe.model.name != "dit") return;
  if (kind != cost::StepKind::Train) {
    fail<InvalidArgument>(
        "advise: recipe {} has model.name dit, which reads no prompt; --step train, or --step dit "
        "with layers=L,hidden=E,heads=H,ffn=F,vocab=1, is required",
        excerpt(path));
  }
  model::check_model(recipe.model);
  model::check_sequences(recipe.model, {.seq_len = recipe.training.seq_len});
}

tune::AdviceQuestion question_of(const std::string& path, const std::vector<std::string>& settings,
                                 const cost::Step& sizes) {
  train::Recipe recipe = train::load_recipe(path);
  for (const std::string& setting : settings) train::apply_setting(recipe, setting);
  recipe.training.seq_len = sizes.seq;
  recipe.training.global_batch_size = sizes.batch;
  check_dit_question(recipe, path, sizes.kind);
  return mesh_question(recipe, path);
}

/// The recipe on this mesh; pipelines are not built yet, so a stage stands for all.
train::Recipe recipe_on(train::Recipe recipe, const cost::Parallelism& parallelism) {
  recipe.parallelism.data_parallel_shard_degree = parallelism.mesh.dp;
  recipe.parallelism.data_parallel_replicate_degree = 1;
  recipe.parallelism.context_parallel_degree = parallelism.mesh.cp;
  recipe.parallelism.tensor_parallel_degree = parallelism.mesh.tp;
  recipe.parallelism.zero = parallelism.zero;
  recipe.training.local_batch_size = parallelism.microbatch;
  return recipe;
}

}  // namespace

cost::ModelCost cost_on_cluster(const train::Recipe& recipe) {
  model::check_model(recipe.model);
  return model::model_cost(
      recipe.model, {.dtype = train::dtypes_of(recipe.training).param,
                     .native_bf16 = true,
                     .loss_chunk_tokens = recipe.training.loss_chunk_tokens,
                     .keep_gathered_inputs = recipe.parallelism.tensor_parallel_keep_inputs});
}

tune::AdviceQuestion mesh_question(const train::Recipe& recipe, const std::string& path) {
  if (recipe.optimizer.state_on_host()) {
    fail<InvalidArgument>(
        "{}: optimizer.state_device host given; device is required, with which meshes are "
        "compared: --set optimizer.state_device=device, or `armillary simulate` for one mesh",
        excerpt(path));
  }
  if (recipe.parallelism.expert_parallel_degree > 1) {
    fail<InvalidArgument>(
        "{}: parallelism.expert_parallel_degree {} given; 1 is required, with which meshes are "
        "compared: --set parallelism.expert_parallel_degree=1, or `armillary simulate` for one "
        "mesh",
        excerpt(path), recipe.parallelism.expert_parallel_degree);
  }
  if (recipe.training.mixed_precision_param != "bfloat16") {
    fail<InvalidArgument>(
        "{}: training.mixed_precision_param {} given; bfloat16 is required, in which meshes are "
        "compared: --set training.mixed_precision_param=bfloat16, or `armillary simulate` for one "
        "mesh",
        excerpt(path), recipe.training.mixed_precision_param);
  }
  const cost::ModelCost cost = cost_on_cluster(recipe);
  const std::unique_ptr<model::Model> model = train::make_model(recipe);
  return {.model = "the recipe's model",
          .step = {.model = cost,
                   .seq = recipe.training.seq_len,
                   .batch = recipe.training.global_batch_size},
          .microbatch = 0,
          .mask = [mask = recipe.parallelism.mask](
                      std::int64_t seq) { return train::sequence_mask(mask, std::span(&seq, 1)); },
          .reshard_after_forward = recipe.parallelism.reshard_after_forward,
          .check =
              [recipe, parameters = model->parameters(),
               units = model->units()](const cost::Parallelism& parallelism) {
                train::check_mesh_keys(recipe_on(recipe, parallelism));
                model::check_parameters(parameters, units, parallelism.mesh.tp);
              }};
}

void add_recipe_advise(CLI::App& app, int& exit_code) {
  add_advise_with(app, exit_code, &question_of);
}

}  // namespace armillary::cli

// The part of the verb `advise` that reads recipes.
#include "cli/torch/recipe_model.h"

#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/model/decoder_cost.h"
#include "armillary/model/registry.h"
#include "armillary/train/recipe_parts.h"
#include "cli/advise.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

cost::ModelCost model_of(const std::string& path, const std::vector<std::string>& settings) {
  train::Recipe recipe = train::load_recipe(path);
  for (const std::string& setting : settings) train::apply_setting(recipe, setting);
  return cost_of_meshes(recipe, path);
}

}  // namespace

cost::ModelCost cost_on_cluster(const train::Recipe& recipe, const std::string& path) {
  model::check_model(recipe.model);
  if (recipe.training.mixed_precision_param != "bfloat16") {
    fail<InvalidArgument>(
        "{}: training.mixed_precision_param {} given; bfloat16 is required, in "
        "which steps are costed: --set training.mixed_precision_param=bfloat16",
        excerpt(path), recipe.training.mixed_precision_param);
  }
  model::DecoderOptions decoder = model::decoder_options(recipe.model);
  decoder.dtype(at::kBFloat16)
      .native_bf16(true)
      .loss_chunk_tokens(recipe.training.loss_chunk_tokens);
  return model::decoder_cost(decoder);
}

cost::ModelCost cost_of_meshes(const train::Recipe& recipe, const std::string& path) {
  if (recipe.optimizer.state_on_host()) {
    fail<InvalidArgument>(
        "{}: optimizer.state_device host given; device is required, with which meshes are "
        "compared: --set optimizer.state_device=device, or `armillary simulate` for one mesh",
        excerpt(path));
  }
  return cost_on_cluster(recipe, path);
}

void add_recipe_advise(CLI::App& app, int& exit_code) {
  add_advise_with(app, exit_code, &model_of);
}

}  // namespace armillary::cli

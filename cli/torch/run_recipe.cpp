#include "cli/torch/run_recipe.h"

#include "armillary/core/error.h"
#include "armillary/train/checkpoint/checkpoint.h"
#include "armillary/train/export_model.h"

namespace armillary::cli {
namespace {

/// Refuses settings that would make another model of the checkpoint's parameters.
void check_same_model(const std::string& verb, const train::Recipe& recipe,
                      const train::Recipe& saved) {
  const std::vector<std::string> mine = train::settings(recipe);
  const std::vector<std::string> required = train::settings(saved);
  ARMILLARY_CHECK(mine.size() == required.size());
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const bool is_model = mine[i].starts_with("model.") || mine[i].starts_with("training.dtype ");
    if (!is_model || mine[i] == required[i]) continue;
    fail<InvalidArgument>("{}: {} given; {}, that of the checkpoint, is required", verb, mine[i],
                          required[i]);
  }
}

}  // namespace

RunRecipe recipe_of_run(const std::string& verb, const std::string& run,
                        const std::vector<std::string>& settings) {
  const auto with_settings = [&](train::Recipe recipe) {
    for (const std::string& setting : settings) train::apply_setting(recipe, setting);
    return recipe;
  };
  if (run.ends_with(".toml")) return {with_settings(train::load_recipe(run)), {}};
  const std::string checkpoint = train::checkpoint_of(run, verb);
  const train::Recipe saved =
      train::parse_saved_recipe(train::Checkpoint(checkpoint).recipe(), checkpoint);
  const train::Recipe recipe = with_settings(saved);
  check_same_model(verb, recipe, saved);
  return {recipe, checkpoint};
}

}  // namespace armillary::cli

#include "armillary/train/export_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "armillary/core/error.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(ExportModel, TakesTheNewestCheckpointOrTheOneThatIsNamed) {
  const ScratchFolder folder;
  Recipe recipe = small_recipe();
  recipe.model.name = "llama";
  recipe.training.steps = 4;
  recipe.job.dump_folder = folder.path("run");
  recipe.checkpoint.enable = true;
  recipe.checkpoint.interval = 2;
  recipe.checkpoint.folder = "saved";
  run(recipe);
  folder.write("run/recipe.toml", print_recipe(recipe));
  const std::string step_2 = folder.path("run/saved/step-000002");
  EXPECT_EQ(export_model(folder.path("run"), folder.path("newest"), FolderFormat::Hf),
            folder.path("run/saved/step-000004"));
  EXPECT_EQ(export_model(step_2, folder.path("named"), FolderFormat::Hf), step_2);
  EXPECT_NE(folder.read("newest/model.safetensors"), folder.read("named/model.safetensors"));
  EXPECT_EQ(folder.read("newest/config.json"), folder.read("named/config.json"));
  EXPECT_THAT(
      [&] { export_model(folder.path(), folder.path("x"), FolderFormat::Hf); },
      ThrowsMessage<InvalidArgument>(HasSubstr("has neither recipe.toml nor manifest.json")));
  std::filesystem::remove_all(folder.path("run/saved"));
  EXPECT_THAT([&] { export_model(folder.path("run"), folder.path("x"), FolderFormat::Hf); },
              ThrowsMessage<InvalidArgument>(HasSubstr("run/saved has no whole checkpoint")));
}

}  // namespace
}  // namespace armillary::train

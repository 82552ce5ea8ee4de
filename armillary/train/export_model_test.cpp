// export_model_test.cpp: the checkpoint that is exported, and the end token of the folder: that of
// the run's data, whatever its tokenizer has beside it.
#include "armillary/train/export_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "armillary/core/error.h"
#include "armillary/train/testing/prepared_data.h"
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

TEST(ExportModel, TheEndTokenIsThatOfPreparedDataUnlessTheTokenizerHasItAmongOthers) {
  const ScratchFolder folder;
  Recipe recipe = small_recipe();
  recipe.model.name = "llama";
  recipe.training.steps = 1;
  recipe.lr_scheduler.warmup_steps = 0;
  recipe.job.dump_folder = folder.path("run");
  recipe.checkpoint.enable = true;
  const PackedText text = words(recipe.training.seq_len);
  train(recipe, PreparedData(text, {"packing = cut", "separator = 7"}), {});
  folder.write("run/recipe.toml", print_recipe(recipe));
  const auto end_of = [&](const std::string& name) {
    export_model(folder.path("run"), folder.path(name), FolderFormat::Hf);
    return nlohmann::json::parse(folder.read(name + "/config.json")).at("eos_token_id").dump();
  };
  EXPECT_EQ(end_of("alone"), "7");
  std::filesystem::create_directory(folder.path("run/tokenizer"));
  folder.write("run/tokenizer/tokenizer.json", "{}");
  EXPECT_EQ(end_of("unnamed"), "7");
  folder.write("run/tokenizer/generation_config.json", R"({"eos_token_id": [9, 7]})");
  EXPECT_EQ(end_of("among"), "[9,7]");
  folder.write("run/tokenizer/generation_config.json", R"({"eos_token_id": 9})");
  EXPECT_EQ(end_of("other"), "7");
  EXPECT_EQ(nlohmann::json::parse(folder.read("other/generation_config.json")),
            nlohmann::json::parse(R"({"eos_token_id": 7})"));
  EXPECT_EQ(folder.read("among/generation_config.json"), R"({"eos_token_id": [9, 7]})");
}

/// Text ends with its separator, whatever else the vocabulary has; other ids may be any words.
TEST(ExportModel, TheEndTokenIsTheSeparatorOfTextAndNoneOfOtherData) {
  const ScratchFolder folder;
  Recipe recipe = small_recipe();
  recipe.model.name = "llama";
  recipe.model.vocab_size = 300;
  recipe.training.steps = 1;
  recipe.lr_scheduler.warmup_steps = 0;
  recipe.checkpoint.enable = true;
  const PackedText text = words(recipe.training.seq_len);
  const auto end_of = [&](const std::string& name, const Data& data) {
    recipe.job.dump_folder = folder.path(name);
    train(recipe, data, {});
    folder.write(name + "/recipe.toml", print_recipe(recipe));
    export_model(folder.path(name), folder.path(name + "_model"), FolderFormat::Hf);
    return nlohmann::json::parse(folder.read(name + "_model/config.json"))["eos_token_id"].dump();
  };
  EXPECT_EQ(end_of("text", text), "256");
  class OtherWords : public PreparedData {
   public:
    using PreparedData::PreparedData;
    std::int64_t vocab_size() const override { return 300; }
  };
  EXPECT_EQ(end_of("ids", OtherWords(text, {"kind = other"})), "null");
  // Without a run, as far as the vocabulary has it.
  recipe.model.vocab_size = 256;
  EXPECT_TRUE(model_config(recipe.model, 50, FolderFormat::Hf)["eos_token_id"].is_null());
}

}  // namespace
}  // namespace armillary::train

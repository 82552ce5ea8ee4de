// run_folder_test.cpp: runs that are found, read and compared, while they go on, cut off, or
// damaged.
#include "armillary/lab/report/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::report {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr const char* kMeshRecipe =
    "[model]\nname = \"llama\"\n[training]\nsteps = 30\n[parallelism]\nzero = 2\n"
    "data_parallel_shard_degree = 2\ncontext_parallel_degree = 3\n";

class RunFolderTest : public testing::Test {
 protected:
  void SetUp() override { fs::remove_all(root_); }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(root_ + "/" + name).parent_path());
    std::ofstream(root_ + "/" + name, std::ios::binary) << text;
  }
  std::string path(const std::string& name) const { return root_ + "/" + name; }

  const std::string root_ =
      (fs::temp_directory_path() / ("armillary_run_folder_" + std::to_string(getpid()))).string();
};

TEST_F(RunFolderTest, RunsAreFoundBelowAFolderButNotInsideRuns) {
  write("b/recipe.toml", "");
  write("b/checkpoints/step-000010/recipe.toml", "");
  write("deep/a/recipe.toml", "");
  write("none/text", "");
  EXPECT_THAT(find_runs(root_), ElementsAre(path("b"), path("deep/a")));
  EXPECT_THAT(find_runs(path("b")), ElementsAre(path("b")));
  EXPECT_THAT(
      [&] { find_runs(path("none")); },
      ThrowsMessage<InvalidArgument>(HasSubstr("none' has no run below it; a folder with")));
  EXPECT_THAT([&] { find_runs(path("gone")); },
              ThrowsMessage<IoError>(HasSubstr("gone' is no folder")));
}

TEST_F(RunFolderTest, ARunIsItsLastLoss) {
  write("a/recipe.toml", kMeshRecipe);
  write("a/metrics.jsonl",
        "{\"step\":1,\"loss\":5.0,\"tps\":1.0,\"memory_bytes\":10}\n"
        "{\"step\":10,\"loss\":4.0,\"tps\":40.0,\"memory_bytes\":30,\"validation_loss\":4.5}\n"
        "{\"step\":20,\"loss\":3.5,\"tps\":75.0,\"ranks\":4,\"memory_bytes\":20}\n"
        "{\"step\":30,\"loss\":3.25,\"tps\":60.0,\"memory_bytes\":20}\n"
        "{\"step\":40,\"lo");
  const RunSummary run = summarize(path("a"));
  EXPECT_EQ(run.model, "llama");
  EXPECT_EQ(run.mesh.ranks(), 6);
  EXPECT_EQ(run.zero, 2);
  EXPECT_EQ(run.step, 30);
  EXPECT_EQ(run.steps, 30);
  EXPECT_EQ(run.loss, 3.25);
  EXPECT_EQ(run.validation_loss, 4.5);
  EXPECT_EQ(run.tokens_per_s, 300);
  EXPECT_EQ(run.memory_bytes, 30);
  EXPECT_THAT(
      describe({run}),
      HasSubstr("/a | llama | dp 2 x cp 3 | 2 | 30 of 30 | 3.2500 | 4.5000 | 300 | 0.00 |\n"));
  EXPECT_EQ(to_json(run)["mesh"]["cp"], 3);
}

TEST_F(RunFolderTest, ARunThatHasJustBegunHasNoNumbers) {
  write("a/recipe.toml", "");
  const RunSummary run = summarize(path("a"));
  EXPECT_EQ(run.step, 0);
  EXPECT_FALSE(run.loss);
  EXPECT_THAT(describe({run}), HasSubstr(" | 1 rank | 1 | 0 of 0 | - | - | - | - |\n"));
  EXPECT_TRUE(to_json(run)["loss"].is_null());
}

TEST_F(RunFolderTest, DamageIsNamed) {
  const auto refused = [&](const std::string& recipe, const std::string& metrics,
                           const std::string& text) {
    write("a/recipe.toml", recipe);
    write("a/metrics.jsonl", metrics);
    EXPECT_THAT([&] { summarize(path("a")); }, ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  refused("[training\n", "", "runs: ");
  refused("[training]\nsteps = \"ten\"\n", "", "has training.steps of another kind");
  refused("[parallelism]\ncontext_parallel_degree = 0\n", "", "context_parallel_degree = 0");
  refused("[parallelism]\ncontext_parallel_degree = 1024\ntensor_parallel_degree = 2\n", "",
          "tensor_parallel_degree = 2 beside 1024 ranks");
  refused("", "{\"step\":1}\n{\"loss\":2}\n", "metrics.jsonl:2 is no line of metrics");
  refused("", "no JSON\n", "metrics.jsonl:1 is no line of metrics");
}

}  // namespace
}  // namespace armillary::report

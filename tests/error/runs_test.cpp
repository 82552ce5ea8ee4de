// runs_test.cpp: `armillary runs` as a user sees it: the table of runs that were trained, JSON, and
// folders that are none.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(RunsError, FoldersWithoutRuns) {
  const Folder folder;
  expect_error({"runs"}, HasSubstr("folders"));
  expect_error({"runs", folder.path("none")},
               HasSubstr("none' is no folder; the folder of a run, or one with runs, is required"));
  std::filesystem::create_directories(folder.path("empty"));
  expect_error({"runs", folder.path("empty")}, HasSubstr("empty' has no run below it; a folder "));
  folder.write("recipe.toml", "[training\n");
  expect_error({"runs", folder.path("")}, HasSubstr("TOML is required"));
  folder.write("recipe.toml", "");
  folder.write("metrics.jsonl", "half a line\n");
  expect_error({"runs", folder.path("")}, HasSubstr("metrics.jsonl:1 is no line of metrics"));
}

TEST(Runs, ComparesFoldersInATable) {
  const Folder folder;
  std::filesystem::create_directories(folder.path("runs/a"));
  std::filesystem::create_directories(folder.path("runs/b"));
  folder.write("runs/a/recipe.toml", "[model]\nname = \"gpt\"\n[training]\nsteps = 9\n");
  folder.write("runs/a/metrics.jsonl", "{\"step\":9,\"loss\":2.5,\"tps\":7.0}\n");
  folder.write("runs/b/recipe.toml", "[parallelism]\ntensor_parallel_degree = 2\n");
  const ProgramRun table = run({"runs", folder.path("runs")});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("| run | model | mesh |"),
                               HasSubstr("/a | gpt | 1 rank | 1 | 9 of 9 | 2.5000 | - | 7 | - |\n"),
                               HasSubstr("/b |  | tp 2 | 1 | 0 of 0 | - | - | - | - |\n")));
  const ProgramRun json = run({"runs", folder.path("runs/a"), folder.path("runs/b"), "--json"});
  EXPECT_EQ(json.code, 0) << json.err;
  const nlohmann::json first = nlohmann::json::parse(json.out.substr(0, json.out.find('\n')));
  EXPECT_EQ(first["loss"], 2.5);
  EXPECT_EQ(first["folder"], folder.path("runs/a"));
}

// A run that was trained, with everything that watches it.
TEST(Runs, ReadsWhatTrainWrites) {
  if (!has_torch()) GTEST_SKIP() << "[SKIP] the program was built without libtorch";
  const Folder folder;
  const std::string text = folder.write("text.txt", std::string(400, 'a'));
  const std::string recipe = folder.write(
      "small.toml",
      fmt::format("[model]\ndim = 32\nn_layers = 2\nn_kv_heads = 2\nvocab_size = 300\n"
                  "[training]\nseq_len = 32\nsteps = 4\ndataset_path = '{}'\n"
                  "validation_path = '{}'\nvalidation_interval = 2\nvalidation_sequences = 3\n"
                  "[job]\ndump_folder = '{}'\n[metrics]\nenable_tensorboard = true\n"
                  "[parallelism]\ncontext_parallel_degree = 2\nstrategy = 'ring'\n",
                  text, text, folder.path("run")));
  const ProgramRun trained = run({"train", recipe});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("  validation_loss: "));
  EXPECT_THAT(folder.read("run/run.html"),
              AllOf(HasSubstr("\"state\":\"done\""), HasSubstr("\"validation\":{\"step\":[2,4]")));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path("run/tensorboard")),
                          std::filesystem::directory_iterator()),
            1);
  const ProgramRun json = run({"runs", folder.path("run"), "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const nlohmann::json summary = nlohmann::json::parse(json.out);
  EXPECT_EQ(summary["step"], 4);
  EXPECT_EQ(summary["ranks"], 2);
  EXPECT_GT(summary["validation_loss"].get<double>(), 0);
  EXPECT_GT(summary["tokens_per_s"].get<double>(), 0);
  EXPECT_GT(summary["memory_bytes"].get<double>(), 0);
}

TEST(Runs, ATrainingThatCannotBeWatchedIsRefused) {
  if (!has_torch()) GTEST_SKIP() << "[SKIP] the program was built without libtorch";
  const Folder folder;
  const std::string text = folder.write("text.txt", std::string(400, 'a'));
  const std::string recipe = folder.write(
      "small.toml", fmt::format("[training]\nseq_len = 32\nsteps = 1\ndataset_path = '{}'\n"
                                "[job]\ndump_folder = '{}'\n",
                                text, folder.path("run")));
  const auto refused = [&](const std::string& setting, const std::string& reason) {
    expect_error({"train", recipe, "--set", setting}, HasSubstr(reason));
    EXPECT_FALSE(std::filesystem::exists(folder.path("run"))) << setting;
  };
  refused("training.validation_interval=1", "training.validation_path is required");
  refused("training.spike_guard=rollback", "checkpoint.enable = false, which leaves nothing");
  refused("training.spike_guard=rolback", "nearest: rollback");
  refused("training.spike_loss_factor=1", "training.spike_loss_factor = 1.0; a value above 1");
  refused("metrics.cluster=c77", "metrics.cluster = c77, which the page of the run is to simulate");
}

}  // namespace
}  // namespace armillary::error

#include "armillary/train/checkpoint/folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_checkpoint.h"

namespace armillary::train {
namespace {

using testing::ElementsAre;
using testing::EndsWith;

std::vector<std::int64_t> steps_in(const std::string& folder) {
  std::vector<std::int64_t> steps;
  for (const FoundCheckpoint& checkpoint : find_checkpoints(folder).whole)
    steps.push_back(checkpoint.step);
  return steps;
}

TEST(CheckpointFolder, NamesHaveSixDigitsOrMore) {
  EXPECT_EQ(checkpoint_name(20), "step-000020");
  EXPECT_EQ(checkpoint_name(12345678), "step-12345678");
}

TEST(CheckpointFolder, FindsTheWholeOnesAndSaysWhatItPassesOver) {
  const ScratchFolder folder;
  EXPECT_TRUE(find_checkpoints(folder.path("none")).whole.empty());
  for (const std::int64_t step : {1000000, 20, 3}) {
    save_small(io::real_file_system(), folder.path(), step, 1);
  }
  for (const char* name : {"step-000040", "step-000030.tmp", "step-7", "other", "step-000050x"}) {
    std::filesystem::create_directories(folder.path(name));
  }
  const FoundCheckpoints checkpoints = find_checkpoints(folder.path());
  EXPECT_THAT(steps_in(folder.path()), ElementsAre(3, 20, 1000000));
  EXPECT_EQ(checkpoints.whole[1].path, folder.path("step-000020"));
  EXPECT_THAT(checkpoints.skipped, ElementsAre(EndsWith("step-000030.tmp: its writing was cut off"),
                                               EndsWith("step-000040: it has no manifest.json")));
  folder.write("file", "");
  EXPECT_THROW(find_checkpoints(folder.path("file")), IoError);
}

TEST(CheckpointFolder, OnlyTemporariesAreRemoved) {
  const ScratchFolder folder;
  for (const char* name : {"step-000030.tmp/sub", "step-000040", "other.tmp"}) {
    std::filesystem::create_directories(folder.path(name));
  }
  remove_temporaries(io::real_file_system(), folder.path());
  EXPECT_FALSE(std::filesystem::exists(folder.path("step-000030.tmp")));
  EXPECT_TRUE(std::filesystem::exists(folder.path("step-000040")));
  EXPECT_TRUE(std::filesystem::exists(folder.path("other.tmp")));
}

TEST(CheckpointFolder, TheNewestAreKept) {
  const ScratchFolder folder;
  for (std::int64_t step = 1; step <= 5; ++step) {
    save_small(io::real_file_system(), folder.path(), step, 2, /*keep=*/3);
  }
  EXPECT_THAT(steps_in(folder.path()), ElementsAre(3, 4, 5));
  keep_newest(io::real_file_system(), folder.path(), 0);
  EXPECT_THAT(steps_in(folder.path()), ElementsAre(3, 4, 5));
  keep_newest(io::real_file_system(), folder.path(), 1);
  EXPECT_THAT(steps_in(folder.path()), ElementsAre(5));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace armillary::train

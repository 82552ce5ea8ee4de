// write_test.cpp: the write of a checkpoint: each tensor by one rank in even shares, and a power
// cut at every call of the file system, after which the latest whole one is found.
#include "armillary/train/checkpoint/write.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/io/testing/power_cut.h"
#include "armillary/train/checkpoint/folder.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_checkpoint.h"

namespace armillary::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(ShareOf, EveryTensorIsOfOneRankAndSharesAreEven) {
  const SmallState state(1);
  for (const int world : {1, 2, 3, 4, 5, 7, 13}) {
    std::vector<std::string> names;
    for (int rank = 0; rank < world; ++rank) {
      for (const SavedTensor& tensor : share_of(state.tensors(), rank, world)) {
        names.push_back(tensor.info.name);
      }
    }
    std::vector<std::string> all;
    for (const SavedTensor& tensor : state.tensors()) all.push_back(tensor.info.name);
    EXPECT_EQ(names, all) << world << " ranks";
  }
  // 100 tensors of 8 bytes on 3 ranks.
  const std::vector<float> values(2);
  std::vector<SavedTensor> many;
  many.reserve(100);
  for (int i = 0; i < 100; ++i) {
    many.emplace_back(io::TensorBytes{{std::to_string(i), io::TensorDtype::F32, {2}},
                                      std::as_bytes(std::span(values))});
  }
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_NEAR(static_cast<double>(share_of(many, rank, 3).size()), 33, 1);
  }
}

TEST(Snapshot, IsACopyThatLaterStepsDoNotChange) {
  Snapshot snapshot;
  std::vector<float> values{1, 2, 3};
  const std::vector<SavedTensor> tensors{
      io::TensorBytes{{"a", io::TensorDtype::F32, {3}}, std::as_bytes(std::span(values))},
      io::TensorBytes{{"b", io::TensorDtype::F32, {0}}, {}}};
  snapshot.take(tensors);
  values = {4, 5, 6};
  ASSERT_EQ(snapshot.tensors().size(), 2U);
  const auto* const copy = reinterpret_cast<const float*>(snapshot.tensors()[0].bytes.data());
  EXPECT_EQ(std::vector<float>(copy, copy + 3), (std::vector<float>{1, 2, 3}));
  snapshot.take(tensors);
  EXPECT_EQ(copy[0], 4) << "the memory is used again";
}

TEST(Publish, APartThatIsNotThereIsAnError) {
  const ScratchFolder folder;
  const SmallState state(1);
  const WritePlace place{.folder = folder.path(), .step = 1, .rank = 0, .world = 2};
  write_part(io::real_file_system(), place, share_of(state.tensors(), 0, 2));
  EXPECT_THAT([&] { publish(io::real_file_system(), place, progress_at(1), "", 0); },
              ThrowsMessage<IoError>(HasSubstr("part-00001-of-00002.safetensors' does not exist")));
  EXPECT_TRUE(find_checkpoints(folder.path()).whole.empty());
}

/// An older folder without a manifest must not be in the way of the step that is saved again.
TEST(Publish, ReplacesAFolderThatIsNoCheckpoint) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path("step-000001/rest"));
  save_small(io::real_file_system(), folder.path(), 1, 1);
  EXPECT_TRUE(holds_its_state(Checkpoint(folder.path("step-000001"))));
}

/// Saves steps 1 to 4 in a child whose power is cut at a call. Returns the last step of which the
/// child knew that it was saved, and whether it came to its end.
struct Life {
  std::int64_t saved = 0;
  bool whole = false;
};
Life live(const ScratchFolder& folder, std::int64_t cut_at, io::Unsynced unsynced) {
  int told[2] = {-1, -1};
  if (pipe2(told, O_CLOEXEC) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    io::PowerCut power(cut_at, unsynced, folder.path("trash"));
    for (std::int64_t step = 1; step <= 4; ++step) {
      save_small(power, folder.path("disk"), step, 2, /*keep=*/2);
      if (write(told[1], "x", 1) != 1) std::_Exit(1);
    }
    std::_Exit(0);
  }
  close(told[1]);
  Life life;
  for (char c = 0; read(told[0], &c, 1) == 1;) ++life.saved;
  close(told[0]);
  int status = 0;
  waitpid(child, &status, 0);
  life.whole = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  EXPECT_TRUE(life.whole || (WIFEXITED(status) && WEXITSTATUS(status) == io::kPowerCut)) << status;
  return life;
}

TEST(PowerCut, AtAnyCallLeavesTheLatestCheckpointWhole) {
  const ScratchFolder folder;
  for (const io::Unsynced unsynced : {io::Unsynced::Kept, io::Unsynced::Lost}) {
    bool whole = false;
    std::int64_t cut_at = 0;
    for (cut_at = 1; !whole && cut_at < 1000; ++cut_at) {
      SCOPED_TRACE("cut at call " + std::to_string(cut_at));
      folder.clear();
      std::filesystem::create_directories(folder.path("disk"));
      std::filesystem::create_directories(folder.path("trash"));
      const Life life = live(folder, cut_at, unsynced);
      whole = life.whole;
      // The newest is the last that was known to be saved, or the one that was being saved.
      const FoundCheckpoints checkpoints = find_checkpoints(folder.path("disk"));
      const std::int64_t newest = checkpoints.whole.empty() ? 0 : checkpoints.whole.back().step;
      ASSERT_GE(newest, life.saved);
      ASSERT_LE(newest, life.saved + 1);
      for (const FoundCheckpoint& one : checkpoints.whole) {
        ASSERT_TRUE(holds_its_state(Checkpoint(one.path))) << one.path;
      }
      // The next run cleans up and goes on.
      io::PowerCut next(0, unsynced, folder.path("trash"));
      remove_temporaries(next, folder.path("disk"));
      save_small(next, folder.path("disk"), newest + 1, 3, /*keep=*/2);
      ASSERT_EQ(find_checkpoints(folder.path("disk")).whole.back().step, newest + 1);
    }
    EXPECT_GT(cut_at, 80) << "fewer calls than 4 checkpoints have";
    EXPECT_TRUE(whole);
  }
}

}  // namespace
}  // namespace armillary::train

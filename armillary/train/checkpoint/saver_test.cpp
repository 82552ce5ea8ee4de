// saver_test.cpp: checkpoints written beside the steps: order, the newest K, and disks that are
// full, slow or closed to one rank. A file system with a hook makes them so.
#include "armillary/train/checkpoint/saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/train/checkpoint/folder.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_checkpoint.h"

namespace armillary::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// The real file system, save that creating a file first asks `before`.
class AskedFileSystem : public io::FileSystem {
 public:
  explicit AskedFileSystem(std::function<void(const std::string&)> before)
      : before_(std::move(before)) {}
  std::unique_ptr<io::OutputFile> create(const std::string& path) override {
    before_(path);
    return real_.create(path);
  }
  void make_folder(const std::string& path) override { real_.make_folder(path); }
  void sync_folder(const std::string& path) override { real_.sync_folder(path); }
  void rename(const std::string& from, const std::string& to) override { real_.rename(from, to); }
  void remove(const std::string& path) override { real_.remove(path); }

 private:
  io::FileSystem& real_ = io::real_file_system();
  std::function<void(const std::string&)> before_;
};

double summed(comm::Communicator& comm, double value) {
  comm::all_reduce_sum(comm, std::span(&value, 1));
  return value;
}

/// Refuses files whose path has `text`.
AskedFileSystem refusing(const std::string& text) {
  return AskedFileSystem([text](const std::string& path) {
    if (path.find(text) != std::string::npos) throw IoError("write: " + path + " (no disk)");
  });
}

TEST(CheckpointSaver, SavesBesideTheStepsAndOnceAllRanksAreThere) {
  const ScratchFolder folder;
  std::atomic<bool> hold = true;
  AskedFileSystem slow([&](const std::string& path) {
    while (hold && path.find("part-00001") != std::string::npos) std::this_thread::yield();
  });
  comm::run_ranks(3, [&](comm::Communicator& comm) {
    CheckpointSaver saver(
        comm, slow, {.folder = folder.path("new/checkpoints"), .recipe = "the recipe of step 7"});
    const SmallState state(7);
    saver.save(7, share_of(state.tensors(), comm.rank(), comm.world()), progress_at(7));
    // Rank 1 cannot write yet: steps go on, and no checkpoint is there.
    for (int step = 0; step < 3; ++step) {
      const double busy = summed(comm, saver.busy());
      EXPECT_GE(busy, 1);
      saver.advance(busy);
    }
    EXPECT_TRUE(find_checkpoints(folder.path("new/checkpoints")).whole.empty());
    comm::barrier(comm);
    hold = false;
    saver.finish();
    saver.finish();
    EXPECT_EQ(saver.busy(), 0);
  });
  EXPECT_TRUE(holds_its_state(Checkpoint(folder.path("new/checkpoints/step-000007"))));
  EXPECT_EQ(Checkpoint(folder.path("new/checkpoints/step-000007")).manifest().world, 3);
}

TEST(CheckpointSaver, ASaveWaitsForTheOneBeforeAndTheNewestAreKept) {
  const ScratchFolder folder;
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    CheckpointSaver saver(comm, io::real_file_system(), {.folder = folder.path(), .keep = 2});
    for (std::int64_t step = 1; step <= 4; ++step) {
      const SmallState state(step);  // gone before it is written
      saver.save(step, share_of(state.tensors(), comm.rank(), comm.world()), progress_at(step));
    }
    saver.finish();
  });
  const FoundCheckpoints checkpoints = find_checkpoints(folder.path());
  ASSERT_EQ(checkpoints.whole.size(), 2U);
  EXPECT_TRUE(checkpoints.skipped.empty());
  EXPECT_EQ(checkpoints.whole[0].step, 3);
  Checkpoint(checkpoints.whole[1].path).verify(0, 1);
}

/// Errors of all 3 ranks, if the file system of rank 1 refuses paths with `refused` in them.
std::vector<std::string> errors_with(const ScratchFolder& folder, const std::string& refused) {
  std::vector<std::string> told(3);
  AskedFileSystem bad = refusing(refused);
  const auto body = [&](comm::Communicator& comm) {
    io::FileSystem& files =
        comm.rank() == 1 || refused == "manifest" ? bad : io::real_file_system();
    try {
      CheckpointSaver saver(comm, files, {.folder = folder.path()});
      const SmallState state(5);
      saver.save(5, share_of(state.tensors(), comm.rank(), comm.world()), progress_at(5));
      saver.finish();
    } catch (const CommError&) {
      throw;
    } catch (const Error& error) {
      told[comm.rank()] = error.what();
    }
  };
  comm::run_ranks(3, body, {.timeout_s = 20});
  return told;
}

TEST(CheckpointSaver, AFolderThatOneRankCannotWriteIsRefusedOnAllAtTheStart) {
  const ScratchFolder folder;
  for (const std::string& text : errors_with(folder, "rank-1.tmp")) {
    EXPECT_THAT(text, AllOf(HasSubstr("rank 1: write: "), HasSubstr("rank-1.tmp (no disk)")));
  }
}

TEST(CheckpointSaver, ARankThatCannotWriteEndsAllWithStepRankAndReason) {
  const ScratchFolder folder;
  for (const std::string& text : errors_with(folder, "part-00001")) {
    EXPECT_THAT(text, AllOf(HasSubstr("rank 1: checkpoint: step 5 is not saved: write: "),
                            HasSubstr("part-00001-of-00003.safetensors (no disk)")));
  }
  for (const std::string& text : errors_with(folder, "manifest")) {
    EXPECT_THAT(text, HasSubstr("rank 0: checkpoint: step 5 is not saved: write: "));
  }
  EXPECT_TRUE(find_checkpoints(folder.path()).whole.empty());
}

// In the same step, whatever of it is written; nobody waits.
TEST(CheckpointSaver, ASaveOfOneRankAloneEndsAll) {
  const ScratchFolder folder;
  std::vector<std::string> told(3);
  comm::run_ranks(3, [&](comm::Communicator& comm) {
    CheckpointSaver saver(comm, io::real_file_system(), {.folder = folder.path()});
    const SmallState state(5);
    if (comm.rank() == 1) saver.save(5, share_of(state.tensors(), 1, 3), progress_at(5));
    const double busy = summed(comm, saver.busy());
    try {
      saver.advance(busy);
    } catch (const Error& error) {
      told[comm.rank()] = error.what();
    }
    while (std::fmod(saver.busy(), 2) != 0) std::this_thread::yield();  // The thread writes.
    comm::barrier(comm);
  });
  EXPECT_THAT(told,
              testing::Each("checkpoint: 1 of 3 ranks save; a save on all ranks is required"));
  EXPECT_TRUE(find_checkpoints(folder.path()).whole.empty());
}

TEST(CheckpointSaver, ADiskThatHangsHasADeadline) {
  const ScratchFolder folder;
  std::atomic<bool> hold = true;
  std::atomic<int> ended = 0;
  AskedFileSystem hanging([&](const std::string& path) {
    while (hold && path.find("part-") != std::string::npos) std::this_thread::yield();
    if (path.find("part-") != std::string::npos) ++ended;
  });
  const auto body = [&](comm::Communicator& comm) {
    CheckpointSaver saver(comm, hanging, {.folder = folder.path()});
    const SmallState state(5);
    saver.save(5, share_of(state.tensors(), comm.rank(), comm.world()), progress_at(5));
    saver.finish();
  };
  EXPECT_THAT([&] { comm::run_ranks(2, body, {.timeout_s = 1}); },
              testing::ThrowsMessage<Error>(AllOf(HasSubstr("step 5 is not saved"),
                                                  HasSubstr("is not written after 0.5 s"))));
  hold = false;
  while (ended < 2) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // and the threads write
}

/// Copying is all that a step waits for: a save is over while the disk still holds its first part.
TEST(CheckpointSaver, ASaveTakesNoLongerThanACopy) {
  const ScratchFolder folder;
  std::atomic<bool> hold = true;
  const auto latest = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  AskedFileSystem slow([&](const std::string& path) {
    if (path.find("part-") == std::string::npos) return;
    while (hold && std::chrono::steady_clock::now() < latest) std::this_thread::yield();
  });
  comm::run_ranks(1, [&](comm::Communicator& comm) {
    CheckpointSaver saver(comm, slow, {.folder = folder.path()});
    const SmallState state(5);
    saver.save(5, share_of(state.tensors(), comm.rank(), comm.world()), progress_at(5));
    EXPECT_LT(std::chrono::steady_clock::now(), latest);
    EXPECT_GT(saver.busy(), 0);
    hold = false;
    saver.finish();
  });
  EXPECT_EQ(find_checkpoints(folder.path()).whole.size(), 1U);
}

}  // namespace
}  // namespace armillary::train

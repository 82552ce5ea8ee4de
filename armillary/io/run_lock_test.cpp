// run_lock_test.cpp: two runs in one folder, one after the other, and one that is killed.
#include "armillary/io/run_lock.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "armillary/core/error.h"

namespace armillary::io {
namespace {

namespace fs = std::filesystem;

class RunLockTest : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_ = fs::temp_directory_path() / fmt::format("armillary_run_lock_{}", getpid());
};

TEST_F(RunLockTest, RefusesASecondRunWithFolderAndPid) {
  std::optional<RunLock> first(std::in_place, folder_.string());
  EXPECT_THAT(
      [&] { RunLock second(folder_.string()); },
      testing::ThrowsMessage<IoError>(testing::AllOf(
          testing::HasSubstr(fmt::format("pid {}) writes into {};", getpid(), folder_.string())),
          testing::HasSubstr("another folder is required"))));
  first.reset();
  EXPECT_TRUE(fs::is_empty(folder_)) << "nothing is left";
  const RunLock next(folder_.string());
}

TEST_F(RunLockTest, IsFreeWhenItsProcessIsKilled) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const RunLock lock(folder_.string());
    [[maybe_unused]] const ssize_t told = write(ready[1], "", 1);
    pause();
    _exit(0);
  }
  char word = 0;
  ASSERT_EQ(read(ready[0], &word, 1), 1);
  EXPECT_THAT([&] { RunLock second(folder_.string()); },
              testing::ThrowsMessage<IoError>(testing::HasSubstr(fmt::format("pid {})", child))));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(folder_ / "lock"));
  const RunLock next(folder_.string());
  close(ready[0]);
  close(ready[1]);
}

TEST_F(RunLockTest, WaitsForARunThatEnds) {
  std::optional<RunLock> first(std::in_place, folder_.string());
  const std::jthread ending([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    first.reset();
  });
  const RunLock next(folder_.string());
}

TEST_F(RunLockTest, RefusesAFolderThatIsNone) {
  EXPECT_THAT([] { RunLock("/dev/null/run"); },
              testing::ThrowsMessage<IoError>(testing::HasSubstr("folder /dev/null/run cannot")));
}

}  // namespace
}  // namespace armillary::io

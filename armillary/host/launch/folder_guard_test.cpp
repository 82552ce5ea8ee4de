// folder_guard_test.cpp: folders whose owner is killed, in processes of their own; a process that
// does not end is named on a terminal.
#include "armillary/host/launch/folder_guard.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace armillary::launch {
namespace {

namespace fs = std::filesystem;

class GuardedFolder : public testing::Test {
 protected:
  // Each test has a folder of its own: a guard looks after its folder for a while longer.
  GuardedFolder() {
    static int count = 0;
    path_ = fs::temp_directory_path() /
            ("armillary_guard_" + std::to_string(getpid()) + "_" + std::to_string(count++));
    fs::create_directories(path_ / "deep");
    std::ofstream(path_ / "deep" / "file") << "text";
  }
  ~GuardedFolder() override { fs::remove_all(path_); }

  /// Whether the folder goes away within a minute.
  bool goes_away() const {
    for (int looks = 0; looks < 3000 && fs::exists(path_); ++looks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return !fs::exists(path_);
  }

  fs::path path_;
};

TEST_F(GuardedFolder, IsRemovedIfItsOwnerIsKilled) {
  const pid_t owner = fork();
  if (owner == 0) {
    const FolderGuard guard(path_);
    raise(SIGKILL);
  }
  waitpid(owner, nullptr, 0);
  EXPECT_TRUE(goes_away());
}

TEST_F(GuardedFolder, MayBeMadeBehindItsGuard) {
  fs::remove_all(path_);
  const pid_t owner = fork();
  if (owner == 0) {
    const FolderGuard guard(path_);
    fs::create_directory(path_);
    raise(SIGKILL);
  }
  waitpid(owner, nullptr, 0);
  EXPECT_TRUE(goes_away());
}

// As mpirun on a busy machine, which makes its folder when the launcher is dead for long.
TEST_F(GuardedFolder, IsRemovedAgainIfAProcessOfTheRunMakesItLate) {
  const pid_t late = fork();
  if (late == 0) {
    const std::string variable = "FOLDER=" + path_.string();
    const char* variables[] = {variable.c_str(), "PATH=/usr/bin:/bin", nullptr};
    execle("/bin/sh", "sh", "-c", "sleep 2; mkdir -p \"$FOLDER\"; sleep 0.2", nullptr,
           const_cast<char**>(variables));
    _exit(1);
  }
  const pid_t owner = fork();
  if (owner == 0) {
    const FolderGuard guard(path_);
    raise(SIGKILL);
  }
  waitpid(owner, nullptr, 0);
  EXPECT_TRUE(goes_away());
  int status = 1;
  waitpid(late, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(goes_away());
}

/// A process that has the folder among its variables, for a minute.
pid_t user_of_folder(const std::string& folder) {
  const pid_t user = fork();
  if (user == 0) {
    const std::string variable = "FOLDER=" + folder;
    const char* variables[] = {variable.c_str(), nullptr};
    execle("/bin/sleep", "sleep", "60", nullptr, const_cast<char**>(variables));
    _exit(1);
  }
  return user;
}

TEST_F(GuardedFolder, AProcessThatDoesNotEndIsNamedAndNotWaitedFor) {
  const pid_t user = user_of_folder(path_);
  int terminal = -1;
  int other = -1;
  ASSERT_EQ(openpty(&terminal, &other, nullptr, nullptr, nullptr), 0);
  const pid_t owner = fork();
  if (owner == 0) {
    dup2(other, STDERR_FILENO);
    const FolderGuard guard(path_, std::chrono::seconds(2));
    raise(SIGKILL);
  }
  waitpid(owner, nullptr, 0);
  close(other);  // The guard has it alone: its end is the end of what is read.
  std::string told;
  std::array<char, 256> text = {};
  for (ssize_t n = 0; (n = read(terminal, text.data(), text.size())) > 0;) {
    told.append(text.data(), static_cast<std::size_t>(n));
  }
  close(terminal);
  const std::string pid = std::to_string(user);
  EXPECT_NE(told.find("process " + pid + " (sleep) still uses " + path_.string() +
                      " 2 s after its launcher was killed"),
            std::string::npos)
      << told;
  EXPECT_NE(told.find("kill -9 " + pid), std::string::npos) << told;
  EXPECT_FALSE(fs::exists(path_));
  kill(user, SIGKILL);
  waitpid(user, nullptr, 0);
}

TEST_F(GuardedFolder, StaysAtTheEndOfTheGuard) {
  { const FolderGuard guard(path_); }
  EXPECT_TRUE(fs::exists(path_ / "deep" / "file"));
}

}  // namespace
}  // namespace armillary::launch

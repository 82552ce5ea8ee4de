// folder_guard_test.cpp: folders whose owner is killed, in processes of their own; a process that
// does not end is named on a terminal.
#include "armillary/host/launch/folder_guard.h"

#include <gtest/gtest.h>
#include <poll.h>
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

/// A terminal, and what is read from it.
class TestTerminal {
 public:
  TestTerminal() { EXPECT_EQ(openpty(&reader_, &stream_, nullptr, nullptr, nullptr), 0); }
  ~TestTerminal() {
    close(reader_);
    close_stream();
  }
  TestTerminal(const TestTerminal&) = delete;
  TestTerminal& operator=(const TestTerminal&) = delete;

  int stream() const { return stream_; }
  void close_stream() {
    if (stream_ >= 0) close(stream_);
    stream_ = -1;
  }
  /// Reads for so many seconds, or to the end of a line or of the last process that holds the
  /// terminal.
  std::string read_line(int seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    std::string told;
    while (told.find('\n') == std::string::npos && std::chrono::steady_clock::now() < end) {
      pollfd source{reader_, POLLIN, 0};
      if (poll(&source, 1, 100) <= 0) continue;
      std::array<char, 256> text = {};
      const ssize_t size = read(reader_, text.data(), text.size());
      if (size <= 0) break;  // Nobody holds it.
      told.append(text.data(), static_cast<std::size_t>(size));
    }
    is_held_ = std::chrono::steady_clock::now() >= end;
    return told;
  }
  /// Whether the last read_line() came to its deadline.
  bool is_held() const { return is_held_; }

 private:
  int reader_ = -1;
  int stream_ = -1;
  bool is_held_ = false;
};

/// Ends the owner of the guard of a folder, which tells errors on a terminal.
void kill_owner(const fs::path& folder, const TestTerminal& terminal, int patience_s) {
  const pid_t owner = fork();
  if (owner == 0) {
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) dup2(terminal.stream(), stream);
    const FolderGuard guard(folder, std::chrono::seconds(patience_s));
    raise(SIGKILL);
  }
  waitpid(owner, nullptr, 0);
}

TEST_F(GuardedFolder, AProcessThatDoesNotEndIsNamedAndNotWaitedFor) {
  const pid_t user = user_of_folder(path_);
  TestTerminal terminal;
  kill_owner(path_, terminal, 2);
  const std::string told = terminal.read_line(60);
  const std::string pid = std::to_string(user);
  EXPECT_NE(told.find("armillary: launch: process " + pid + " (sleep) still uses " +
                      path_.string() + " 2 s after its launcher was killed"),
            std::string::npos)
      << told;
  EXPECT_NE(told.find("kill -9 " + pid), std::string::npos) << told;
  EXPECT_FALSE(fs::exists(path_));
  kill(user, SIGKILL);
  waitpid(user, nullptr, 0);
}

// A terminal ends with the last process that holds it, and ssh with the terminal.
TEST_F(GuardedFolder, HoldsNoTerminal) {
  const pid_t user = user_of_folder(path_);
  TestTerminal terminal;
  kill_owner(path_, terminal, 60);
  terminal.close_stream();
  EXPECT_EQ(terminal.read_line(30), "");
  EXPECT_FALSE(terminal.is_held());
  kill(user, SIGKILL);
  waitpid(user, nullptr, 0);
  EXPECT_TRUE(goes_away());
}

// Its user ends in the second in which the folder is seen to stay away.
TEST_F(GuardedFolder, AProcessThatEndsAtTheDeadlineIsNotCalledUnseen) {
  const pid_t user = fork();
  if (user == 0) {
    const std::string variable = "FOLDER=" + path_.string();
    const char* variables[] = {variable.c_str(), "PATH=/usr/bin:/bin", nullptr};
    execle("/bin/sh", "sh", "-c", "while sleep 0.02; do mkdir -p \"$FOLDER\"; done", nullptr,
           const_cast<char**>(variables));
    _exit(1);
  }
  TestTerminal terminal;
  kill_owner(path_, terminal, 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  kill(user, SIGKILL);
  waitpid(user, nullptr, 0);
  EXPECT_EQ(terminal.read_line(5), "");
  EXPECT_TRUE(goes_away());
}

TEST_F(GuardedFolder, StaysAtTheEndOfTheGuard) {
  { const FolderGuard guard(path_); }
  EXPECT_TRUE(fs::exists(path_ / "deep" / "file"));
}

}  // namespace
}  // namespace armillary::launch

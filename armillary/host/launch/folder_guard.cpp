// folder_guard.cpp: a child that waits for the end of its parent by a socket, and removes the
// folder then, as soon as no process of this machine uses it any more.
#include "armillary/host/launch/folder_guard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>

namespace armillary::launch {
namespace {

using Clock = std::chrono::steady_clock;

/// The folder has to stay away for so long: processes that end may make files there again.
constexpr std::chrono::seconds kAway(1);
constexpr std::chrono::milliseconds kLook(20);

/// A guard that was told to end has so long.
constexpr std::chrono::seconds kEnd(5);

/// The pid of a process of this machine that has the folder among its variables, as it may make it
/// again; empty: there is none.
std::string user_of(const std::string& folder) {
  std::error_code error;
  using Processes = std::filesystem::directory_iterator;
  for (Processes at("/proc", error); at != Processes(); at.increment(error)) {
    std::ifstream stream(at->path() / "environ", std::ios::binary);
    const std::string variables{std::istreambuf_iterator<char>(stream), {}};
    if (variables.find(folder) != std::string::npos) return at->path().filename().string();
  }
  return "";
}

/// The terminal on which the launcher tells errors, to be opened again: whoever holds one keeps its
/// window or its ssh from ending.
struct Terminal {
  std::string path;  ///< Empty: there is none.
  timespec birth = {};
};

Terminal terminal_of(int stream) {
  std::array<char, 256> path = {};
  struct stat status = {};
  if (ttyname_r(stream, path.data(), path.size()) != 0 || fstat(stream, &status) != 0) return {};
  return {.path = path.data(), .birth = status.st_ctim};
}

/// Writes a line, unless another terminal has the path by now.
void tell_on(const Terminal& terminal, const std::string& text) {
  if (terminal.path.empty()) return;
  const Descriptor stream(open(terminal.path.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK));
  struct stat status = {};
  if (!stream.open() || fstat(stream.get(), &status) != 0) return;
  const timespec& birth = status.st_ctim;
  if (birth.tv_sec != terminal.birth.tv_sec || birth.tv_nsec != terminal.birth.tv_nsec) return;
  const std::string line = "armillary: " + text + "\n";
  [[maybe_unused]] const ssize_t told = write(stream.get(), line.data(), line.size());
}

/// The guard's folder, and how long it may take.
struct Task {
  std::string folder;
  std::chrono::seconds patience;
  Terminal terminal;
};

/// Says which process is left, and what to do. The launcher is dead, so nobody is thrown to.
void tell_left(const Task& task, const std::string& pid) {
  std::string name;
  if (!pid.empty()) std::getline(std::ifstream("/proc/" + pid + "/comm"), name);
  const std::string text = fmt::format(
      "launch: {} still uses {} {} s after its launcher was killed; its end is required; nearest: "
      "{}rm -rf {}",
      pid.empty() ? "a process that is not seen" : fmt::format("process {} ({})", pid, name),
      task.folder, task.patience.count(), pid.empty() ? "" : fmt::format("kill -9 {}; ", pid),
      task.folder);
  openlog("armillary", 0, LOG_USER);
  syslog(LOG_WARNING, "%s", text.c_str());
  tell_on(task.terminal, text);
}

/// Removes the folder. Returns whether it stays away.
bool remove_once(const std::string& folder) {
  std::error_code error;  // Nobody is left to be told.
  std::filesystem::remove_all(folder, error);
  for (const Clock::time_point end = Clock::now() + kAway; Clock::now() < end;) {
    std::this_thread::sleep_for(kLook);
    if (std::filesystem::exists(folder, error)) return false;
  }
  return true;
}

void remove_for_good(const Task& task) {
  const Clock::time_point deadline = Clock::now() + task.patience;
  for (;;) {
    const bool is_away = remove_once(task.folder);
    const bool is_late = Clock::now() > deadline;
    if (!is_away && !is_late) continue;
    const std::string pid = user_of(task.folder);
    // A process that has just ended may have made the folder before.
    if (pid.empty() && (is_away || remove_once(task.folder))) return;
    if (is_late) return tell_left(task, pid);
  }
}

/// The life of the guard. It holds nothing of the launcher's but the line: whoever reads the
/// launcher's output sees its end with the launcher.
[[noreturn]] void guard(Task task, int line) {
  setsid();  // A signal to the launcher's group or terminal is none for the guard.
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_IGN);
  task.terminal = terminal_of(STDERR_FILENO);
  const int nothing = open("/dev/null", O_RDWR);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, stream);
  constexpr int kLine = STDERR_FILENO + 1;
  dup2(line, kLine);
  close_range(kLine + 1, ~0U, 0);
  char word = 0;
  // A word is an orderly end; the end of the line without one is the launcher's death.
  if (read(kLine, &word, 1) != 1) remove_for_good(task);
  _exit(0);
}

}  // namespace

FolderGuard::FolderGuard(const std::string& folder, std::chrono::seconds patience) {
  std::array<int, 2> ends = {};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return;
  line_ = Descriptor(ends[0]);
  Descriptor other(ends[1]);
  pid_ = fork();
  if (pid_ == 0) guard({.folder = folder, .patience = patience, .terminal = {}}, other.get());
}

FolderGuard::~FolderGuard() {
  if (pid_ < 0) return;
  const char word = 0;
  send(line_.get(), &word, 1, MSG_NOSIGNAL);
  line_.close();
  const Clock::time_point deadline = Clock::now() + kEnd;
  while (waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (Clock::now() > deadline) kill(pid_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace armillary::launch

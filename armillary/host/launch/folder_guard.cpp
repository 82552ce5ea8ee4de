#include "armillary/host/launch/folder_guard.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
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

/// Whether a process of this machine has the folder among its variables: it may make it again.
bool has_users(const std::string& folder) {
  std::error_code error;
  using Processes = std::filesystem::directory_iterator;
  for (Processes at("/proc", error); at != Processes(); at.increment(error)) {
    std::ifstream stream(at->path() / "environ", std::ios::binary);
    const std::string variables{std::istreambuf_iterator<char>(stream), {}};
    if (variables.find(folder) != std::string::npos) return true;
  }
  return false;
}

void remove_for_good(const std::string& folder) {
  std::error_code error;  // Nobody is left to be told.
  do {
    for (Clock::time_point away = Clock::now(); Clock::now() - away < kAway;) {
      if (std::filesystem::exists(folder, error)) {
        std::filesystem::remove_all(folder, error);
        away = Clock::now();
      }
      std::this_thread::sleep_for(kLook);
    }
  } while (has_users(folder));
}

/// The life of the guard. It holds nothing of the launcher's but the line: whoever reads the
/// launcher's output sees its end with the launcher.
[[noreturn]] void guard(const std::string& folder, int line) {
  setsid();  // A signal to the launcher's group or terminal is none for the guard.
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_IGN);
  const int nothing = open("/dev/null", O_RDWR);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, stream);
  constexpr int kLine = STDERR_FILENO + 1;
  dup2(line, kLine);
  close_range(kLine + 1, ~0U, 0);
  char word = 0;
  // A word is an orderly end; the end of the line without one is the launcher's death.
  if (read(kLine, &word, 1) != 1) remove_for_good(folder);
  _exit(0);
}

}  // namespace

FolderGuard::FolderGuard(const std::string& folder) {
  std::array<int, 2> ends = {};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return;
  line_ = Descriptor(ends[0]);
  Descriptor other(ends[1]);
  pid_ = fork();
  if (pid_ == 0) guard(folder, other.get());
}

FolderGuard::~FolderGuard() {
  if (pid_ < 0) return;
  const char word = 0;
  send(line_.get(), &word, 1, MSG_NOSIGNAL);
  line_.close();
  waitpid(pid_, nullptr, 0);
}

}  // namespace armillary::launch

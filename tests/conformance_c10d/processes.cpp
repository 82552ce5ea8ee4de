// processes.cpp: ranks of the conformance suite as processes over c10d. The program starts itself
// once per rank; results of ranks come back as lines.
#include "tests/conformance_c10d/processes.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since_start(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct ChildProcess {
  pid_t pid = -1;
  int output = -1;  ///< The reading end of its pipe.
};

/// Starts a program, which inherits the descriptor `descriptor` unless that is -1.
ChildProcess start_child(const std::vector<std::string>& arguments, int descriptor) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail<Error>("pipe2: no pipe");
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.data()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    if (descriptor >= 0) fcntl(descriptor, F_SETFD, 0);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
  return {pid, ends[0]};
}

/// Reads the output of a child until its end.
void follow(const ChildProcess& child, Clock::time_point begin, ProcessEnd& outcome) {
  std::array<char, 4096> buffer;
  for (ssize_t size = 0; (size = read(child.output, buffer.data(), buffer.size())) > 0;) {
    outcome.output.append(buffer.data(), static_cast<std::size_t>(size));
  }
  close(child.output);
  int status = 0;
  waitpid(child.pid, &status, 0);
  outcome.seconds = seconds_since_start(begin);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
}

bool is_stopped(pid_t pid) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid;
}

}  // namespace

ListeningSocket::ListeningSocket() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd_, any, size) != 0 || listen(fd_, 64) != 0 || getsockname(fd_, any, &size) != 0) {
    fail<Error>("no port of the loopback interface is free");
  }
  port_ = ntohs(address.sin_port);
}

ListeningSocket::~ListeningSocket() {
  if (fd_ >= 0) close(fd_);
}

int ListeningSocket::release() {
  return std::exchange(fd_, -1);
}

std::vector<ProcessEnd> run_as_ranks(int world, const std::vector<std::string>& arguments,
                                     double limit_s) {
  const ListeningSocket socket;
  const Clock::time_point begin = Clock::now();
  std::vector<ChildProcess> children;
  for (int rank = 0; rank < world; ++rank) {
    std::vector<std::string> all = {std::filesystem::read_symlink("/proc/self/exe"),
                                    fmt::format("--c10d={}/{}/{}/{}", rank, world, socket.port(),
                                                rank == 0 ? socket.fd() : -1)};
    all.insert(all.end(), arguments.begin(), arguments.end());
    children.push_back(start_child(all, rank == 0 ? socket.fd() : -1));
  }
  std::vector<ProcessEnd> outcomes(children.size());
  std::vector<std::thread> followers;
  followers.reserve(children.size());
  std::atomic<int> running = world;
  for (std::size_t i = 0; i < children.size(); ++i) {
    followers.emplace_back([&, i] {
      follow(children[i], begin, outcomes[i]);
      --running;
    });
  }
  while (running > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto stopped = std::ranges::count_if(children, is_stopped, &ChildProcess::pid);
    if (seconds_since_start(begin) < limit_s && running > stopped) continue;
    for (const ChildProcess& child : children) kill(child.pid, SIGKILL);
    break;
  }
  for (std::thread& follower : followers) follower.join();
  return outcomes;
}

C10dRendezvous place_of(const std::string& text) {
  C10dRendezvous place;
  const int count = std::sscanf(text.c_str(), "%d/%d/%d/%d", &place.rank, &place.world, &place.port,
                                &place.listen_fd);
  if (count != 4) fail<InvalidArgument>("--c10d={}; RANK/WORLD/PORT/FD is required", text);
  return place;
}

}  // namespace armillary::comm

// A child is started by posix_spawn: after fork, a process with threads may call almost nothing.
// Its standard input is a socket, because writing to one that nobody reads can be asked to return
// an error; a pipe would raise SIGPIPE. Both outputs are read together, or a child that writes much
// to standard error would wait for a reader forever.
#include "armillary/bench/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::bench {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kGrace(5000);      ///< For a process to end by itself.
constexpr milliseconds kLastWords(1000);  ///< For the end of standard error.
constexpr std::size_t kMostComplaints = 4096;

/// Two connected descriptors. Children that are started later do not inherit them.
struct Ends {
  Descriptor ours, theirs;
};

/// Both ends can be written and read; we only write.
Ends make_socket() {
  std::array<int, 2> ends = {};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    fail<Error>("contender: socketpair: {}", std::strerror(errno));
  }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// A pipe that the child writes to.
Ends make_pipe() {
  std::array<int, 2> ends = {};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail<Error>("contender: pipe: {}", std::strerror(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// Starts the shell with these standard streams, as the leader of a new process group.
pid_t spawn(const std::string& command, std::vector<std::string> variables,
            const std::array<const Descriptor*, 3>& streams) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  for (int stream = 0; stream < 3; ++stream) {
    posix_spawn_file_actions_adddup2(&actions, streams[stream]->number(), stream);
  }
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);  // a new group, with the number of the child
  std::string shell = "sh", flag = "-c", text = command;
  const std::array<char*, 4> argv{shell.data(), flag.data(), text.data(), nullptr};
  std::vector<char*> environment;
  environment.reserve(variables.size() + 1);
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, "/bin/sh", &actions, &attributes, argv.data(),
                                variables.empty() ? environ : environment.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) fail<Error>("contender: /bin/sh: {}", std::strerror(error));
  return pid;
}

/// Whether a child has ended. It is not reaped, so its number stays its own.
bool has_ended(pid_t pid) {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         info.si_pid == pid;
}

/// Waits until one of two descriptors can be read; one that is closed is not waited for. Returns
/// which can be, none of them at the deadline.
std::array<bool, 2> wait_for(const Descriptor& first, const Descriptor& second,
                             Clock::time_point deadline) {
  std::array<pollfd, 2> fds{pollfd{.fd = first.number(), .events = POLLIN, .revents = 0},
                            pollfd{.fd = second.number(), .events = POLLIN, .revents = 0}};
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    const int ready =
        poll(fds.data(), fds.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) fail<Error>("contender: poll: {}", std::strerror(errno));
    return {fds[0].revents != 0, fds[1].revents != 0};
  }
}

/// Appends what is there to `into`. At the end of the stream it closes `from`.
void read_some(Descriptor& from, std::string& into) {
  std::array<char, 65536> bytes;
  const ssize_t count = read(from.number(), bytes.data(), bytes.size());
  if (count < 0 && errno == EINTR) return;
  if (count > 0) into.append(bytes.data(), static_cast<std::size_t>(count));
  if (count <= 0) from.close();
}

/// The last line that is not blank; empty if there is none.
std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string::npos) return {};
  const std::size_t begin = text.find_last_of("\r\n", end);
  return text.substr(begin + 1, end - begin);
}

}  // namespace

Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    number_ = std::exchange(other.number_, -1);
  }
  return *this;
}

void Descriptor::close() {
  if (number_ >= 0) ::close(number_);
  number_ = -1;
}

ChildProcess::ChildProcess(const std::string& command,
                           const std::vector<std::string>& environment) {
  Ends in = make_socket();
  Ends out = make_pipe();
  Ends err = make_pipe();
  pid_ = spawn(command, environment, {&in.theirs, &out.theirs, &err.theirs});
  in_ = std::move(in.ours);
  out_ = std::move(out.ours);
  err_ = std::move(err.ours);
}

ChildProcess::~ChildProcess() {
  end(kGrace);
}

void ChildProcess::write_line(std::string_view line) {
  const std::string text = std::string(line) + '\n';
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t count = send(in_.number(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;
    sent += static_cast<std::size_t>(count);
  }
}

std::string ChildProcess::read_line(double deadline_s) {
  // The deadline is that of the whole line, however many pieces it comes in.
  const auto deadline =
      Clock::now() + std::chrono::ceil<Clock::duration>(std::chrono::duration<double>(deadline_s));
  std::size_t end = unread_.find('\n');
  while (end == std::string::npos) {
    if (out_.number() < 0) fail<Error>("{}", last_words());
    const auto [answered, complained] = wait_for(out_, err_, deadline);
    // A process that never stops writing has a deadline too.
    if ((!answered && !complained) || Clock::now() >= deadline) {
      fail<Error>("no answer within {:g} s", deadline_s);
    }
    if (complained) read_complaints();
    if (answered) read_some(out_, unread_);
    end = unread_.find('\n');
  }
  std::string line = unread_.substr(0, end);
  unread_.erase(0, end + 1);
  return line;
}

/// Reads from standard error, and keeps the end of it.
void ChildProcess::read_complaints() {
  read_some(err_, complaints_);
  if (complaints_.size() > kMostComplaints) {
    complaints_.erase(0, complaints_.size() - kMostComplaints);
  }
}

/// The reason for the end of standard output. Standard error may still be open, held by a process
/// that the command started, so its end is not waited for long.
std::string ChildProcess::last_words() {
  const auto deadline = Clock::now() + kLastWords;
  const Descriptor none;
  while (err_.number() >= 0 && Clock::now() < deadline && wait_for(none, err_, deadline)[1]) {
    read_complaints();
  }
  const std::string last = last_line(complaints_);
  return last.empty() ? "it ended without an answer" : last;
}

void ChildProcess::end(milliseconds grace) {
  if (pid_ < 0) return;
  // A well-behaved process ends at the end of its input.
  in_.close();
  const auto deadline = Clock::now() + grace;
  while (!has_ended(pid_) && Clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(2));
  }
  // The group is killed before its leader is reaped: until then no other group has its number.
  kill(-pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

}  // namespace armillary::bench

// Both outputs are read together, or a child that writes much to standard error would wait for a
// reader forever.
#include "armillary/lab/bench/line_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <thread>

#include "armillary/core/error.h"

namespace armillary::bench {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kGrace(5000);      ///< For a process to end by itself.
constexpr milliseconds kLastWords(1000);  ///< For the end of standard error.
constexpr std::size_t kMostComplaints = 4096;

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
  std::array<pollfd, 2> fds{pollfd{.fd = first.get(), .events = POLLIN, .revents = 0},
                            pollfd{.fd = second.get(), .events = POLLIN, .revents = 0}};
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    const int ready =
        poll(fds.data(), fds.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) fail<Error>("contender: poll: {}", std::strerror(errno));
    return {fds[0].revents != 0, fds[1].revents != 0};
  }
}

/// The last line that is not blank; empty if there is none.
std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string::npos) return {};
  const std::size_t begin = text.find_last_of("\r\n", end);
  return text.substr(begin + 1, end - begin);
}

}  // namespace

LineProcess::LineProcess(const std::string& command, const std::vector<std::string>& environment)
    : child_(start_child({.label = "contender",
                          .words = {"/bin/sh", "-c", command},
                          .environment = environment,
                          .is_fed = true,
                          .orphan_signal = 0,
                          .where = "contender"})) {}

LineProcess::~LineProcess() {
  end(kGrace);
}

void LineProcess::write_line(std::string_view line) {
  const std::string text = std::string(line) + '\n';
  for (std::size_t position = 0; position < text.size();) {
    const ssize_t count =
        send(child_.in.get(), text.data() + position, text.size() - position, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;
    position += static_cast<std::size_t>(count);
  }
}

std::string LineProcess::read_line(double deadline_s) {
  // The deadline is that of the whole line, however many pieces it comes in.
  const auto deadline =
      Clock::now() + std::chrono::ceil<Clock::duration>(std::chrono::duration<double>(deadline_s));
  std::size_t end = unread_.find('\n');
  while (end == std::string::npos) {
    if (child_.out.get() < 0) fail<Error>("{}", last_words());
    const auto [answered, complained] = wait_for(child_.out, child_.err, deadline);
    // A process that never stops writing has a deadline too.
    if ((!answered && !complained) || Clock::now() >= deadline) {
      fail<Error>("no answer within {:g} s", deadline_s);
    }
    if (complained) read_complaints();
    if (answered) read_some(child_.out, unread_);
    end = unread_.find('\n');
  }
  std::string line = unread_.substr(0, end);
  unread_.erase(0, end + 1);
  return line;
}

/// Reads from standard error, and keeps the end of it.
void LineProcess::read_complaints() {
  read_some(child_.err, complaints_);
  if (complaints_.size() > kMostComplaints) {
    complaints_.erase(0, complaints_.size() - kMostComplaints);
  }
}

/// The reason for the end of standard output. Standard error may still be open, held by a process
/// that the command started, so its end is not waited for long.
std::string LineProcess::last_words() {
  const auto deadline = Clock::now() + kLastWords;
  const Descriptor none;
  while (child_.err.get() >= 0 && Clock::now() < deadline &&
         wait_for(none, child_.err, deadline)[1]) {
    read_complaints();
  }
  const std::string last = last_line(complaints_);
  return last.empty() ? "it ended without an answer" : last;
}

void LineProcess::end(milliseconds grace) {
  if (child_.pid < 0) return;
  // A well-behaved process ends at the end of its input.
  child_.in.close();
  const auto deadline = Clock::now() + grace;
  while (!has_ended(child_.pid) && Clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(2));
  }
  // The group is killed before its leader is reaped: until then no other group has its number.
  kill(-child_.pid, SIGKILL);
  while (waitpid(child_.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  child_.pid = -1;
}

}  // namespace armillary::bench

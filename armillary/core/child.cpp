// fork and exec. Everything that allocates happens before the fork. The child tells through a pipe
// that closes on exec why it could not start.
#include "armillary/core/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "armillary/core/error.h"

namespace armillary {
namespace {

struct Pipe {
  Descriptor read;
  Descriptor write;
};

Pipe make_pipe(const ChildCommand& command) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    fail<Error>("{}: pipe: {}", command.where, std::strerror(errno));
  }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// Standard input of a program that is fed; nothing for others.
Pipe make_input(const ChildCommand& command) {
  if (!command.is_fed) return {};
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    fail<Error>("{}: socketpair: {}", command.where, std::strerror(errno));
  }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// The environment of the program, as "NAME=value".
std::vector<std::string> environment_of(const ChildCommand& command) {
  const auto& variables = command.variables;
  std::vector<std::string> all = command.environment;
  if (all.empty()) {
    for (char** entry = environ; *entry != nullptr; ++entry) all.emplace_back(*entry);
  }
  std::erase_if(all, [&](const std::string& text) {
    const std::string_view name = std::string_view(text).substr(0, text.find('='));
    return std::ranges::any_of(variables, [&](const auto& one) { return one.first == name; });
  });
  for (const auto& [name, value] : variables) all.push_back(fmt::format("{}={}", name, value));
  return all;
}

/// Pointers to the texts, and a null pointer behind them, as exec takes them.
std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Blocks all signals while it lives, so that none is handled between fork and exec.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_ = {};
};

void default_signals() {
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace

Child start_child(const ChildCommand& command) {
  std::vector<std::string> words = command.words;
  std::vector<std::string> variables = environment_of(command);
  const std::vector<char*> arguments = pointers_to(words);
  const std::vector<char*> environment = pointers_to(variables);
  Pipe in = make_input(command);
  Pipe out = make_pipe(command);
  Pipe err = make_pipe(command);
  Pipe failure = make_pipe(command);
  const pid_t parent = getpid();

  pid_t pid = -1;
  {
    const SignalsBlocked blocked;
    pid = fork();
    if (pid == 0) {
      // Only functions that are safe after a fork from here on.
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, command.orphan_signal);
      if (getppid() != parent) _exit(1);  // It died before the line above.
      if (command.is_fed) {
        dup2(in.read.get(), STDIN_FILENO);
      } else if (!command.takes_input) {
        dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
      }
      dup2(out.write.get(), STDOUT_FILENO);
      dup2(err.write.get(), STDERR_FILENO);
      if (command.inherits >= 0) fcntl(command.inherits, F_SETFD, 0);
      default_signals();
      execvpe(arguments[0], arguments.data(), environment.data());
      const int reason = errno;
      [[maybe_unused]] const auto told = write(failure.write.get(), &reason, sizeof reason);
      _exit(127);
    }
  }
  if (pid < 0) fail<Error>("{}: fork: {}", command.where, std::strerror(errno));
  setpgid(pid, pid);  // Whoever of both is first: a signal may be sent at once.

  failure.write.close();
  int reason = 0;
  if (read(failure.read.get(), &reason, sizeof reason) > 0) {
    waitpid(pid, nullptr, 0);
    fail<Error>("{}: {} cannot be started: {}", command.where, command.words[0],
                std::strerror(reason));
  }
  // Many children are read in one loop, so no read may wait for one of them.
  for (const Pipe* pipe : {&out, &err}) fcntl(pipe->read.get(), F_SETFL, O_NONBLOCK);
  return {pid, std::move(out.read), std::move(err.read), std::move(in.write)};
}

bool read_some(Descriptor& from, std::string& into) {
  std::array<char, 1 << 16> bytes;
  ssize_t count = -1;
  do {
    if (!from.open()) return false;
    count = read(from.get(), bytes.data(), bytes.size());
  } while (count < 0 && errno == EINTR);
  if (count > 0) into.append(bytes.data(), static_cast<std::size_t>(count));
  // An error that is not "nothing more for now" is an end too.
  if (count == 0 || (count < 0 && errno != EAGAIN)) from.close();
  return count > 0;
}

}  // namespace armillary

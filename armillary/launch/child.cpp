// fork and exec. Everything that allocates happens before the fork. The child tells through a pipe
// that closes on exec why it could not start.
#include "armillary/launch/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "armillary/core/error.h"
#include "armillary/launch/process_place.h"

namespace armillary::launch {
namespace {

struct Pipe {
  Descriptor read;
  Descriptor write;
};

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail<Error>("launch: pipe: {}", std::strerror(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// The environment of the program, as "NAME=value".
std::vector<std::string> environment_of(const Command& command) {
  const auto& variables = command.variables;
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    bool replaced = !command.is_placed && is_place_variable(name);
    for (const auto& [other, value] : variables) replaced |= name == other;
    if (!replaced) all.emplace_back(text);
  }
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
    sigprocmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_ = {};
};

void default_signals() {
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace

Descriptor::~Descriptor() {
  close();
}

void Descriptor::close() {
  if (number_ >= 0) ::close(std::exchange(number_, -1));
}

Child start(const Command& command) {
  std::vector<std::string> words = command.words;
  std::vector<std::string> variables = environment_of(command);
  const std::vector<char*> arguments = pointers_to(words);
  const std::vector<char*> environment = pointers_to(variables);
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  Pipe failure = make_pipe();
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
      const int in = command.takes_input ? STDIN_FILENO : open("/dev/null", O_RDONLY);
      dup2(in, STDIN_FILENO);
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
  if (pid < 0) fail<Error>("launch: fork: {}", std::strerror(errno));
  setpgid(pid, pid);  // Whoever of both is first: a signal may be sent at once.

  failure.write.close();
  int reason = 0;
  if (read(failure.read.get(), &reason, sizeof reason) > 0) {
    fail<Error>("launch: {} cannot be started: {}", command.words[0], std::strerror(reason));
  }
  for (const Pipe* pipe : {&out, &err}) fcntl(pipe->read.get(), F_SETFL, O_NONBLOCK);
  return {pid, std::move(out.read), std::move(err.read)};
}

}  // namespace armillary::launch

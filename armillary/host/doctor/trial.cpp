// The ranks are not threads or forks of this process: libraries of MPI and Gloo can be started once
// in a process, and an engine may end it.
#include "armillary/host/doctor/trial.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "armillary/core/child.h"
#include "armillary/core/error.h"
#include "armillary/host/launch/process_place.h"

namespace armillary::doctor {
namespace {

using Clock = std::chrono::steady_clock;

/// Seconds that a launcher has to end its ranks before it is killed.
constexpr double kGrace = 3;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The last line that is not blank; programs put their reason there.
std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string::npos) return "";
  const std::size_t begin = text.find_last_of("\r\n", end) + 1;
  return text.substr(begin, end - begin + 1);
}

/// A program with its output so far.
class RunningTrial {
 public:
  explicit RunningTrial(Child child) : child_(std::move(child)) {}
  RunningTrial(const RunningTrial&) = delete;
  RunningTrial& operator=(const RunningTrial&) = delete;
  ~RunningTrial() {
    if (!status_) end(SIGKILL);
  }

  /// Reads for a moment. Returns the exit code when the program has ended, 128 + signal likewise.
  std::optional<int> look() {
    std::array<pollfd, 2> sources{pollfd{child_.out.get(), POLLIN, 0},
                                  pollfd{child_.err.get(), POLLIN, 0}};
    poll(sources.data(), sources.size(), 20);
    int status = 0;
    const bool ended = waitpid(child_.pid, &status, WNOHANG) == child_.pid;
    read_all(child_.out, output);
    read_all(child_.err, errors);
    if (!ended) return {};
    ::kill(-child_.pid, SIGKILL);  // whatever it has left behind
    status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return status_;
  }

  /// Asks a launcher twice, which then ends its ranks at once.
  void ask_to_end() const {
    for (int i = 0; i < 2; ++i) ::kill(child_.pid, SIGTERM);
  }

  std::string output;
  std::string errors;

 private:
  void end(int signal) {
    ::kill(-child_.pid, signal);
    waitpid(child_.pid, nullptr, 0);
  }
  static void read_all(Descriptor& from, std::string& into) {
    while (read_some(from, into)) {
    }
  }

  Child child_;
  std::optional<int> status_;
};

}  // namespace

std::vector<std::string> trial_command(const std::string& program, const std::string& engine) {
  std::vector<std::string> words{program};
  if (engine != "threads") {
    for (const char* word : {"launch", "-n", "2", "--engine"}) words.emplace_back(word);
    words.push_back(engine);
    for (const char* word : {"--no-prefix", "--"}) words.emplace_back(word);
  }
  for (const char* word :
       {"bench", "layer", "--world", "2", "--tokens", "128", "--heads", "2", "--head-dim", "16",
        "--strategy", "ring", "--no-kernels", "--seconds", "0", "--json"}) {
    words.emplace_back(word);
  }
  return words;
}

Trial parse_trial(int exit_code, const std::string& output, const std::string& errors) {
  Trial test;
  if (exit_code != 0) {
    const std::string last = last_line(errors);
    test.reason = last.empty() ? fmt::format("exit code {}", exit_code) : last;
    return test;
  }
  int lines = 0;  // one for each pass
  std::istringstream stream(output);
  for (std::string line; std::getline(stream, line);) {
    const auto row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object() || !row.contains("max_error")) continue;
    ++lines;
    test.max_error = std::max(test.max_error, row["max_error"].get<double>());
  }
  test.works = lines > 0;
  if (!test.works) test.reason = "it printed no result";
  return test;
}

Trial run_trial(const std::vector<std::string>& command, double limit_s) {
  const Clock::time_point begin = Clock::now();
  RunningTrial running(start_child(
      {.label = "trial", .words = command, .environment = launch::environment_without_place()}));
  // At the limit a launcher is asked to end its ranks; whatever is left soon after is killed.
  std::optional<int> code;
  bool late = false;
  while (!(code = running.look())) {
    if (!late && seconds_since(begin) > limit_s) {
      late = true;
      running.ask_to_end();
    }
    if (seconds_since(begin) > limit_s + kGrace) break;
  }
  Trial test = late ? Trial{.reason = fmt::format("not done after {:g} s; {}", limit_s,
                                                  last_line(running.errors))}
                    : parse_trial(*code, running.output, running.errors);
  test.seconds = seconds_since(begin);
  return test;
}

}  // namespace armillary::doctor

// One loop over poll(): output of the programs, and signals through a descriptor (signalfd), among
// them SIGCHLD. Times are deadlines of the loop: a program is asked, then ended, then killed.
#include "armillary/host/launch/supervisor.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/process_stat.h"
#include "armillary/host/launch/launch_folder.h"
#include "armillary/host/launch/line_forwarder.h"

namespace armillary::launch {
namespace {

using Clock = std::chrono::steady_clock;

/// Seconds from ending a program to killing what is left of it, and from the end of the last
/// program to giving up on output that a process it left behind may still hold.
constexpr std::chrono::seconds kGrace(1);

/// Time between two looks at deadlines, and at programs that are stopped.
constexpr std::chrono::milliseconds kInterval(100);

/// Time that the program to blame for a failure has beyond that of the others.
constexpr std::chrono::milliseconds kHold(500);

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// Signals as a descriptor, while it lives. They have no other effect on this process.
class SignalQueue {
 public:
  explicit SignalQueue(const SuperviseOptions& options) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    for (const int signal : options.stop_signals) sigaddset(&signals, signal);
    for (const int signal : options.end_signals) sigaddset(&signals, signal);
    sigprocmask(SIG_BLOCK, &signals, &before_);
    pipe_action_ = ::signal(SIGPIPE, SIG_IGN);  // A closed output is an error of write().
    descriptor_ = Descriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  ~SignalQueue() {
    // Signals that are still there have been answered: the programs have ended.
    while (next() != 0) {
    }
    ::signal(SIGPIPE, pipe_action_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }

  int descriptor() const { return descriptor_.get(); }
  /// The next signal, or 0.
  int next() {
    signalfd_siginfo info;
    const ssize_t size = read(descriptor_.get(), &info, sizeof info);
    return size == static_cast<ssize_t>(sizeof info) ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t before_ = {};
  void (*pipe_action_)(int) = SIG_DFL;
  Descriptor descriptor_;
};

/// A descriptor that says something by becoming readable. It is heard once.
class Line {
 public:
  explicit Line(int descriptor) : descriptor_(descriptor) {}
  /// -1 once it was heard, or if there is none.
  int descriptor() const { return descriptor_; }
  bool is_said() {
    pollfd line{descriptor_, POLLIN, 0};
    if (descriptor_ < 0 || poll(&line, 1, 0) <= 0) return false;
    descriptor_ = -1;
    return (line.revents & POLLIN) != 0;
  }

 private:
  int descriptor_;
};

/// A program that runs, or has ended.
struct RunningProgram {
  Child child;
  LineForwarder out;
  LineForwarder err;
  std::string label;
  bool ended = false;
};

/// The loop, and all it knows: the programs, the first that failed, and the deadlines that follow.
class Supervisor {
 public:
  Supervisor(std::span<const ChildCommand> commands, const SuperviseOptions& options)
      : options_(options), signals_(options) {
    try {
      for (const ChildCommand& command : commands) {
        const std::string prefix = options.prefix ? fmt::format("[{}] ", command.label) : "";
        programs_.push_back({start_child(command), LineForwarder(prefix, STDOUT_FILENO),
                             LineForwarder(prefix, STDERR_FILENO), command.label});
      }
    } catch (...) {  // A program that cannot start ends those that were started before it.
      kill_all();
      throw;
    }
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  /// Kills what is left, if an exception ended run().
  ~Supervisor() { kill_all(); }

  std::vector<Ending> run() {
    while (!over()) {
      wait_for_news();
      for (RunningProgram& program : programs_) {
        forward(program.child.out, program.out);
        forward(program.child.err, program.err);
      }
      for (int signal = signals_.next(); signal != 0; signal = signals_.next()) answer(signal);
      if (stop_line_.is_said()) ask();
      if (end_line_.is_said()) end_by(SIGTERM);
      read_endings();
      reap();
      end_stopped();
      if (refusals_end_ && (Clock::now() >= *refusals_end_ || only_stopped_left())) end_others();
      if (end_at_ && (Clock::now() >= *end_at_ || only_stopped_left()) && !waits_for_culprit()) {
        end_all();
      }
      if (kill_at_ && Clock::now() >= *kill_at_) kill_groups();
    }
    // Last lines, which may lack their newline.
    for (RunningProgram& program : programs_) {
      program.out.finish();
      program.err.finish();
    }
    std::stable_partition(failures_.begin(), failures_.end(),
                          [](const Ending& one) { return !one.suspended; });
    return failures_;
  }

 private:
  bool all_ended() const {
    return std::all_of(programs_.begin(), programs_.end(),
                       [](const RunningProgram& program) { return program.ended; });
  }

  /// Whether all programs that have not ended are stopped: they will not use their time to say
  /// more.
  bool only_stopped_left() const {
    return std::all_of(programs_.begin(), programs_.end(), [](const RunningProgram& program) {
      return program.ended || stat_of_process(program.child.pid).stopped();
    });
  }

  /// Whether the program to blame for the first failure has still to end. Its peers may have ended
  /// before it, but its exit code is that of the run.
  bool waits_for_culprit() {
    if (!options_.blame || kill_at_ || failures_.empty() || failures_[0].by_request) return false;
    if (Clock::now() >= *end_at_ + kHold) return false;
    if (!culprit_) culprit_ = options_.blame(failures_[0]);
    return !culprit_->empty() && std::ranges::none_of(failures_, [&](const Ending& ending) {
      return ending.label == *culprit_;
    });
  }

  /// Whether all programs have ended and all output was forwarded, or nobody waits for it any more.
  bool over() const {
    if (!all_ended()) return false;
    const bool closed =
        std::all_of(programs_.begin(), programs_.end(), [](const RunningProgram& program) {
          return !program.child.out.open() && !program.child.err.open();
        });
    return closed || (last_end_ && Clock::now() >= *last_end_ + kGrace);
  }

  /// Returns when there is output or a signal, or a deadline has come.
  void wait_for_news() {
    std::vector<pollfd> sources{{signals_.descriptor(), POLLIN, 0}};
    if (options_.endings >= 0) sources.push_back({options_.endings, POLLIN, 0});
    for (const Line* line : {&stop_line_, &end_line_}) {
      if (line->descriptor() >= 0) sources.push_back({line->descriptor(), POLLIN, 0});
    }
    for (const RunningProgram& program : programs_) {
      for (const Descriptor* stream : {&program.child.out, &program.child.err}) {
        if (stream->open()) sources.push_back({stream->get(), POLLIN, 0});
      }
    }
    // kInterval bounds how late a deadline is seen. A program that is stopped sends SIGCHLD.
    const bool has_deadline = end_at_ || kill_at_ || last_end_ || refusals_end_ || are_suspended();
    const int wait_ms = has_deadline ? static_cast<int>(kInterval.count()) : -1;
    if (poll(sources.data(), sources.size(), wait_ms) < 0 && errno != EINTR) {
      fail<Error>("launch: poll: {}", std::strerror(errno));
    }
  }

  /// Forwards all output that is there. A stream that has ended is closed, with its last line.
  static void forward(Descriptor& from, LineForwarder& to) {
    std::array<char, 1 << 16> buffer;
    while (from.open()) {
      const ssize_t size = read(from.get(), buffer.data(), buffer.size());
      if (size > 0) {
        to.take({buffer.data(), static_cast<std::size_t>(size)});
      } else if (size == 0) {
        to.finish();
        from.close();
      } else if (errno != EINTR) {
        return;  // Nothing more for now.
      }
    }
  }

  /// A first stop signal asks the programs to stop; a second one, or an end signal, ends them.
  void answer(int signal) {
    const auto is_in = [&](const std::vector<int>& signals) {
      return std::find(signals.begin(), signals.end(), signal) != signals.end();
    };
    if (is_in(options_.end_signals)) {
      end_by(signal);
    } else if (is_in(options_.stop_signals) && asked_) {
      note_signal(signal);
      end_all();
    } else if (is_in(options_.stop_signals)) {
      ask();
    }
  }

  /// Ends the programs as an end signal does.
  void end_by(int signal) {
    note_signal(signal);
    options_.end_signals_grace_s > 0 ? end_within(options_.end_signals_grace_s) : end_all();
  }

  void note_signal(int signal) {
    failures_.push_back({.label = "launch",
                         .pid = getpid(),
                         .code = 128 + signal,
                         .signal = signal,
                         .by_request = true});
  }

  void ask() {
    asked_ = true;
    options_.ask ? options_.ask() : signal_all(options_.ask_signal);
    if (refusals_end_) end_others();  // a stop does not wait for what others refuse
  }

  /// Notes the ends of programs that others have started (launch_folder.h).
  void read_endings() {
    std::array<char, 4096> buffer;
    while (options_.endings >= 0) {
      const ssize_t size = read(options_.endings, buffer.data(), buffer.size());
      if (size <= 0) break;
      ending_lines_.append(buffer.data(), static_cast<std::size_t>(size));
    }
    for (std::size_t end = 0; (end = ending_lines_.find('\n')) != std::string::npos;) {
      if (const auto ending = parse_ending(ending_lines_.substr(0, end))) {
        ++told_endings_;
        note(*ending);
      }
      ending_lines_.erase(0, end + 1);
    }
  }

  /// Notes the programs that have ended.
  void reap() {
    for (RunningProgram& program : programs_) {
      siginfo_t info = {};
      const bool over = !program.ended &&
                        waitid(P_PID, static_cast<id_t>(program.child.pid), &info,
                               WEXITED | WNOHANG | WNOWAIT) == 0 &&
                        info.si_pid == program.child.pid;
      if (!over) continue;
      // Processes that it has left behind must not outlive it. They are killed before waitpid(),
      // after which the number of its group may be reused.
      ::kill(-program.child.pid, SIGKILL);
      int status = 0;
      waitpid(program.child.pid, &status, 0);
      program.ended = true;
      read_endings();  // A program that others have started ended before the one that waits for it.
      note({.label = program.label,
            .pid = program.child.pid,
            .code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status),
            .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0});
    }
    if (all_ended() && !last_end_) last_end_ = Clock::now();
  }

  /// Keeps failures: the first is the cause of the others, which get their grace. A program that
  /// was ended from here has not failed by itself.
  void note(Ending ending) {
    if (ending.code == 0 || (kill_at_ && ending.signal != 0 && !ending.suspended)) return;
    ending.stopped |= asked_ && !options_.ask && ending.signal == options_.ask_signal;
    const bool refuses = ending.signal == 0 && ending.code == options_.refusal_code;
    is_untold_ |= failures_.empty();
    failures_.push_back(std::move(ending));
    const bool all_told = options_.told_programs > 0 && told_endings_ >= options_.told_programs;
    if (!refuses || all_told) return end_others();
    if (!end_at_ && !refusals_end_) refusals_end_ = Clock::now() + duration_of(options_.refusal_s);
  }

  /// Gives the others their grace; those that others have started hear of it.
  void end_others() {
    refusals_end_.reset();
    if (std::exchange(is_untold_, false) && options_.on_failure) options_.on_failure();
    end_within(options_.grace_s);
  }

  /// Whether all programs that have not ended are stopped by a signal, not by a debugger.
  bool are_suspended() const {
    return options_.stopped_s > 0 && !all_ended() &&
           std::ranges::all_of(programs_, [](const RunningProgram& program) {
             return program.ended || stat_of_process(program.child.pid).state == 'T';
           });
  }

  /// Ends programs that were all stopped for too long: nobody waits for them with a deadline. Time
  /// in which this process was stopped too does not count.
  void end_stopped() {
    const Clock::time_point now = Clock::now();
    const Clock::duration passed = std::min<Clock::duration>(now - looked_at_, 2 * kInterval);
    looked_at_ = now;
    stopped_for_ = are_suspended() ? stopped_for_ + passed : Clock::duration(0);
    if (stopped_for_ > std::chrono::duration<double>(options_.stopped_s)) end_all();
  }

  /// Notes the programs that are stopped: the others may have waited for them.
  void note_suspended() {
    for (const RunningProgram& program : programs_) {
      if (program.ended || !stat_of_process(program.child.pid).stopped()) continue;
      failures_.push_back({.label = program.label,
                           .pid = program.child.pid,
                           .code = 128 + SIGSTOP,
                           .signal = SIGSTOP,
                           .suspended = true});
    }
  }

  void end_within(double seconds) {
    if (!end_at_) end_at_ = Clock::now() + duration_of(seconds);
  }

  /// Ends all programs; what is still there after kGrace is killed.
  void end_all() {
    if (kill_at_) return;
    note_suspended();
    signal_all(options_.end_signal);
    kill_at_ = Clock::now() + kGrace;
  }

  /// Signals the programs alone, not the processes that they have started.
  void signal_all(int signal) {
    for (const RunningProgram& program : programs_) {
      if (!program.ended) ::kill(program.child.pid, signal);
    }
  }

  /// Kills the programs and everything in their process groups.
  void kill_groups() {
    for (const RunningProgram& program : programs_) {
      if (!program.ended) ::kill(-program.child.pid, SIGKILL);
    }
  }

  /// Kills and waits, so that no zombie is left.
  void kill_all() {
    kill_groups();
    for (RunningProgram& program : programs_) {
      if (!program.ended) waitpid(program.child.pid, nullptr, 0);
      program.ended = true;
    }
  }

  const SuperviseOptions& options_;
  SignalQueue signals_;
  std::vector<RunningProgram> programs_;
  std::vector<Ending> failures_;        ///< In the order in which they came.
  std::optional<std::string> culprit_;  ///< Label that options_.blame told.
  std::string ending_lines_;            ///< Lines of endings that have come so far.
  int told_endings_ = 0;
  bool is_untold_ = false;  ///< on_failure is still to be called.
  bool asked_ = false;      ///< All were asked to stop.
  Line stop_line_{options_.stop_line};
  Line end_line_{options_.end_line};
  std::optional<Clock::time_point> refusals_end_;  ///< After it the others get their grace.
  std::optional<Clock::time_point> end_at_;        ///< The others are ended then.
  std::optional<Clock::time_point> kill_at_;       ///< Whatever is left is killed then.
  std::optional<Clock::time_point> last_end_;
  Clock::time_point looked_at_ = Clock::now();
  Clock::duration stopped_for_{0};  ///< All programs were stopped for so long.
};

}  // namespace

std::string describe(const Ending& ending) {
  const std::string who =
      fmt::format("{} (host {}, pid {})", ending.label, ending.host, ending.pid);
  if (ending.suspended) return who + " was stopped (SIGSTOP, or a debugger)";
  if (ending.signal == 0) return fmt::format("{} exited with {}", who, ending.code);
  return fmt::format("{} was ended by signal {} ({})", who, ending.signal,
                     strsignal(ending.signal));
}

std::vector<Ending> supervise(std::span<const ChildCommand> commands,
                              const SuperviseOptions& options) {
  return Supervisor(commands, options).run();
}

}  // namespace armillary::launch

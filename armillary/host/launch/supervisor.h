// supervisor.h: runs programs that belong together until all have ended. If one fails, all end.
//
//   start --> forward output, line by line --> all ended
//                 | one fails: the others have grace_s to end by themselves, then are ended
//                 | one refuses its input: they have refusal_s first, to refuse it too
//                 | signal: asks all to stop; a second one ends them at once
//
// Nothing is left: each program is in a process group of its own, which is killed as a whole, and
// the kernel ends it if this process dies.
#pragma once

#include <signal.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "armillary/core/child.h"
#include "armillary/core/process_stat.h"

namespace armillary::launch {

/// How a program ended.
struct Ending {
  std::string label;
  std::string host = this_host();
  pid_t pid = -1;
  int code = 0;             ///< Exit code; 128 + signal if a signal ended it, as shells have it.
  int signal = 0;           ///< 0 if it exited by itself.
  bool by_request = false;  ///< A signal to this process ended all programs.
  /// It was asked to stop, and `signal` ended it before it could answer: that is no failure.
  bool stopped = false;
  /// It did not run when the others were ended, by SIGSTOP or in a debugger; so it has not failed.
  bool suspended = false;
};

struct SuperviseOptions {
  bool prefix = true;  ///< Each line of output begins with "[label] ".
  /// Seconds that the others have after a failure, to say what they know of it; those that are
  /// stopped have none.
  double grace_s = 0.5;
  /// Exit code of a program that refuses what all were given; 0: none. The others then have so many
  /// seconds before those of a failure: on a busy machine they may still be starting.
  int refusal_code = 0;
  double refusal_s = 10;
  /// Seconds after which programs are ended that are all stopped by a signal (SIGSTOP): the text
  /// says so. Debuggers have no such limit. 0: programs that others wait for, with deadlines.
  double stopped_s = 60;
  /// Signals that ask all programs to stop; a second one ends them at once.
  std::vector<int> stop_signals = {SIGINT, SIGTERM};
  /// Signals that end all programs: at once, or after as many seconds.
  std::vector<int> end_signals = {};
  double end_signals_grace_s = 0;
  int ask_signal = SIGTERM;  ///< Sent to ask a program to stop.
  /// Asks the programs instead of `ask_signal`, if they hear of it in another way.
  std::function<void()> ask = {};
  /// A descriptor that becomes readable when the programs are to stop, as by a stop signal; or -1.
  int stop_line = -1;
  /// A descriptor that becomes readable when the programs are to end, as by an end signal; or -1.
  int end_line = -1;
  /// Sent to end a program at once. Whatever is left of it a second later is killed.
  int end_signal = SIGKILL;
  /// The label of the program that is to blame for a failure and about to end, or nothing. Its
  /// ending is waited for, half a second longer than for those of the others.
  std::function<std::string(const Ending& failed)> blame = {};
  /// Called when a failure has begun to end the others, for programs that others have started.
  std::function<void()> on_failure = {};
  /// Endings of programs that others have started, as lines (launch_folder.h); or -1.
  int endings = -1;
  int told_programs = 0;  ///< Number of those: none is waited for when all have told their endings.
};

/// "rank 2 (host node7, pid 4242) was ended by signal 9 (Killed)", "rank 0 (host node7, pid 4240)
/// exited with 3", "rank 1 (host node7, pid 4241) was stopped (SIGSTOP, or a debugger)".
std::string describe(const Ending& ending);

/// Runs the programs and returns when all have ended. Returns those that failed by themselves, the
/// first of them first, then those that were suspended, or nothing if all exited with 0. If a
/// signal ends all at once, "launch" is among them, with the signal. Requires a process without
/// other threads.
/// @throws Error if a program cannot be started or output cannot be written; none is left then.
std::vector<Ending> supervise(std::span<const ChildCommand> commands,
                              const SuperviseOptions& options = {});

}  // namespace armillary::launch

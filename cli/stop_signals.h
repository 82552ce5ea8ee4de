// stop_signals.h: SIGTERM and SIGINT as a question that a run asks in each step.
#pragma once

#include <memory>
#include <string>

namespace armillary::cli {

/// Lets SIGTERM and SIGINT wait until there is a StopSignals, also in the program that replaces
/// this one: a signal that comes while it loads is not lost and does not end it.
void hold_stop_signals();
/// Lets them come again, those that were held at once: each ends the process with this exit code.
void end_at_stop_signals(int code);

/// While it lives, the first SIGTERM or SIGINT is only noted, and the second ends the process at
/// once, with exit code 143 or 130. One per process: handlers of signals belong to the process.
class StopSignals {
 public:
  StopSignals();  ///< Signals that were held come now.
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();  ///< Puts back the handlers that were there.

  /// Whether a signal has come. Threads: any.
  static bool stop_requested();
  /// "SIGTERM" or "SIGINT"; "another rank" if none has come here.
  static std::string name();

 private:
  struct Handlers;
  std::unique_ptr<Handlers> before_;
};

}  // namespace armillary::cli

// stop_signals.cpp: the first signal is noted in an atomic, the only thing that a handler may touch
// here; the handlers that were there are put back at the end.
#include "cli/stop_signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace armillary::cli {
namespace {

/// The signal that has come, or 0. A handler knows nothing but what is static.
std::atomic<int> first_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) {
  int none = 0;
  // 128 + signal is how shells report a process that a signal has ended.
  if (!first_signal.compare_exchange_strong(none, signal)) _exit(128 + signal);
}

std::atomic<int> code_of_end{0};

void end(int /*signal*/) {
  _exit(code_of_end);
}

void mask_stop_signals(int how) {
  sigset_t stops;
  sigemptyset(&stops);
  sigaddset(&stops, SIGTERM);
  sigaddset(&stops, SIGINT);
  sigprocmask(how, &stops, nullptr);
}

}  // namespace

void hold_stop_signals() {
  mask_stop_signals(SIG_BLOCK);
}

void end_at_stop_signals(int code) {
  code_of_end = code;
  struct sigaction action = {};
  action.sa_handler = end;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  mask_stop_signals(SIG_UNBLOCK);
}

struct StopSignals::Handlers {
  struct sigaction term = {};
  struct sigaction interrupt = {};
};

StopSignals::StopSignals() : before_(std::make_unique<Handlers>()) {
  first_signal = 0;
  struct sigaction action = {};
  action.sa_handler = note;
  // Reads and waits of libraries go on: few of them expect EINTR.
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, &before_->term);
  sigaction(SIGINT, &action, &before_->interrupt);
  // Only now: a signal that was held comes at once and must find its handler.
  mask_stop_signals(SIG_UNBLOCK);
}

StopSignals::~StopSignals() {
  sigaction(SIGTERM, &before_->term, nullptr);
  sigaction(SIGINT, &before_->interrupt, nullptr);
}

bool StopSignals::stop_requested() {
  return first_signal != 0;
}

std::string StopSignals::name() {
  if (first_signal == 0) return "another rank";
  return first_signal == SIGTERM ? "SIGTERM" : "SIGINT";
}

}  // namespace armillary::cli

// ranks.h: ranks as threads that stay from one round to the next, as a trainer's stay from step to
// step: what a rank keeps for itself is warm when it is timed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "armillary/comm/communicator.h"

namespace armillary::bench {

/// How often to do a work in one turn.
struct Repeats {
  int untimed = 0;  ///< First, so often.
  int timed = 1;    ///< At least 1.
};

/// For what takes `seconds`: once untimed, then so often that clocks and barriers do not show, so
/// rarely that many turns pass between two switches of the system.
Repeats repeats_for(double seconds);

/// A group of ranks with one computing thread each. One thread calls.
class Ranks {
 public:
  using Work = std::function<void(comm::Communicator&)>;

  /// @throws InvalidArgument if world < 1.
  explicit Ranks(int world);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Starts `work` on every rank. Requires that what was started before was waited for.
  void start(Work work, Repeats repeats = {});

  /// Seconds from when the first rank began the timed works, all being ready, to when all had done
  /// them, divided by their number. @throws what a rank threw; the group is of no use then.
  double wait();

  double run(Work work, Repeats repeats = {}) {
    start(std::move(work), repeats);
    return wait();
  }

 private:
  using Clock = std::chrono::steady_clock;
  void note_start(int work);
  void serve(comm::Communicator& comm);

  std::mutex mutex_;
  std::condition_variable changed_;
  Work work_;  ///< Empty: the ranks are to end.
  Repeats repeats_;
  int started_ = 0;          ///< How many works were given,
  int done_ = 0;             ///< and how many of them rank 0 has seen the end of.
  int begun_ = 0;            ///< How many of them a rank began,
  Clock::time_point begin_;  ///< and when the last.
  double seconds_ = 0;       ///< Of the last of them.
  bool over_ = false;        ///< No rank runs any more.
  std::exception_ptr error_;
  std::jthread group_;  ///< Last: it uses all of the above.
};

}  // namespace armillary::bench

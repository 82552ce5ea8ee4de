// ranks.h: ranks as threads that stay from one run to the next, as the ranks of a trainer stay from
// step to step. Memory, plans and proofs that a rank keeps are therefore warm when it is timed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "armillary/comm/communicator.h"

namespace armillary::bench {

/// How often a work is done in one run.
struct Repeats {
  int untimed = 0;  ///< First, before the clock starts.
  int timed = 1;    ///< At least 1.
};

/// Repeats of a work that takes `seconds`: one untimed, then enough for 2 ms, at most 1000. That is
/// long enough to hide clocks and barriers, and short enough for many runs between two switches of
/// threads by the system. repeats_for(0.001) is {1, 2}.
Repeats repeats_for(double seconds);

/// A group of ranks with one computing thread each. One thread calls.
class Ranks {
 public:
  /// A work is called on every rank at the same time, with the communicator of the rank. Several
  /// ranks call the same object.
  using Work = std::function<void(comm::Communicator&)>;

  /// Starts the ranks, which wait for work. @throws InvalidArgument if world < 1.
  explicit Ranks(int world);
  ~Ranks();  ///< Ends the ranks. Waits for a work that was started.
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Starts `work` on every rank and returns at once. Requires that earlier work was waited for.
  void start(Work work, Repeats repeats = {});

  /// Waits for the work that was started. Returns the seconds from the begin of the first timed
  /// work, when all ranks were ready, to the end of the last, over the number of timed repeats.
  /// @throws the exception of a rank; the group is of no use then.
  double wait();

  /// start() and wait() together.
  double run(Work work, Repeats repeats = {}) {
    start(std::move(work), repeats);
    return wait();
  }

 private:
  using Clock = std::chrono::steady_clock;
  /// Notes the begin of the timed part of a work, if no other rank has.
  void note_start(int work);
  /// The life of one rank: works, one after the other.
  void serve(comm::Communicator& comm);

  // Works are numbered from 1, in the order of start(). `mutex_` guards all that follows.
  std::mutex mutex_;
  std::condition_variable changed_;
  /// The current work; empty tells the ranks to end.
  Work work_;
  Repeats repeats_;
  /// Number of the last work that was given, that rank 0 has finished, and whose timed part a rank
  /// has begun.
  int started_ = 0;
  int done_ = 0;
  int begun_ = 0;
  /// Begin of that timed part, on the first rank that came to it.
  Clock::time_point begin_;
  double seconds_ = 0;  ///< Result of the last work that is done.
  bool over_ = false;   ///< True if no rank runs any more.
  std::exception_ptr error_;
  std::jthread group_;  ///< Last: it uses all of the above.
};

}  // namespace armillary::bench

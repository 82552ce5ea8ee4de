// thread_ranks.h: ranks as threads of this process.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "armillary/comm/communicator.h"
#include "armillary/lab/bench/ranks.h"

namespace armillary::bench {

/// Ranks that are threads. start() returns at once, so several groups can run side by side.
class ThreadRanks : public Ranks {
 public:
  /// Starts the ranks, which wait for work. @throws InvalidArgument if world < 1.
  explicit ThreadRanks(int world);
  ~ThreadRanks() override;

  void start(Work work, Repeats repeats) override;
  double wait() override;
  bool runs(int /*rank*/) const override { return true; }

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

/// Makes ThreadRanks.
std::unique_ptr<Ranks> make_thread_ranks(int world, int owner);

}  // namespace armillary::bench

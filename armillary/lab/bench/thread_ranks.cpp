// A thread of its own holds the group of ranks, whose threads wait for works in serve(). Works are
// numbered: a rank knows by the number that there is a new one, and so does the caller that it is
// done. All timed repeats lie between two barriers.
#include "armillary/lab/bench/thread_ranks.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"

namespace armillary::bench {

namespace {

/// Two threads that have just been woken may share a core. The system moves one of them away after
/// some milliseconds if both compute, but not if they sleep or yield: so ranks spin first.
constexpr std::chrono::milliseconds kParting(10);

}  // namespace

Repeats repeats_for(double seconds, double least_s) {
  constexpr double kLong = 0.25;  // Begin and warm-up do not show in it.
  return {.untimed = seconds < kLong ? 1 : 0,
          .timed = static_cast<int>(std::clamp(least_s / seconds, 1.0, 1000.0))};
}

ThreadRanks::ThreadRanks(int world) {
  if (world < 1) fail<InvalidArgument>("bench: world {}; at least 1 is required", world);
  group_ = std::jthread([this, world] {
    try {
      // Ranks wait for the slowest, whose kernels may take long.
      comm::run_ranks(world, [this](comm::Communicator& comm) { serve(comm); }, {.timeout_s = 600});
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  });
}

// NOLINTNEXTLINE(bugprone-exception-escape): a lock that throws ends the program.
ThreadRanks::~ThreadRanks() {
  ThreadRanks::start({}, {});
}

void ThreadRanks::start(Work work, Repeats repeats) {
  ARMILLARY_CHECK(repeats.timed > 0);
  const std::lock_guard lock(mutex_);
  work_ = std::move(work);
  repeats_ = repeats;
  ++started_;
  changed_.notify_all();
}

double ThreadRanks::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ == started_ || over_; });
  if (error_) std::rethrow_exception(error_);
  return seconds_;
}

// The first rank decides: rank 0 may be the last to wake up behind the barrier.
void ThreadRanks::note_start(int work) {
  const std::lock_guard lock(mutex_);
  if (begun_ == work) return;
  begun_ = work;
  begin_ = Clock::now();
}

void ThreadRanks::serve(comm::Communicator& comm) {
  at::set_num_threads(1);  // ranks are the threads
  for (int next = 1;; ++next) {
    // Waits for the next work.
    Work work;
    Repeats repeats;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return started_ >= next; });
      if (!work_) return;
      work = work_;
      repeats = repeats_;
    }
    for (const Clock::time_point woken = Clock::now(); Clock::now() - woken < kParting;) {
    }
    // Does it, between barriers.
    for (int i = 0; i < repeats.untimed; ++i) work(comm);
    comm::barrier(comm);
    note_start(next);
    for (int i = 0; i < repeats.timed; ++i) work(comm);
    comm::barrier(comm);
    // Rank 0 tells the caller: behind the barrier all ranks are done.
    if (comm.rank() != 0) continue;
    const std::lock_guard lock(mutex_);
    seconds_ = std::chrono::duration<double>(Clock::now() - begin_).count() / repeats.timed;
    done_ = next;
    changed_.notify_all();
  }
}

std::unique_ptr<Ranks> make_thread_ranks(int world, int /*owner*/) {
  return std::make_unique<ThreadRanks>(world);
}

}  // namespace armillary::bench

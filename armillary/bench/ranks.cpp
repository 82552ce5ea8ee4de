#include "armillary/bench/ranks.h"

#include <ATen/Parallel.h>

#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"

namespace armillary::bench {

Ranks::Ranks(int world) {
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

Ranks::~Ranks() {
  start({});
}

void Ranks::start(Work work, Work warm_up) {
  const std::lock_guard lock(mutex_);
  work_ = std::move(work);
  warm_up_ = std::move(warm_up);
  ++started_;
  changed_.notify_all();
}

double Ranks::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ == started_ || over_; });
  if (error_) std::rethrow_exception(error_);
  return seconds_;
}

/// Of the first rank that is there: rank 0 may be the last to wake.
void Ranks::note_start(int work) {
  const std::lock_guard lock(mutex_);
  if (begun_ == work) return;
  begun_ = work;
  begin_ = Clock::now();
}

void Ranks::serve(comm::Communicator& comm) {
  at::set_num_threads(1);  // ranks are the threads
  for (int next = 1;; ++next) {
    Work work;
    Work warm_up;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return started_ >= next; });
      if (!work_) return;
      work = work_;
      warm_up = warm_up_;
    }
    if (warm_up) warm_up(comm);
    comm::barrier(comm);
    note_start(next);
    work(comm);
    comm::barrier(comm);
    if (comm.rank() != 0) continue;
    const std::lock_guard lock(mutex_);
    seconds_ = std::chrono::duration<double>(Clock::now() - begin_).count();
    done_ = next;
    changed_.notify_all();
  }
}

}  // namespace armillary::bench

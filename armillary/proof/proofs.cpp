// Proofs that are made once. Each pass has a promise: the thread that first sets `has_begun`
// fulfils it, and all others wait for its future. The queue of the worker keeps no object alive.
#include "armillary/proof/proofs.h"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/plan/strategies/strategy.h"

namespace armillary::proof {
namespace {

std::atomic<std::int64_t> proofs_made = 0;

/// One thread, which runs what it is given, one after the other.
class Worker {
 public:
  using Job = std::function<void()>;

  static Worker& of_this_process() {
    static Worker worker;
    return worker;
  }

  // The registry is a static object that jobs use. It is made before this one, so it is destroyed
  // after it, when the thread has ended.
  Worker() { plan::strategies(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Waits for the job that runs; drops those that have not begun.
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  /// Whether there is a thread that will run it.
  bool run(Job job) {
    {
      const std::lock_guard lock(mutex_);
      // The thread is made by the first call: most processes never need it.
      try {
        if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
      } catch (const std::system_error&) {
        return false;
      }
      jobs_.push_back(std::move(job));
    }
    wake_.notify_one();
    return true;
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stops_ || !jobs_.empty(); });
      if (stops_) return;
      const Job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      lock.lock();
    }
  }

  std::mutex mutex_;  ///< Guards all that follows.
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace

Proofs::OnePass& Proofs::of(plan::Pass pass) {
  const auto* const place = std::ranges::find(kPasses, pass);
  ARMILLARY_CHECK(place != kPasses.end());
  return passes_[static_cast<std::size_t>(place - kPasses.begin())];
}

std::shared_ptr<const PassProof> Proofs::get(plan::Pass pass) {
  make_once(pass);
  return of(pass).proof.get();
}

void Proofs::start(plan::Pass pass) {
  OnePass& one = of(pass);
  if (one.has_begun || one.is_queued.exchange(true)) return;
  const bool is_made_ahead = Worker::of_this_process().run([weak = weak_from_this(), pass] {
    if (const auto proofs = weak.lock()) proofs->make_once(pass);
  });
  if (!is_made_ahead) one.is_queued = false;
}

void Proofs::make_once(plan::Pass pass) {
  OnePass& one = of(pass);
  if (one.has_begun.exchange(true)) return;
  ++proofs_made;
  try {
    one.promise.set_value(std::make_shared<const PassProof>(make_(pass)));
  } catch (...) {
    one.promise.set_exception(std::current_exception());
  }
}

std::int64_t Proofs::count() {
  return proofs_made;
}

}  // namespace armillary::proof

// Runs events on several threads. Events are sorted by wave and, within a wave, by the thread that
// has the rank they write. Threads meet at a barrier after each wave. A message locks the ranks of
// both its ends in the order of their numbers, so that no two threads wait for each other.
#include "armillary/plan/verify/waves.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <latch>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>

namespace armillary::plan::verifier {
namespace {

/// Events sorted for threads, and the run of them.
class WaveRun {
 public:
  WaveRun(const Meaning& meaning, Contents& contents, const std::vector<Event>& events,
          const std::vector<RunEvent>& runs)
      : meaning_(meaning), contents_(contents), events_(events), runs_(runs) {
    sort();
  }

  bool run() {
    std::latch all_started(1);
    std::barrier<> wave_ends(threads_);
    std::vector<std::jthread> others;
    try {
      for (int thread = 1; thread < threads_; ++thread) {
        others.emplace_back([&, thread] {
          all_started.wait();
          if (!broken_) run_waves(thread, wave_ends);
        });
      }
    } catch (const std::system_error&) {
      broken_ = true;  // The system gives no more threads.
    }
    const bool alone = broken_;
    all_started.count_down();
    if (!alone) run_waves(0, wave_ends);
    others.clear();
    return !broken_;
  }

 private:
  /// The events of one thread, and the end of every wave.
  void run_waves(int thread, std::barrier<>& wave_ends) {
    for (std::size_t wave = 0; wave < waves_; ++wave) {
      const std::size_t part = wave * threads_ + thread;
      try {
        for (std::size_t i = begins_[part]; i < begins_[part + 1] && !broken_; ++i) {
          if (!run_locked(runs_[thread], events_[order_[i]])) broken_ = true;
        }
      } catch (...) {
        broken_ = true;
      }
      wave_ends.arrive_and_wait();
    }
  }

  /// The rank whose cells an event writes.
  Rank owner(const Event& event) const {
    return event.message >= 0 ? meaning_.messages[event.message].to : event.rank;
  }

  /// Sorts by wave, then by thread; counting, because both are small numbers.
  void sort() {
    for (const Event& event : events_) {
      waves_ = std::max(waves_, static_cast<std::size_t>(event.wave) + 1);
    }
    const std::size_t ranks = meaning_.plan.ranks.size();
    const auto part = [&](const Event& event) {
      const auto rank = static_cast<std::size_t>(owner(event));
      return static_cast<std::size_t>(event.wave) * threads_ + rank * threads_ / ranks;
    };
    begins_.resize(waves_ * threads_ + 1);
    for (const Event& event : events_) ++begins_[part(event)];
    std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
    order_.resize(events_.size());
    for (std::size_t i = events_.size(); i-- > 0;) {
      order_[--begins_[part(events_[i])]] = static_cast<int>(i);
    }
  }

  /// Both ends of a message may be in use by other threads, which touch other cells of them.
  bool run_locked(const RunEvent& run, const Event& event) {
    const Rank to = owner(event);
    const Rank from = event.message >= 0 ? meaning_.messages[event.message].from : to;
    const std::scoped_lock first(contents_.locks[std::min(from, to)]);
    std::unique_lock second(contents_.locks[std::max(from, to)], std::defer_lock);
    if (from != to) second.lock();
    return run(event);
  }

  const Meaning& meaning_;
  Contents& contents_;
  const std::vector<Event>& events_;
  const std::vector<RunEvent>& runs_;
  const int threads_ = static_cast<int>(runs_.size());
  std::size_t waves_ = 0;
  std::vector<std::size_t> begins_;  ///< By wave and thread: the first in `order_`.
  std::vector<int> order_;
  std::atomic<bool> broken_ = false;
};

}  // namespace

bool run_in_waves(const Meaning& meaning, Contents& contents, const std::vector<Event>& events,
                  const std::vector<RunEvent>& runs) {
  return WaveRun(meaning, contents, events, runs).run();
}

}  // namespace armillary::plan::verifier

// Runs actions on several threads. Actions are sorted by wave and, within a wave, by the thread
// that has the rank they write. Threads meet at a barrier after each wave. A message locks the
// ranks of both its ends in the order of their numbers, so that no two threads wait for each other.
//
// A large plan takes gigabytes, and a wave visits all ranks, so no cache holds the op, tiles, slots
// and sums of an action. Each thread prefetches them a few actions ahead, in this order, for each
// holds the address of the next.
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

/// Prefetches the memory of an action, one level of addresses at a time.
class Prefetcher {
 public:
  Prefetcher(const Plan& plan, const Contents& contents) : plan_(plan), contents_(contents) {}

  void ops(const Action& action) const {
    for_each_end(action, [](const RankProgram&, const Cells&, const Op& op) {
      __builtin_prefetch(&op);
      __builtin_prefetch(&op.views);
    });
  }
  void tiles(const Action& action) const {
    for_each_end(action, [](const RankProgram& program, const Cells&, const Op& op) {
      for (const View& view : op.views) __builtin_prefetch(&program.tiles[view.tile]);
    });
  }
  void slots(const Action& action) const {
    for_each_end(action, [](const RankProgram&, const Cells& cells, const Op& op) {
      for (const View& view : op.views) cells.prefetch_slot(view);
    });
  }
  void sums(const Action& action) const {
    for_each_end(action, [](const RankProgram&, const Cells& cells, const Op& op) {
      for (const View& view : op.views) cells.prefetch_sums(view);
    });
  }

 private:
  /// Calls `visit` for the op of an action, and of a message also for the send.
  template <class Visit>
  void for_each_end(const Action& action, const Visit& visit) const {
    const RankProgram& program = plan_.ranks[action.rank];
    visit(program, contents_.cells[action.rank], program.ops[action.op]);
    if (!action.is_message()) return;
    const RankProgram& sender = plan_.ranks[action.from];
    visit(sender, contents_.cells[action.from], sender.ops[action.send]);
  }

  const Plan& plan_;
  const Contents& contents_;
};

/// Sorts actions for threads and runs them.
class WaveRun {
 public:
  WaveRun(const Meaning& meaning, Contents& contents, const std::vector<Action>& actions,
          const std::vector<RunAction>& runs)
      : ranks_(meaning.plan.ranks.size()),
        prefetcher_(meaning.plan, contents),
        contents_(contents),
        runs_(runs) {
    sort(actions);
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
  /// Runs the actions of one thread, and waits for the other threads at the end of each wave.
  void run_waves(int thread, std::barrier<>& wave_ends) {
    for (std::size_t wave = 0; wave < waves_; ++wave) {
      const std::size_t part = wave * threads_ + thread;
      try {
        for (std::size_t i = begins_[part]; i < begins_[part + 1] && !broken_; ++i) {
          prefetch(i);
          if (!run_locked(runs_[thread], sorted_[i])) broken_ = true;
        }
      } catch (...) {
        broken_ = true;
      }
      wave_ends.arrive_and_wait();
    }
  }

  /// Prefetches the memory of actions that come soon.
  void prefetch(std::size_t i) const {
    constexpr std::size_t kOps = 16;
    constexpr std::size_t kTiles = 10;
    constexpr std::size_t kSlots = 6;
    constexpr std::size_t kSums = 3;
    if (i + kOps >= sorted_.size()) return;
    prefetcher_.ops(sorted_[i + kOps]);
    prefetcher_.tiles(sorted_[i + kTiles]);
    prefetcher_.slots(sorted_[i + kSlots]);
    prefetcher_.sums(sorted_[i + kSums]);
  }

  /// Sorts by wave, then by thread; counting, because both are small numbers.
  void sort(const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      waves_ = std::max(waves_, static_cast<std::size_t>(action.wave) + 1);
    }
    const auto part = [&](const Action& action) {
      const auto rank = static_cast<std::size_t>(action.rank);
      return static_cast<std::size_t>(action.wave) * threads_ + rank * threads_ / ranks_;
    };
    begins_.resize(waves_ * threads_ + 1);
    for (const Action& action : actions) ++begins_[part(action)];
    std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
    sorted_.resize(actions.size());
    for (auto action = actions.rbegin(); action != actions.rend(); ++action) {
      sorted_[--begins_[part(*action)]] = *action;
    }
  }

  /// Locks the ranks of both ends: actions of other threads may touch other cells of these ranks in
  /// the same wave.
  bool run_locked(const RunAction& run, const Action& action) {
    const Rank to = action.rank;
    const Rank from = action.is_message() ? action.from : to;
    const std::scoped_lock first(contents_.locks[std::min(from, to)]);
    std::unique_lock second(contents_.locks[std::max(from, to)], std::defer_lock);
    if (from != to) second.lock();
    return run(action);
  }

  const std::size_t ranks_;
  const Prefetcher prefetcher_;
  Contents& contents_;
  const std::vector<RunAction>& runs_;
  const int threads_ = static_cast<int>(runs_.size());
  std::size_t waves_ = 0;
  std::vector<std::size_t> begins_;  ///< By wave and thread: the first in `sorted_`.
  std::vector<Action> sorted_;
  std::atomic<bool> broken_ = false;
};

}  // namespace

bool run_in_waves(const Meaning& meaning, Contents& contents, const std::vector<Action>& actions,
                  const std::vector<RunAction>& runs) {
  return WaveRun(meaning, contents, actions, runs).run();
}

}  // namespace armillary::plan::verifier

// Programs run by several threads. Each goes up and down its ranks until none of them can go on;
// then it waits until a rank of another thread has moved. If all threads wait, all is done that can
// be. A message is one pointer that its sender writes and its receiver takes, so ranks share
// nothing else.
#include "armillary/plan/verify/programs.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <memory>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>

#include "armillary/plan/program/parallel_for_ranks.h"

namespace armillary::plan::verifier {
namespace {

class SymbolRun {
 public:
  SymbolRun(const Plan& plan, const std::vector<MatchedMessage>& messages,
            std::span<const RankOps> threads)
      : plan_(plan),
        threads_(threads),
        message_of_(plan.ranks.size()),
        parcels_(messages.size()),
        next_(plan.ranks.size()) {
    number(messages);
  }
  SymbolRun(const SymbolRun&) = delete;
  SymbolRun& operator=(const SymbolRun&) = delete;
  ~SymbolRun() {
    for (std::atomic<Parcel*>& parcel : parcels_) {
      if (parcel != &final_) delete parcel;
    }
  }

  bool run() {
    std::latch all_started(1);
    std::vector<std::jthread> others;
    try {
      for (std::size_t thread = 1; thread < threads_.size(); ++thread) {
        others.emplace_back([&, thread] {
          all_started.wait();
          if (!broken_) work(thread);
        });
      }
    } catch (const std::system_error&) {
      broken_ = true;  // The system gives no more threads.
    }
    const bool alone = broken_;
    all_started.count_down();
    if (!alone) work(0);
    others.clear();
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      if (next_[rank] < plan_.ranks[rank].ops.size()) return false;
    }
    return !broken_;
  }

 private:
  /// Gives both ends of each message its number. Messages are sorted by sender.
  void number(const std::vector<MatchedMessage>& messages) {
    const int world = static_cast<int>(plan_.ranks.size());
    std::vector<int> begins(world + 1);
    for (const MatchedMessage& message : messages) ++begins[message.from + 1];
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    parallel_for_ranks(
        world, [&](Rank rank) { message_of_[rank].assign(plan_.ranks[rank].ops.size(), -1); });
    parallel_for_ranks(world, [&](Rank from) {
      for (int m = begins[from]; m < begins[from + 1]; ++m) {
        message_of_[from][messages[m].send] = m;
        message_of_[messages[m].to][messages[m].recv] = m;
      }
    });
  }

  /// Runs the ranks of a thread.
  void work(std::size_t thread) {
    const RankOps& ops = threads_[thread];
    const auto first = static_cast<Rank>(next_.size() * thread / threads_.size());
    const auto end = static_cast<Rank>(next_.size() * (thread + 1) / threads_.size());
    for (bool goes_on = true; goes_on;) {
      const std::int64_t count = moves_;
      bool moved = false;
      for (Rank rank = first; rank < end; ++rank) moved |= advance(ops, rank);
      for (Rank rank = end - 1; rank >= first; --rank) moved |= advance(ops, rank);
      goes_on = moved || wait_for_move(count);
    }
  }

  /// Tells all threads that a rank has moved.
  void announce_move() {
    {
      const std::lock_guard lock(mutex_);
      ++moves_;
      waiting_ = 0;
    }
    moved_.notify_all();
  }

  /// Waits until there are more moves than `count`. False if no thread can move any more.
  bool wait_for_move(std::int64_t count) {
    std::unique_lock lock(mutex_);
    if (moves_ == count && ++waiting_ == threads_.size()) over_ = true;
    if (over_) moved_.notify_all();
    moved_.wait(lock, [&] { return over_ || moves_ != count; });
    return !over_;
  }

  /// Runs the ops of a rank up to a message that has not come. False if that is the next op.
  bool advance(const RankOps& ops, Rank rank) {
    const std::vector<Op>& program = plan_.ranks[rank].ops;
    const std::size_t from = next_[rank];
    std::size_t i = from;
    try {
      while (i < program.size() && !broken_.load(std::memory_order_relaxed)) {
        if (!step(ops, rank, static_cast<int>(i))) break;
        ++i;
      }
    } catch (...) {
      broken_ = true;
    }
    next_[rank] = i;
    if (i > from) announce_move();
    return i > from;
  }

  /// Runs one op. False if it must wait, or breaks a rule.
  bool step(const RankOps& ops, Rank rank, int op) {
    const OpKind kind = plan_.ranks[rank].ops[op].kind;
    if (kind == OpKind::Recv) {
      std::atomic<Parcel*>& parcel = parcels_[message_of_[rank][op]];
      Parcel* const come = parcel.load(std::memory_order_acquire);
      if (come == nullptr) return false;
      ops.receive(rank, op, *come);
      parcel.store(nullptr, std::memory_order_relaxed);
      if (come != &final_) delete come;
      return true;
    }
    Parcel outgoing;
    const bool obeys = kind == OpKind::Send ? ops.send(rank, op, outgoing) : ops.compute(rank, op);
    if (!obeys) broken_ = true;
    if (!obeys || kind != OpKind::Send) return obeys;
    Parcel* const goes = outgoing.empty() ? &final_ : new Parcel(std::move(outgoing));
    parcels_[message_of_[rank][op]].store(goes, std::memory_order_release);
    return true;
  }

  const Plan& plan_;
  const std::span<const RankOps> threads_;
  std::vector<std::vector<int>> message_of_;   ///< By rank and op: the number of the message.
  std::vector<std::atomic<Parcel*>> parcels_;  ///< By message: null if it is not on its way.
  std::vector<std::size_t> next_;              ///< By rank: the op that runs next.
  Parcel final_;                               ///< Stands for all messages without sums.
  std::atomic<bool> broken_ = false;
  std::mutex mutex_;  ///< Guards the members below.
  std::condition_variable moved_;
  std::atomic<std::int64_t> moves_ = 0;  ///< Read without the mutex before ranks are looked at.
  std::size_t waiting_ = 0;              ///< Threads that found nothing to do since the last move.
  bool over_ = false;
};

}  // namespace

bool run_programs(const Plan& plan, const std::vector<MatchedMessage>& messages,
                  std::span<const RankOps> threads) {
  return SymbolRun(plan, messages, threads).run();
}

}  // namespace armillary::plan::verifier

// Programs run by several threads. Each goes up and down its ranks until none of them can go on;
// then threads meet, and go on if one of them has moved. A message is one pointer that its sender
// writes and its receiver takes, so ranks share nothing else.
#include "armillary/plan/verify/programs.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <latch>
#include <memory>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>

#include "armillary/plan/parallel_for_ranks.h"

namespace armillary::plan::verifier {
namespace {

class ProgramRun {
 public:
  ProgramRun(const Plan& plan, const std::vector<MatchedMessage>& messages,
             std::span<const RankOps> threads)
      : plan_(plan),
        threads_(threads),
        message_of_(plan.ranks.size()),
        parcels_(messages.size()),
        next_(plan.ranks.size()),
        meeting_(static_cast<std::ptrdiff_t>(threads.size()), DecideToGoOn{this}) {
    number(messages);
  }
  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;
  ~ProgramRun() {
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
    while (goes_on_) {
      for (bool moved = true; moved;) {
        moved = false;
        for (Rank rank = first; rank < end; ++rank) moved |= advance(ops, rank);
        for (Rank rank = end - 1; rank >= first; --rank) moved |= advance(ops, rank);
        if (moved) moved_ = true;
      }
      meeting_.arrive_and_wait();
    }
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
    Parcel sent;
    const bool obeys = kind == OpKind::Send ? ops.send(rank, op, sent) : ops.compute(rank, op);
    if (!obeys) broken_ = true;
    if (!obeys || kind != OpKind::Send) return obeys;
    Parcel* const goes = sent.empty() ? &final_ : new Parcel(std::move(sent));
    parcels_[message_of_[rank][op]].store(goes, std::memory_order_release);
    return true;
  }

  /// Called when all threads have met.
  struct DecideToGoOn {
    ProgramRun* run;
    void operator()() noexcept { run->goes_on_ = run->moved_.exchange(false) && !run->broken_; }
  };

  const Plan& plan_;
  const std::span<const RankOps> threads_;
  std::vector<std::vector<int>> message_of_;   ///< By rank and op: the number of the message.
  std::vector<std::atomic<Parcel*>> parcels_;  ///< By message: null if it is not on its way.
  std::vector<std::size_t> next_;              ///< By rank: the op that runs next.
  Parcel final_;                               ///< Stands for all messages without sums.
  std::atomic<bool> moved_ = false;
  std::atomic<bool> broken_ = false;
  std::atomic<bool> goes_on_ = true;
  std::barrier<DecideToGoOn> meeting_;
};

}  // namespace

bool run_programs(const Plan& plan, const std::vector<MatchedMessage>& messages,
                  std::span<const RankOps> threads) {
  return ProgramRun(plan, messages, threads).run();
}

}  // namespace armillary::plan::verifier

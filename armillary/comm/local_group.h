// local_group.h: the state that the ranks of one run_ranks() share: the queues of messages, and the
// failure of the group. Internal to local.h.
//
//   queue 0 -> 1, lane 2     sends     [s0] s1     the two fronts match: the message is due
//                            receives  [r0]
//
// A message that is due is passed: copied, or linked as zero copy. Then its two sides leave the
// queue, and the next two fronts are compared. Every message is passed by exactly one rank:
//
//   the rank whose start() completed the match, right away and for all messages that follow it;
//   a receiver that waits, if a sender has several messages to pass and asks for help;
//   in a shuffled group, any rank that waits or polls once the message's delay has passed.
//
// Only one rank at a time works on a queue (`copying`), so messages of a queue are done in order.
// The lock is released during a copy. Memory of a rank that is being copied from or to must stay
// valid, so a rank whose group fails waits for such copies before it throws.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "armillary/comm/liveness/heartbeat.h"
#include "armillary/comm/local.h"
#include "armillary/comm/local_pending.h"
#include "armillary/comm/peer_wait.h"
#include "armillary/core/error.h"

namespace armillary::comm {

/// The shared state of one run_ranks(). `mutex_` guards everything but the atomics. Functions with
/// a parameter `rank` are called on the thread of that rank, except abort().
class LocalGroup {
 public:
  LocalGroup(int world, const LocalOptions& options) : options_(options), ranks_(world) {}

  // The calls of Communicator, for one rank.

  /// Queues a batch and passes the messages that are due. `memory` belongs to the rank and holds
  /// its requests.
  void start(int rank, std::span<const Message> batch, std::span<Request> requests,
             std::pmr::memory_resource* memory);
  bool is_complete(int rank, const LocalPending& request);
  /// `describe` names the requests in the text of a missed deadline.
  std::size_t wait_any(int rank, std::span<const Request> requests, double timeout_s,
                       const std::function<std::string()>& describe);
  /// Takes back a message that is not done, and fails the group unless an exception is unwinding.
  void withdraw(LocalPending* request);
  /// The rank begins, on its thread; the rank has ended its body.
  void enter(int rank);
  void leave(int rank) { ranks_[rank].heartbeat->leave(); }
  /// Completes the send from which `receive` borrows; does nothing the second time.
  void give_back(LocalPending& receive);
  /// Looks at the peers of a wait that began then (peer_wait.h).
  void watch_peers(int rank, std::optional<LongWait>& wait, const PeerWaitOptions& options,
                   double begin_s);
  /// @throws CommError if the group has failed, when no copy uses the rank's memory any more.
  void throw_if_failed(int rank);
  /// Fails the group in the name of `rank`, from any thread.
  void abort(int rank, const std::string& reason);

  /// The rank that failed first, or nothing. Not guarded: for when all threads are joined.
  std::optional<int> failed_rank() const;
  /// The first failure. Requires that there is one, and the lock while threads run.
  CommError error() const { return CommError(*failure_); }

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  /// Messages of one lane from one rank to another that are not passed yet. A withdrawn message
  /// leaves a null pointer in its place: nothing behind it can match any more.
  struct LocalQueue {
    explicit LocalQueue(std::pmr::memory_resource* memory) : sends(memory), receives(memory) {}

    std::pmr::deque<LocalPending*> sends;
    std::pmr::deque<LocalPending*> receives;
    std::optional<Clock::time_point> due;  ///< When to pass the fronts; set while both are there.
    bool copying = false;                  ///< A rank copies the front, without the lock.
    std::minstd_rand random;               ///< Draws the delays of a shuffled group.
  };

  struct LocalRank {
    std::condition_variable wake;
    std::optional<OwnHeartbeat> heartbeat;  ///< Since its thread has begun.
    int copies = 0;                         ///< Copies under way from or to this rank's memory.
    /// A sender asks this rank to pass the messages that it receives, if it waits.
    std::atomic<bool> asked_to_copy{false};
    /// Its last wait ended with messages still due, which are left for its is_complete() or next
    /// wait.
    std::atomic<bool> has_due_left{false};
  };

  // Functions that take the lock may release it during a copy.

  bool shuffled() const { return options_.shuffle_seed.has_value(); }
  LocalQueue& queue_of(const LocalPending& request);
  void match(LocalQueue& queue);
  bool is_due(const LocalQueue& queue) const;
  /// Passes the message at the front of a queue that is due. Fails the group if its sizes differ.
  void pass_front(Lock& lock, int rank, LocalQueue& queue);
  void copy(Lock& lock, const LocalPending& send, const LocalPending& receive, LocalQueue& queue);
  void set_done(LocalPending& request);
  /// Passes messages of a queue as long as they are due.
  void copy_due(Lock& lock, int rank, LocalQueue& queue);
  /// Asks the receivers of sends that are due to pass them, if there are several.
  void ask_receivers(std::span<LocalPending* const> started);
  /// For a rank that waits: passes messages that it receives, until one of the requests is done.
  void copy_received(Lock& lock, int rank, std::span<const Request> requests);
  /// In a shuffled group: passes all messages whose time has come.
  void copy_all_due(Lock& lock, int rank);
  Clock::time_point next_due() const;  ///< When the next delay ends, in a shuffled group.
  /// Whether a peer of a wait that has lasted for long is silent; requires the lock.
  bool is_expired(Watch& watch);
  /// The end of the text of a missed deadline.
  static std::string blame(const Watch& watch);
  /// Polls without the lock, until a request is done, `until` is over or the rank is asked to copy.
  std::size_t stay_awake(int rank, std::span<const Request> requests,
                         Clock::time_point until) const;
  /// Records the first failure and wakes all ranks; does nothing for later ones.
  void fail_group(int rank, const std::string& reason);
  void throw_if_failed(Lock& lock, int rank);
  void wait_for_copies(Lock& lock, int rank);

  const LocalOptions options_;
  std::mutex mutex_;
  std::pmr::unsynchronized_pool_resource memory_;    ///< Holds the queues; soon grows no more.
  std::map<std::array<int, 3>, LocalQueue> queues_;  ///< By sender, receiver, lane.
  std::vector<LocalRank> ranks_;
  std::uint64_t messages_done_ = 0;  ///< Counts sides of messages; gives each its place.
  std::optional<std::string> failure_;
  int failed_rank_ = -1;
  std::atomic<bool> failed_{false};
};

}  // namespace armillary::comm

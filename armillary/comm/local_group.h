// local_group.h: what the ranks of one run_ranks() share: queues of messages, and the one failure.
// Internal to local.h.
//
//   queue 0 -> 1, lane 2     sends     [s0] s1     the fronts match; who finds them
//                            receives  [r0]        due lends or copies, then the next
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

#include "armillary/comm/local.h"
#include "armillary/comm/local_pending.h"
#include "armillary/core/error.h"

namespace armillary::comm {

/// What all ranks of one run_ranks() share. `mutex_` guards everything but the atomics.
class LocalGroup {
 public:
  LocalGroup(int world, const LocalOptions& options) : options_(options), ranks_(world) {}

  /// `memory` is the rank's, for what lives as long as a request.
  void start(int rank, std::span<const Message> batch, std::span<Request> requests,
             std::pmr::memory_resource* memory);
  bool done(int rank, const LocalPending& request);
  /// `describe` makes the text of a missed deadline.
  std::size_t wait_any(int rank, std::span<const Request> requests, double timeout_s,
                       const std::function<std::string()>& describe);
  void withdraw(LocalPending* request);
  /// Of a receive that borrows; the second time nothing.
  void give_back(LocalPending& receive);
  void throw_if_failed(int rank);
  void abort(int rank, const std::string& reason);

  /// Rank that failed first, or nothing.
  std::optional<int> failed_rank() const;
  CommError error() const { return CommError(*failure_); }

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  /// Messages of one lane from one rank to another that are not over. A null pointer was withdrawn:
  /// nothing behind it can match any more.
  struct Queue {
    explicit Queue(std::pmr::memory_resource* memory) : sends(memory), receives(memory) {}

    std::pmr::deque<LocalPending*> sends;
    std::pmr::deque<LocalPending*> receives;
    std::optional<Clock::time_point> due;  ///< Set while both fronts are there: when to copy.
    bool copying = false;
    std::minstd_rand random;  ///< Of the delays of a shuffled group.
  };

  struct Rank {
    std::condition_variable wake;
    int copies = 0;                   ///< Under way on this rank's memory.
    std::atomic<bool> called{false};  ///< To copy what it receives, if it waits.
    std::atomic<bool> left{false};    ///< It left copies to itself when a wait was over.
  };

  bool shuffled() const { return options_.shuffle_seed.has_value(); }
  Queue& queue_of(const LocalPending& request);
  void match(Queue& queue);
  bool is_due(const Queue& queue) const;
  void pass_front(Lock& lock, int rank, Queue& queue);
  void copy(Lock& lock, const LocalPending& send, const LocalPending& receive, Queue& queue);
  void set_done(LocalPending& request);
  void copy_due(Lock& lock, int rank, Queue& queue);
  void call_receivers(std::span<LocalPending* const> started);
  void copy_received(Lock& lock, int rank, std::span<const Request> requests);
  void copy_all_due(Lock& lock, int rank);
  Clock::time_point next_due() const;
  std::size_t stay_awake(int rank, std::span<const Request> requests,
                         Clock::time_point until) const;
  void fail_group(int rank, const std::string& reason);
  void throw_if_failed(Lock& lock, int rank);
  void wait_for_copies(Lock& lock, int rank);

  const LocalOptions options_;
  std::mutex mutex_;
  std::pmr::unsynchronized_pool_resource memory_;  ///< Of the queues, which soon need no more.
  std::map<std::array<int, 3>, Queue> queues_;     ///< By sender, receiver, lane.
  std::vector<Rank> ranks_;
  std::uint64_t messages_done_ = 0;
  std::optional<std::string> failure_;
  int failed_rank_ = -1;
  std::atomic<bool> failed_{false};
};

}  // namespace armillary::comm

#include "armillary/comm/local.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <memory_resource>
#include <mutex>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;

// A peer that runs answers within a few yields; sleeping and being woken costs more than all of
// them.
constexpr int kYields = 32;

Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

class LocalGroup;

class LocalPending : public Pending {
 public:
  LocalPending(LocalGroup& group, int rank, const Message& message,
               std::pmr::memory_resource* memory)
      : Pending(message, total_bytes(message.parts)),
        group_(group),
        rank_(rank),
        parts_(message.parts.begin(), message.parts.end(), memory),
        loan_(message.loan && bytes() > 0),
        owner_(message.owner) {}
  ~LocalPending() override;

  int rank() const { return rank_; }
  std::span<const Strided> parts() const { return parts_; }
  std::span<const Strided> borrowed() const override {
    return borrows_ ? parts() : std::span<const Strided>();
  }

  // Under the group's lock, as all that follows a match.

  /// Whether `receive` can read this send's memory instead of a copy.
  bool fits(const LocalPending& receive) const;
  void lend_to(LocalPending& receive);
  /// Of a send: whether a receive borrows from it now.
  bool lends() const { return direction() == Direction::Send && other_ != nullptr; }
  /// Of either side: ends the loan, and returns the other, or null if that has gone before.
  LocalPending* end_loan();

  bool done() const { return place() > 0; }
  /// Place, from 1, in the order in which the group's messages ended; 0 before this one has.
  std::uint64_t place() const { return place_.load(std::memory_order_acquire); }
  /// The owner may free this object as soon as it sees it: the last thing anyone else does to it.
  void set_done(std::uint64_t place) { place_.store(place, std::memory_order_release); }

 private:
  LocalGroup& group_;
  int rank_;
  std::pmr::vector<Strided> parts_;  ///< Of a receive that borrows: the sender's.
  bool loan_;
  bool borrows_ = false;           ///< Of a receive; set before it is done.
  LocalPending* other_ = nullptr;  ///< Of a loan.
  std::shared_ptr<const void> owner_;
  std::atomic<std::uint64_t> place_{0};
};

bool LocalPending::fits(const LocalPending& receive) const {
  const auto bytes = [](const Strided& part) { return part.rows * part.row_bytes; };
  return loan_ && receive.loan_ &&
         std::ranges::equal(parts_, receive.parts_, std::equal_to<>(), bytes, bytes);
}

void LocalPending::lend_to(LocalPending& receive) {
  // Into memory it has: this may be the sender's thread.
  std::copy(parts_.begin(), parts_.end(), receive.parts_.begin());
  receive.owner_ = owner_;
  receive.borrows_ = true;
  receive.other_ = this;
  other_ = &receive;
}

LocalPending* LocalPending::end_loan() {
  LocalPending* const other = std::exchange(other_, nullptr);
  if (other) other->other_ = nullptr;
  return other;
}

/// Index of the request that was done first, or requests.size() if none is. Not the lowest index:
/// a rank that looks late would see the order that a shuffled group made as if it had not.
std::size_t first_done(std::span<const Request> requests) {
  std::size_t first = requests.size();
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (!requests[i]) continue;
    const std::uint64_t place = static_cast<const LocalPending&>(*requests[i]).place();
    if (place == 0 || place >= least) continue;
    first = i;
    least = place;
  }
  return first;
}

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
  struct Rank {
    std::condition_variable wake;
    int copies = 0;  ///< Under way on this rank's memory.
  };

  bool shuffled() const { return options_.shuffle_seed.has_value(); }
  Queue& queue_of(const LocalPending& request);
  void match(Queue& queue);
  bool is_due(const Queue& queue) const;
  void pass_front(Lock& lock, int rank, Queue& queue);
  void copy(Lock& lock, const LocalPending& send, const LocalPending& receive, Queue& queue);
  void set_done(LocalPending& request);
  void copy_due(Lock& lock, int rank, Queue& queue);
  void copy_all_due(Lock& lock, int rank);
  Clock::time_point next_due() const;
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

LocalPending::~LocalPending() {
  if (!done()) {
    group_.withdraw(this);
  } else if (borrows_) {
    group_.give_back(*this);
  }
}

Queue& LocalGroup::queue_of(const LocalPending& request) {
  const bool send = request.direction() == Direction::Send;
  const int sender = send ? request.rank() : request.peer();
  const int receiver = send ? request.peer() : request.rank();
  const auto [found, added] = queues_.try_emplace({sender, receiver, request.lane()}, &memory_);
  if (added && shuffled()) {
    std::seed_seq seed{*options_.shuffle_seed, *options_.shuffle_seed >> 32, std::uint64_t(sender),
                       std::uint64_t(receiver), std::uint64_t(request.lane())};
    found->second.random.seed(seed);
  }
  return found->second;
}

/// Sets `due` if both fronts have come.
void LocalGroup::match(Queue& queue) {
  if (queue.due || queue.sends.empty() || queue.receives.empty()) return;
  LocalPending* send = queue.sends.front();
  LocalPending* receive = queue.receives.front();
  if (!send || !receive) return;
  queue.due = Clock::time_point::min();
  if (shuffled()) {
    const double delay_s = std::uniform_real_distribution<>(0, options_.max_delay_s)(queue.random);
    queue.due = Clock::now() + seconds(delay_s);
    // Both may sleep without knowing of this time.
    ranks_[send->rank()].wake.notify_all();
    ranks_[receive->rank()].wake.notify_all();
  }
}

bool LocalGroup::is_due(const Queue& queue) const {
  return queue.due && !queue.copying && !failure_ && (!shuffled() || *queue.due <= Clock::now());
}

/// Lends or copies the message at the front of a queue that is due.
void LocalGroup::pass_front(Lock& lock, int rank, Queue& queue) {
  LocalPending& send = *queue.sends.front();
  LocalPending& receive = *queue.receives.front();
  if (send.bytes() != receive.bytes()) {
    fail_group(
        rank, fmt::format("rank {} sends {} bytes to rank {} on lane {}, which receives {} "
                          "bytes; equal sizes are required",
                          send.rank(), send.bytes(), receive.rank(), send.lane(), receive.bytes()));
    return;
  }
  const bool lends = send.fits(receive);
  if (!lends) copy(lock, send, receive, queue);
  queue.sends.pop_front();
  queue.receives.pop_front();
  queue.due.reset();
  if (lends) {
    send.lend_to(receive);
  } else {
    set_done(send);
  }
  set_done(receive);
  match(queue);
}

void LocalGroup::copy(Lock& lock, const LocalPending& send, const LocalPending& receive,
                      Queue& queue) {
  Rank& sender = ranks_[send.rank()];
  Rank& receiver = ranks_[receive.rank()];
  queue.copying = true;
  ++sender.copies;
  ++receiver.copies;
  lock.unlock();
  copy_strided(send.parts(), receive.parts());
  lock.lock();
  queue.copying = false;
  --sender.copies;
  --receiver.copies;
}

void LocalGroup::set_done(LocalPending& request) {
  Rank& rank = ranks_[request.rank()];
  request.set_done(++messages_done_);
  rank.wake.notify_all();
}

void LocalGroup::give_back(LocalPending& receive) {
  const Lock lock(mutex_);
  if (LocalPending* const send = receive.end_loan()) set_done(*send);
}

void LocalGroup::throw_if_failed(int rank) {
  Lock lock(mutex_);
  throw_if_failed(lock, rank);
}

/// Copies what is due, for `rank`, which also goes on with what comes due meanwhile: whoever finds
/// the queue copying leaves it alone, so that messages of a queue end in order.
void LocalGroup::copy_due(Lock& lock, int rank, Queue& queue) {
  while (is_due(queue)) pass_front(lock, rank, queue);
}

/// In the order of their times, also when several have passed.
void LocalGroup::copy_all_due(Lock& lock, int rank) {
  while (shuffled()) {
    Queue* next = nullptr;
    for (auto& [key, queue] : queues_) {
      if (is_due(queue) && (!next || *queue.due < *next->due)) next = &queue;
    }
    if (!next) return;
    pass_front(lock, rank, *next);
  }
}

Clock::time_point LocalGroup::next_due() const {
  Clock::time_point next = Clock::time_point::max();
  if (!shuffled()) return next;
  for (const auto& [key, queue] : queues_) {
    if (queue.due && !queue.copying) next = std::min(next, *queue.due);
  }
  return next;
}

void LocalGroup::start(int rank, std::span<const Message> batch, std::span<Request> requests,
                       std::pmr::memory_resource* memory) {
  std::pmr::vector<LocalPending*> started(memory);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    auto request = std::allocate_shared<LocalPending>(
        std::pmr::polymorphic_allocator<LocalPending>(memory), *this, rank, batch[i], memory);
    started.push_back(request.get());
    requests[i] = std::move(request);
  }
  Lock lock(mutex_);
  throw_if_failed(lock, rank);
  for (LocalPending* request : started) {
    Queue& queue = queue_of(*request);
    (request->direction() == Direction::Send ? queue.sends : queue.receives).push_back(request);
    match(queue);
  }
  if (shuffled()) return;
  // After all are in their queues, so that peers need not wait for our copies.
  for (LocalPending* request : started) copy_due(lock, rank, queue_of(*request));
  throw_if_failed(lock, rank);
}

bool LocalGroup::done(int rank, const LocalPending& request) {
  if (request.done()) return true;
  if (!shuffled() && !failed_.load(std::memory_order_acquire)) return false;
  Lock lock(mutex_);
  copy_all_due(lock, rank);
  if (request.done()) return true;
  throw_if_failed(lock, rank);
  return false;
}

std::size_t LocalGroup::wait_any(int rank, std::span<const Request> requests, double timeout_s,
                                 const std::function<std::string()>& describe) {
  for (int i = 0; i < kYields; ++i) {
    const std::size_t index = first_done(requests);
    if (index < requests.size()) return index;
    std::this_thread::yield();
  }
  const Clock::time_point begin = Clock::now();
  const Clock::time_point deadline = begin + seconds(timeout_s);
  Lock lock(mutex_);
  while (true) {
    copy_all_due(lock, rank);
    const std::size_t index = first_done(requests);
    if (index < requests.size()) return index;
    throw_if_failed(lock, rank);
    const Clock::time_point now = Clock::now();
    if (now >= deadline) {
      const double waited_s = std::chrono::duration<double>(now - begin).count();
      fail_group(rank, fmt::format("wait: {} not done after {:.3g} s", describe(), waited_s));
    } else {
      ranks_[rank].wake.wait_until(lock, std::min(deadline, next_due()));
    }
  }
}

void LocalGroup::withdraw(LocalPending* request) {
  Lock lock(mutex_);
  wait_for_copies(lock, request->rank());
  if (request->done()) return;
  if (request->lends()) {
    request->end_loan();
  } else {
    Queue& queue = queue_of(*request);
    auto& side = request->direction() == Direction::Send ? queue.sends : queue.receives;
    const auto place = std::find(side.begin(), side.end(), request);
    if (place == side.end()) return;  // Refused before it was queued.
    if (place == side.begin()) queue.due.reset();
    *place = nullptr;
  }
  // An unwinding rank has an error that says more; run_ranks() will abort with it.
  if (std::uncaught_exceptions() == 0) {
    fail_group(
        request->rank(),
        fmt::format("rank {} dropped a request of {} bytes with rank {} on lane {} before it "
                    "was done",
                    request->rank(), request->bytes(), request->peer(), request->lane()));
  }
}

void LocalGroup::abort(int rank, const std::string& reason) {
  Lock lock(mutex_);
  fail_group(rank, reason);
}

std::optional<int> LocalGroup::failed_rank() const {
  return failure_ ? std::optional(failed_rank_) : std::nullopt;
}

void LocalGroup::fail_group(int rank, const std::string& reason) {
  if (failure_) return;
  failure_ = fmt::format("rank {} failed: {}", rank, reason);
  failed_rank_ = rank;
  failed_.store(true, std::memory_order_release);
  for (Rank& other : ranks_) other.wake.notify_all();
}

void LocalGroup::throw_if_failed(Lock& lock, int rank) {
  if (!failure_) return;
  // The caller will free its memory: let copies end. None begins in a group that failed.
  wait_for_copies(lock, rank);
  throw error();
}

void LocalGroup::wait_for_copies(Lock& lock, int rank) {
  ranks_[rank].wake.wait(lock, [&] { return ranks_[rank].copies == 0; });
}

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(LocalGroup& group, int rank, int world, double timeout_s)
      : Communicator(rank, world, timeout_s), group_(group) {}

  void abort(const std::string& reason) noexcept override { group_.abort(rank(), reason); }

 private:
  void do_start(std::span<const Message> batch, std::span<Request> requests) override {
    group_.start(rank(), batch, requests, &memory_);
  }
  bool do_done(const Pending& request) override {
    return group_.done(rank(), static_cast<const LocalPending&>(request));
  }
  void do_give_back(const Pending& request) override {
    // What it borrows is const to its holder, not to the group.
    group_.give_back(const_cast<LocalPending&>(static_cast<const LocalPending&>(request)));
    group_.throw_if_failed(rank());
  }
  std::size_t do_wait_any(std::span<const Request> requests, double timeout_s) override {
    return group_.wait_any(rank(), requests, timeout_s, [&] { return describe(requests); });
  }

  LocalGroup& group_;
  std::pmr::unsynchronized_pool_resource memory_;  ///< Of messages under way.
};

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace

void run_ranks(int world, const std::function<void(Communicator&)>& body,
               const LocalOptions& options) {
  if (world < 1) fail<InvalidArgument>("run_ranks: world {}; at least 1 is required", world);
  if (!(options.max_delay_s >= 0 && options.max_delay_s <= 1)) {
    fail<InvalidArgument>("run_ranks: max_delay {} s; 0 to 1 s is required", options.max_delay_s);
  }
  LocalGroup group(world, options);
  std::vector<std::exception_ptr> errors(world);
  const auto run_rank = [&](int rank) {
    try {
      LocalCommunicator communicator(group, rank, world, options.timeout_s);
      body(communicator);
    } catch (...) {
      errors[rank] = std::current_exception();
      group.abort(rank, text_of(errors[rank]));
    }
  };
  std::vector<std::thread> threads;
  try {
    for (int rank = 0; rank < world; ++rank) threads.emplace_back(run_rank, rank);
  } catch (const std::system_error& e) {
    group.abort(static_cast<int>(threads.size()), fmt::format("no thread: {}", e.what()));
  }
  for (std::thread& thread : threads) thread.join();
  if (const std::optional<int> first = group.failed_rank()) {
    if (errors[*first]) std::rethrow_exception(errors[*first]);
    throw group.error();
  }
}

}  // namespace armillary::comm

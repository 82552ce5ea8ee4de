// How messages between ranks that are threads are matched, passed and waited for. The order of this
// file: queues and matching; passing one message; the loops that pass several messages, one loop
// for each situation in which a rank does so; the calls of Communicator (start, done, wait_any,
// withdraw, abort); failure.
#include "armillary/comm/local_group.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "armillary/comm/label.h"
#include "armillary/comm/liveness/peer_process.h"
#include "armillary/comm/strided.h"
#include "armillary/core/count_text.h"

namespace armillary::comm {
namespace {

// The time for which a waiting rank polls before it sleeps: a peer that is running often answers
// within it. A thread that sleeps is woken on the core of the thread that wakes it, and the two
// then share that core for milliseconds.
constexpr std::chrono::microseconds kAwake(300);

/// Takes a lock that nobody keeps for long. A thread that finds it taken tries again before it
/// sleeps: the sleep would take many times as long as the other thread needs.
std::unique_lock<std::mutex> take(std::mutex& mutex) {
  constexpr int kTries = 200;
  for (int i = 0; i < kTries; ++i) {
    std::unique_lock lock(mutex, std::try_to_lock);
    if (lock) return lock;
  }
  return std::unique_lock(mutex);
}

std::chrono::nanoseconds nanoseconds_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(seconds));
}

}  // namespace

void LocalGroup::enter(int rank) {
  const Lock lock(mutex_);
  ranks_[rank].heartbeat.emplace([clock = clock_of_this_thread()] { return seconds_of(clock); });
}

LocalGroup::LocalQueue& LocalGroup::queue_of(const LocalPending& request) {
  const bool send = request.direction() == Direction::Send;
  const int sender = send ? request.rank() : request.peer();
  const int receiver = send ? request.peer() : request.rank();
  const auto [entry, added] = queues_.try_emplace({sender, receiver, request.lane()}, &memory_);
  if (added && shuffled()) {
    // The delays of a queue depend on the seed and the queue alone, not on the timing of threads.
    std::seed_seq seed{*options_.shuffle_seed, *options_.shuffle_seed >> 32, std::uint64_t(sender),
                       std::uint64_t(receiver), std::uint64_t(request.lane())};
    entry->second.random.seed(seed);
  }
  return entry->second;
}

// A shuffled group draws the delay of the message here; in others a matched message is due at once.
void LocalGroup::match(LocalQueue& queue) {
  if (queue.due || queue.sends.empty() || queue.receives.empty()) return;
  LocalPending* send = queue.sends.front();
  LocalPending* receive = queue.receives.front();
  if (!send || !receive) return;
  queue.due = Clock::time_point::min();
  if (shuffled()) {
    const double delay_s = std::uniform_real_distribution<>(0, options_.max_delay_s)(queue.random);
    queue.due = Clock::now() + nanoseconds_of(delay_s);
    // Both ranks may be asleep until some other time.
    ranks_[send->rank()].wake.notify_all();
    ranks_[receive->rank()].wake.notify_all();
  }
}

bool LocalGroup::is_due(const LocalQueue& queue) const {
  return queue.due && !queue.copying && !failure_ && (!shuffled() || *queue.due <= Clock::now());
}

void LocalGroup::pass_front(Lock& lock, int rank, LocalQueue& queue) {
  LocalPending& send = *queue.sends.front();
  LocalPending& receive = *queue.receives.front();
  if (!is_same(send.label(), receive.label())) {
    fail_group(rank, difference_text(send.rank(), send.label(), receive.rank(), receive.label()));
    return;
  }
  if (send.bytes() != receive.bytes()) {
    fail_group(rank, fmt::format("rank {} sends {} to rank {} on lane {}, which receives {}"
                                 "; equal sizes are required",
                                 send.rank(), count_of(send.bytes(), "byte"), receive.rank(),
                                 send.lane(), count_of(receive.bytes(), "byte")));
    return;
  }
  // The two sides leave the queue before they are told: their owners may free them then.
  const bool zero_copy = send.can_share_with(receive);
  if (!zero_copy) copy(lock, send, receive, queue);
  queue.sends.pop_front();
  queue.receives.pop_front();
  queue.due.reset();
  if (zero_copy) {
    send.share_with(receive);
  } else {
    set_done(send);
  }
  set_done(receive);
  match(queue);
}

void LocalGroup::copy(Lock& lock, const LocalPending& send, const LocalPending& receive,
                      LocalQueue& queue) {
  LocalRank& sender = ranks_[send.rank()];
  LocalRank& receiver = ranks_[receive.rank()];
  // Both ranks are marked, so that neither frees its memory, and the queue, so that no other rank
  // passes the message too.
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
  LocalRank& rank = ranks_[request.rank()];
  request.set_done(++messages_done_);
  rank.heartbeat->message_done();
  rank.wake.notify_all();
}

void LocalGroup::give_back(LocalPending& receive) {
  const Lock lock = take(mutex_);
  if (LocalPending* const send = receive.end_zero_copy()) set_done(*send);
}

void LocalGroup::throw_if_failed(int rank) {
  if (!failed_.load(std::memory_order_acquire)) return;
  Lock lock(mutex_);
  throw_if_failed(lock, rank);
}

// Also passes messages that come due during a copy: the ranks that started them found the queue
// busy and left them to this rank.
void LocalGroup::copy_due(Lock& lock, int rank, LocalQueue& queue) {
  while (is_due(queue)) pass_front(lock, rank, queue);
}

// A rank that starts one message copies it itself. If it has several, the later ones would wait for
// the first, while a receiver that waits has nothing else to do, and the bytes that it copies end
// up in its own cache.
void LocalGroup::ask_receivers(std::span<LocalPending* const> started) {
  const auto due = [&](const LocalPending* request) { return is_due(queue_of(*request)); };
  if (std::ranges::count_if(started, due) < 2) return;
  for (const LocalPending* request : started) {
    if (request->direction() == Direction::Receive || !due(request)) continue;
    LocalRank& receiver = ranks_[request->peer()];
    receiver.asked_to_copy.store(true, std::memory_order_relaxed);
    receiver.wake.notify_all();
  }
}

void LocalGroup::copy_received(Lock& lock, int rank, std::span<const Request> requests) {
  ranks_[rank].asked_to_copy.store(false, std::memory_order_relaxed);
  ranks_[rank].has_due_left.store(false, std::memory_order_relaxed);
  if (shuffled()) return;
  for (const Request& request : requests) {
    if (!request || request->direction() == Direction::Send) continue;
    LocalQueue& queue = queue_of(static_cast<const LocalPending&>(*request));
    while (first_done(requests) == requests.size() && is_due(queue)) pass_front(lock, rank, queue);
    // A rank that started a message while this rank was copying has left the message to it.
    if (is_due(queue)) ranks_[rank].has_due_left.store(true, std::memory_order_relaxed);
  }
}

// Messages are passed in the order of their due times, so that a rank that looks late does not
// change the order.
void LocalGroup::copy_all_due(Lock& lock, int rank) {
  while (shuffled()) {
    LocalQueue* next = nullptr;
    for (auto& [key, queue] : queues_) {
      if (is_due(queue) && (!next || *queue.due < *next->due)) next = &queue;
    }
    if (!next) return;
    pass_front(lock, rank, *next);
  }
}

LocalGroup::Clock::time_point LocalGroup::next_due() const {
  Clock::time_point next = Clock::time_point::max();
  if (!shuffled()) return next;
  for (const auto& [key, queue] : queues_) {
    if (queue.due && !queue.copying) next = std::min(next, *queue.due);
  }
  return next;
}

void LocalGroup::start(int rank, std::span<const Message> batch, std::span<Request> requests,
                       std::pmr::memory_resource* memory) {
  // Requests are made without the lock: they allocate.
  std::pmr::vector<LocalPending*> started(memory);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    auto request = std::allocate_shared<LocalPending>(
        std::pmr::polymorphic_allocator<LocalPending>(memory), *this, rank, batch[i], memory);
    started.push_back(request.get());
    requests[i] = std::move(request);
  }
  Lock lock = take(mutex_);
  throw_if_failed(lock, rank);
  // The whole batch is queued before anything is copied, so that peers need not wait for the copies
  // of this rank.
  for (LocalPending* request : started) {
    LocalQueue& queue = queue_of(*request);
    (request->direction() == Direction::Send ? queue.sends : queue.receives).push_back(request);
    match(queue);
  }
  if (shuffled()) return;
  // Receives first: a peer that waits wakes in the meantime and copies what this rank sends to it.
  ask_receivers(started);
  for (const Direction direction : {Direction::Receive, Direction::Send}) {
    for (LocalPending* request : started) {
      if (request->direction() == direction) copy_due(lock, rank, queue_of(*request));
    }
  }
  throw_if_failed(lock, rank);
}

bool LocalGroup::is_complete(int rank, const LocalPending& request) {
  if (request.is_complete()) return true;
  // The lock is taken only if there may be something to do: a copy to make, or an error to throw.
  const bool left = ranks_[rank].has_due_left.load(std::memory_order_relaxed);
  if (!shuffled() && !left && !failed_.load(std::memory_order_acquire)) return false;
  Lock lock = take(mutex_);
  copy_all_due(lock, rank);
  if (left && request.direction() == Direction::Receive) {
    copy_due(lock, rank, queue_of(request));
  }
  if (request.is_complete()) return true;
  throw_if_failed(lock, rank);
  return false;
}

std::size_t LocalGroup::stay_awake(int rank, std::span<const Request> requests,
                                   Clock::time_point until) const {
  while (true) {
    const std::size_t index = first_done(requests);
    if (index < requests.size()) return index;
    if (ranks_[rank].asked_to_copy.load(std::memory_order_relaxed)) return index;
    if (Clock::now() >= until) return index;
    std::this_thread::yield();
  }
}

std::size_t LocalGroup::wait_any(int rank, std::span<const Request> requests, double timeout_s,
                                 const std::function<std::string()>& describe) {
  const Clock::time_point begin = Clock::now();
  // Most waits are over before the first look at the peers.
  const auto between_looks = nanoseconds_of(Watch::interval_of(timeout_s) / 2);
  Clock::time_point next_look = begin + between_looks;
  std::optional<LongWait> wait;
  // In a shuffled group ranks that wait make the copies, each at its time, so none polls.
  const Clock::time_point awake_until = shuffled() ? begin : begin + kAwake;
  while (true) {
    // First without the lock, then pass what is due, then sleep until a peer wakes this rank.
    std::size_t index = stay_awake(rank, requests, awake_until);
    if (index < requests.size()) return index;
    Lock lock = take(mutex_);
    copy_all_due(lock, rank);
    copy_received(lock, rank, requests);
    index = first_done(requests);
    if (index < requests.size()) return index;
    throw_if_failed(lock, rank);
    const Clock::time_point now = Clock::now();
    if (now >= next_look) {
      next_look = now + between_looks;
      if (!wait) {
        const WatchOptions options{
            .rank = rank, .peers = peers_of(requests), .timeout_s = timeout_s};
        wait.emplace(*ranks_[rank].heartbeat, options, seconds_of(begin));
      }
      if (!is_expired(wait->watch)) continue;
      const double waited_s = std::chrono::duration<double>(now - begin).count();
      fail_group(rank, fmt::format("wait: {} not done after {:.3g} s{}{}", describe(), waited_s,
                                   zero_copy_text(requests), blame(wait->watch)));
    } else if (now >= awake_until) {
      ranks_[rank].wake.wait_until(lock, std::min(next_look, next_due()));
    }
  }
}

void LocalGroup::watch_peers(int rank, std::optional<LongWait>& wait,
                             const PeerWaitOptions& options, double begin_s) {
  const Lock lock(mutex_);
  if (!wait) {
    wait.emplace(*ranks_[rank].heartbeat,
                 WatchOptions{.rank = rank, .peers = options.peers, .timeout_s = options.timeout_s},
                 begin_s);
  }
  if (!is_expired(wait->watch)) return;
  fail_group(rank, fmt::format("{} after {:.3g} s{}", options.describe(),
                               seconds_of(Clock::now()) - begin_s, blame(wait->watch)));
}

std::string LocalGroup::blame(const Watch& watch) {
  return watch.reason([](int rank) { return fmt::format("rank {}", rank); });
}

bool LocalGroup::is_expired(Watch& watch) {
  for (const int peer : watch.tick(seconds_of(Clock::now()))) {
    if (ranks_[peer].heartbeat) watch.hear(peer, ranks_[peer].heartbeat->take());
  }
  return watch.expired();
}

void LocalGroup::withdraw(LocalPending* request) {
  Lock lock(mutex_);
  // A copy that runs now may complete the message.
  wait_for_copies(lock, request->rank());
  if (request->is_complete()) return;
  if (request->is_shared()) {
    // This send is dropped while the receiver still reads its memory. The receiver holds a
    // reference that keeps the memory alive (Message::owner), and gets the CommError when it gives
    // it back.
    request->end_zero_copy();
  } else {
    LocalQueue& queue = queue_of(*request);
    auto& side = request->direction() == Direction::Send ? queue.sends : queue.receives;
    const auto place = std::find(side.begin(), side.end(), request);
    if (place == side.end()) return;  // Refused before it was queued.
    if (place == side.begin()) queue.due.reset();
    *place = nullptr;
  }
  // A rank that unwinds has an error that says more: run_ranks() aborts the group with it.
  if (std::uncaught_exceptions() == 0) {
    fail_group(request->rank(),
               fmt::format("rank {} dropped a request of {} with rank {} on lane {} before it "
                           "was done",
                           request->rank(), count_of(request->bytes(), "byte"), request->peer(),
                           request->lane()));
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
  for (LocalRank& other : ranks_) other.wake.notify_all();
}

void LocalGroup::throw_if_failed(Lock& lock, int rank) {
  if (!failure_) return;
  // The caller will free its memory, so copies must have ended. None begins in a failed group.
  wait_for_copies(lock, rank);
  throw error();
}

void LocalGroup::wait_for_copies(Lock& lock, int rank) {
  ranks_[rank].wake.wait(lock, [&] { return ranks_[rank].copies == 0; });
}

}  // namespace armillary::comm

#include "armillary/comm/local_group.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "armillary/comm/strided.h"

namespace armillary::comm {
namespace {

// A rank that waits first yields, for so long: a peer that runs answers meanwhile. One that sleeps
// is woken on the core of who wakes it, and both share it then for milliseconds.
constexpr std::chrono::microseconds kAwake(300);

std::chrono::nanoseconds nanoseconds_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(seconds));
}

}  // namespace

LocalGroup::Queue& LocalGroup::queue_of(const LocalPending& request) {
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
    queue.due = Clock::now() + nanoseconds_of(delay_s);
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
  if (!failed_.load(std::memory_order_acquire)) return;
  Lock lock(mutex_);
  throw_if_failed(lock, rank);
}

/// Copies what is due, for `rank`, which also goes on with what comes due meanwhile: whoever finds
/// the queue copying leaves it alone, so that messages of a queue end in order.
void LocalGroup::copy_due(Lock& lock, int rank, Queue& queue) {
  while (is_due(queue)) pass_front(lock, rank, queue);
}

/// Receivers of what is sent, if that is not copied at once: one that waits has nothing else to do,
/// and what it copies ends up in its cache.
void LocalGroup::call_receivers(std::span<LocalPending* const> started) {
  const auto due = [&](const LocalPending* request) { return is_due(queue_of(*request)); };
  if (std::ranges::count_if(started, due) < 2) return;
  for (const LocalPending* request : started) {
    if (request->direction() == Direction::Receive || !due(request)) continue;
    Rank& receiver = ranks_[request->peer()];
    receiver.called.store(true, std::memory_order_relaxed);
    receiver.wake.notify_all();
  }
}

/// Of a rank that waits: until one of the requests is done.
void LocalGroup::copy_received(Lock& lock, int rank, std::span<const Request> requests) {
  ranks_[rank].called.store(false, std::memory_order_relaxed);
  ranks_[rank].left.store(false, std::memory_order_relaxed);
  if (shuffled()) return;
  for (const Request& request : requests) {
    if (!request || request->direction() == Direction::Send) continue;
    Queue& queue = queue_of(static_cast<const LocalPending&>(*request));
    while (first_done(requests) == requests.size() && is_due(queue)) pass_front(lock, rank, queue);
    // Whoever came while this rank was copying has left the next to it.
    if (is_due(queue)) ranks_[rank].left.store(true, std::memory_order_relaxed);
  }
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
  // After all are in their queues, so that peers need not wait for our copies. Ours first: a peer
  // that waits wakes meanwhile, and copies its own.
  call_receivers(started);
  for (const Direction direction : {Direction::Receive, Direction::Send}) {
    for (LocalPending* request : started) {
      if (request->direction() == direction) copy_due(lock, rank, queue_of(*request));
    }
  }
  throw_if_failed(lock, rank);
}

bool LocalGroup::done(int rank, const LocalPending& request) {
  if (request.done()) return true;
  const bool left = ranks_[rank].left.load(std::memory_order_relaxed);
  if (!shuffled() && !left && !failed_.load(std::memory_order_acquire)) return false;
  Lock lock(mutex_);
  copy_all_due(lock, rank);
  if (left && request.direction() == Direction::Receive) {
    copy_due(lock, rank, queue_of(request));
  }
  if (request.done()) return true;
  throw_if_failed(lock, rank);
  return false;
}

/// First of the requests that are done; requests.size() if time is over, or a copy may be made.
std::size_t LocalGroup::stay_awake(int rank, std::span<const Request> requests,
                                   Clock::time_point until) const {
  while (true) {
    const std::size_t index = first_done(requests);
    if (index < requests.size()) return index;
    if (ranks_[rank].called.load(std::memory_order_relaxed) || Clock::now() >= until) return index;
    std::this_thread::yield();
  }
}

std::size_t LocalGroup::wait_any(int rank, std::span<const Request> requests, double timeout_s,
                                 const std::function<std::string()>& describe) {
  const Clock::time_point begin = Clock::now();
  const Clock::time_point deadline = begin + nanoseconds_of(timeout_s);
  // Shuffled copies are for those that wait to make, each at its time.
  const Clock::time_point awake_until = shuffled() ? begin : std::min(deadline, begin + kAwake);
  while (true) {
    std::size_t index = stay_awake(rank, requests, awake_until);
    if (index < requests.size()) return index;
    Lock lock(mutex_);
    copy_all_due(lock, rank);
    copy_received(lock, rank, requests);
    index = first_done(requests);
    if (index < requests.size()) return index;
    throw_if_failed(lock, rank);
    const Clock::time_point now = Clock::now();
    if (now >= deadline) {
      const double waited_s = std::chrono::duration<double>(now - begin).count();
      fail_group(rank, fmt::format("wait: {} not done after {:.3g} s{}", describe(), waited_s,
                                   loans_text(requests)));
    } else if (now >= awake_until) {
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

}  // namespace armillary::comm

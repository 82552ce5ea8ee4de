// Messages between processes. A message is given to Gloo when it starts, and Gloo moves it by a
// thread of its own; what remains is to learn that it is over. The order of this file: starting;
// waiting, by the rank and by workers; failure and the end of a group.
#include "armillary/comm/c10d/group.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <limits>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

// A rank whose workers wait yields its core between looks for so long, then it sleeps.
constexpr std::chrono::microseconds kAwake(100);
// A peer whose connection broke has so long to tell its reason.
constexpr std::chrono::milliseconds kReason(500);

}  // namespace

C10dPending::~C10dPending() {
  if (queue_ && !is_complete()) group_.withdraw(*this);
}

std::size_t first_c10d_done(std::span<const Request> requests) {
  std::size_t first = requests.size();
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (!requests[i]) continue;
    const std::uint64_t place = static_cast<const C10dPending&>(*requests[i]).place();
    if (place == 0 || place >= least) continue;  // Not done, or done later.
    first = i;
    least = place;
  }
  return first;
}

C10dGroup::C10dGroup(C10dConnections connections, double timeout_s)
    : store_(std::move(connections.store)),
      data_(std::move(connections.data)),
      leave_timeout_s_(timeout_s),
      heartbeat_([clock = ComputeClock()]() mutable { return clock.seconds(); }) {
  const std::vector<PeerProcess> processes = connections.processes;
  abort_channel_.emplace(std::move(connections.control), std::move(connections.processes),
                         heartbeat_,
                         C10dAbortChannelHooks{.on_raise = [this] { interrupt_all(); },
                                               .on_answer =
                                                   [this](int rank, const Heartbeat& heartbeat) {
                                                     const Lock lock(mutex_);
                                                     if (watchdog_)
                                                       watchdog_->hear(rank, heartbeat);
                                                   }});
  auto watchdog = std::make_unique<Watchdog>(
      rank(), processes, heartbeat_,
      WatchdogHooks{.ask = [this](int rank) { abort_channel_->ask(rank); },
                    .expired =
                        [this](const std::string& reason) {
                          went_on_ = true;
                          abort_channel_->raise(this->rank(), reason);
                        },
                    .name = [this](int rank) { return abort_channel_->name(rank); }});
  const Lock lock(mutex_);
  watchdog_ = std::move(watchdog);
}

C10dGroup::~C10dGroup() {
  std::unique_ptr<Watchdog> watchdog;
  {
    const Lock lock(mutex_);
    closing_ = true;
    watchdog.swap(watchdog_);
  }
  watchdog.reset();
  has_work_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  if (abort_channel_->raised()) close_connections();
}

void C10dGroup::start(std::span<const Message> batch, std::span<Request> requests) {
  throw_if_failed();
  // All messages are made, and packed, before the first of them is under way.
  std::vector<C10dPending*> started;
  started.reserve(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].lane >= kMostC10dLanes) {
      fail<CommError>("split: lane {} of {} that have tags; fewer groups are required",
                      batch[i].lane, kMostC10dLanes);
    }
    auto request = std::make_shared<C10dPending>(*this, buffers_, batch[i]);
    started.push_back(request.get());
    requests[i] = std::move(request);
  }
  // Receives first: Gloo sends when the peer has told that its memory is there.
  for (const Direction direction : {Direction::Receive, Direction::Send}) {
    for (C10dPending* message : started) {
      if (message->direction() != direction) continue;
      try {
        message->transfer().post(*data_);
      } catch (const std::exception& e) {
        message->transfer().release();
        lose(message->peer(), first_line(e));
        throw_if_failed();
      }
      const Lock lock(mutex_);
      Queue& queue = queues_[{direction, message->peer(), message->lane()}];
      message->set_queue(queue);
      queue.messages.push_back(message);
    }
  }
  std::vector<GlooWork> dropped;
  {
    const Lock lock(mutex_);
    dropped = std::exchange(long_over_, std::exchange(over_, {}));
  }
  throw_if_failed();
}

// The lock is free while Gloo is waited for: the message stays, because only the waiter of its
// queue removes it, and a rank that drops it waits for the waiter.
bool C10dGroup::finish_first(Lock& lock, Queue& queue) {
  C10dPending* const message = queue.messages.front();
  C10dTransfer& transfer = message->transfer();
  lock.unlock();
  auto outcome = C10dTransfer::TransferEnd::Interrupted;
  try {
    outcome = transfer.finish(kForever);
  } catch (const std::exception& e) {
    lose(transfer.peer(), first_line(e));
  }
  if (outcome == C10dTransfer::TransferEnd::OtherSize) {
    abort_channel_->raise(
        rank(), fmt::format("rank {} sends {} to rank {} on lane {}, which receives "
                            "{}; equal sizes are required",
                            transfer.peer(), count_of(transfer.sent_bytes(), "byte"), rank(),
                            message->lane(), count_of(transfer.bytes(), "byte")));
  }
  if (outcome == C10dTransfer::TransferEnd::OtherLabel) {
    abort_channel_->raise(
        rank(), difference_text(transfer.peer(), transfer.sent_label(), rank(), transfer.label()));
  }
  // A message that is not done stays first, for whoever settles the failure or withdraws it.
  lock.lock();
  if (outcome != C10dTransfer::TransferEnd::Done) return false;
  queue.messages.pop_front();
  std::ranges::move(transfer.take_works(), std::back_inserter(over_));
  heartbeat_.message_done();
  message->set_done(++messages_done_);  // The owner may free it from now on.
  changed_.notify_all();
  return true;
}

// Workers are started when all that are there have a queue, and live as long as the group. Their
// number is that of the queues that were under way at the same time.
void C10dGroup::hand_over(Queue& queue) {
  if (queue.has_waiter || queue.messages.empty() || abort_channel_->raised()) return;
  queue.has_waiter = true;
  handed_over_.push_back(&queue);
  if (idle_workers_ >= static_cast<int>(handed_over_.size())) {
    has_work_.notify_one();
  } else {
    workers_.emplace_back([this] { work(); });
  }
}

void C10dGroup::work() {
  Lock lock(mutex_);
  while (true) {
    ++idle_workers_;
    has_work_.wait(lock, [&] { return closing_ || !handed_over_.empty(); });
    --idle_workers_;
    if (closing_) return;
    Queue& queue = *handed_over_.front();
    handed_over_.pop_front();
    while (!queue.messages.empty() && finish_first(lock, queue)) {
    }
    queue.has_waiter = false;
    changed_.notify_all();
  }
}

bool C10dGroup::is_complete(const C10dPending& request) {
  if (request.is_complete()) return true;
  throw_if_failed();
  const Lock lock(mutex_);
  hand_over(request.queue());
  return request.is_complete();
}

// A rank that waits for one message is woken by Gloo's thread itself, like a rank without this
// engine.
void C10dGroup::finish_until(Lock& lock, const C10dPending& request) {
  Queue& queue = request.queue();
  if (queue.has_waiter) return;
  queue.has_waiter = true;
  while (!request.is_complete() && !abort_channel_->raised() && finish_first(lock, queue)) {
  }
  queue.has_waiter = false;
}

std::size_t C10dGroup::wait_any(std::span<const Request> requests, double timeout_s,
                                const std::function<std::string()>& describe) {
  std::size_t index = first_c10d_done(requests);
  if (index < requests.size()) return index;
  throw_if_failed();
  const Clock::time_point begin = Clock::now();
  const Watchdog::Waiting waiting(*watchdog_, requests, timeout_s, describe);
  {
    Lock lock(mutex_);
    const auto is_one = [](const Request& request) { return request != nullptr; };
    if (std::ranges::count_if(requests, is_one) == 1) {
      const auto one = std::ranges::find_if(requests, is_one);
      finish_until(lock, static_cast<const C10dPending&>(**one));
    }
    for (const Request& request : requests) {
      if (request) hand_over(static_cast<const C10dPending&>(*request).queue());
    }
  }
  // Messages that workers wait for: often they are over soon.
  while (true) {
    index = first_c10d_done(requests);
    if (index < requests.size()) return index;
    throw_if_failed();
    if (Clock::now() - begin < kAwake) {
      std::this_thread::yield();
    } else {
      Lock lock(mutex_);
      changed_.wait(lock, [&] {
        return abort_channel_->raised() || first_c10d_done(requests) < requests.size();
      });
    }
  }
}

namespace {

/// The watchdog looks by itself.
class WatchedWait : public PeerWait {
 public:
  WatchedWait(Watchdog& watchdog, PeerWaitOptions options)
      : options_(std::move(options)), waiting_(watchdog, options_) {}
  void look() override {}

 private:
  const PeerWaitOptions options_;
  const Watchdog::Waiting waiting_;
};

}  // namespace

std::unique_ptr<PeerWait> C10dGroup::begin_peer_wait(PeerWaitOptions options) {
  return std::make_unique<WatchedWait>(*watchdog_, std::move(options));
}

void C10dGroup::withdraw(C10dPending& request) {
  // A rank that unwinds has an error that says more: the group fails with it.
  if (std::uncaught_exceptions() == 0) {
    abort(
        fmt::format("rank {} dropped a request of {} with rank {} on lane {} before it was "
                    "done",
                    rank(), count_of(request.bytes(), "byte"), request.peer(), request.lane()));
  }
  Lock lock(mutex_);
  if (request.is_complete()) return;
  Queue& queue = request.queue();
  request.transfer().interrupt();
  changed_.wait(lock, [&] {
    const bool is_first = !queue.messages.empty() && queue.messages.front() == &request;
    return request.is_complete() || !is_first || !queue.has_waiter;
  });
  std::erase(queue.messages, &request);
  request.transfer().release();
}

std::optional<int> C10dGroup::failed_rank() const {
  return abort_channel_->raised() ? std::optional(abort_channel_->failed_rank()) : std::nullopt;
}

void C10dGroup::throw_if_failed() {
  if (!abort_channel_->raised()) return;
  settle();
  throw abort_channel_->error();
}

void C10dGroup::leave() {
  heartbeat_.leave();
  const Watchdog::Waiting waiting(*watchdog_, leave_timeout_s_);
  abort_channel_->leave();
}

void C10dGroup::wait_told(double most_s) {
  if (went_on_ || failed_rank() != rank()) return;
  const std::chrono::duration<double> time(most_s);
  went_on_ =
      !abort_channel_->wait_told(std::chrono::duration_cast<std::chrono::milliseconds>(time));
}

void C10dGroup::abort(const std::string& reason) noexcept {
  try {
    abort_channel_->raise(rank(), reason);
  } catch (const std::exception&) {
    // No memory for the text: the deadlines of the peers end the group.
  }
}

// A peer that fails tells why on the connections of the abort channel, and closes those of the
// data: the second is often seen first.
void C10dGroup::lose(int peer, const std::string& reason) {
  if (abort_channel_->wait_raised(kReason)) return;
  abort_channel_->raise(peer, fmt::format("its connection broke: {}", reason));
}

// A wait that has begun ends, and one that is about to begin ends at once.
void C10dGroup::interrupt_all() {
  {
    const Lock lock(mutex_);
    for (auto& [key, queue] : queues_) {
      for (C10dPending* message : queue.messages) message->transfer().interrupt();
    }
  }
  changed_.notify_all();
}

// The rank may throw only after this: Gloo's thread, and workers that unpack, use memory of
// messages that are under way.
void C10dGroup::settle() {
  Lock lock(mutex_);
  for (auto& [key, queue] : queues_) {
    for (C10dPending* message : queue.messages) message->transfer().interrupt();
    changed_.wait(lock, [&, &queue = queue] { return !queue.has_waiter; });
    for (C10dPending* message : queue.messages) message->transfer().release();
    queue.messages.clear();
  }
}

// Gloo closes them if a wait times out. No message has this tag.
void C10dGroup::close_connections() {
  if (world() == 1) return;  // Gloo would wait for a peer that never comes.
  const int peer = rank() == 0 ? 1 : 0;
  try {
    std::byte nothing{};
    gloo_receive(*data_, &nothing, 1, peer, std::numeric_limits<int>::max())
        ->wait(std::chrono::milliseconds(1));
  } catch (const std::exception&) {
    // They are closed.
  }
}

}  // namespace armillary::comm

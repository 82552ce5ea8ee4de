// watchdog.cpp: the thread beside a rank that waits. It sleeps until a wait has lasted a part of
// its timeout, then asks the peers for their progress at intervals and gives the answers to a Watch
// (heartbeat.h), which decides whether the timeout has passed. Its text is made while the wait
// still holds its requests.
#include "armillary/comm/liveness/watchdog.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

namespace armillary::comm {
namespace {

// A wait that begins is seen within this time.
constexpr double kIdle = 0.02;

std::chrono::nanoseconds as_time(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(seconds));
}

}  // namespace

Watchdog::Watchdog(int rank, const std::vector<PeerProcess>& processes, OwnHeartbeat& heartbeat,
                   WatchdogHooks hooks)
    : rank_(rank),
      world_(static_cast<int>(processes.size())),
      heartbeat_(heartbeat),
      hooks_(std::move(hooks)),
      stops_(rank, processes) {
  thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Watchdog::Waiting::Waiting(Watchdog& watchdog, std::span<const Request> requests, double timeout_s,
                           const std::function<std::string()>& describe)
    : watchdog_(watchdog) {
  watchdog_.begin({Clock::now(), timeout_s, requests, &describe, nullptr});
}

Watchdog::Waiting::Waiting(Watchdog& watchdog, double timeout_s) : watchdog_(watchdog) {
  watchdog_.begin({Clock::now(), timeout_s, {}, nullptr, nullptr});
}

Watchdog::Waiting::Waiting(Watchdog& watchdog, const PeerWaitOptions& options)
    : watchdog_(watchdog) {
  watchdog_.begin({Clock::now(), options.timeout_s, {}, &options.describe, &options.peers});
}

Watchdog::Waiting::~Waiting() {
  const std::lock_guard lock(watchdog_.mutex_);
  watchdog_.current_.reset();
  watchdog_.wait_.reset();
}

void Watchdog::begin(const Current& current) {
  const std::lock_guard lock(mutex_);
  current_ = current;
  told_ = false;
}

void Watchdog::hear(int rank, const Heartbeat& heartbeat) {
  const std::lock_guard lock(mutex_);
  if (wait_) wait_->watch.hear(rank, heartbeat);
}

void Watchdog::run() {
  call_this_thread_a_helper();
  std::unique_lock lock(mutex_);
  while (!closing_) {
    // Most waits are over before they are seen. Deadlines that are short are looked at more often.
    const double interval_s = current_ ? Watch::interval_of(current_->timeout_s) / 2 : kIdle;
    changed_.wait_for(lock, as_time(std::min(interval_s, kIdle)), [&] { return closing_; });
    if (closing_) return;
    stops_.look(seconds_of(Clock::now()));
    if (!current_ || told_) continue;
    if (const std::optional<std::string> reason = look()) {
      told_ = true;
      // Not under the lock: the engine raises its abort channel here, which may be giving an answer
      // to hear().
      lock.unlock();
      hooks_.expired(*reason);
      lock.lock();
    }
  }
}

std::optional<std::string> Watchdog::look() {
  const Clock::time_point now = Clock::now();
  if (now - current_->begin < as_time(Watch::interval_of(current_->timeout_s) / 2)) return {};
  if (!wait_) {
    const bool leaves = current_->describe == nullptr;
    std::vector<int> peers = current_->peers ? *current_->peers : peers_of(current_->requests);
    // A rank leaves when all others have ended, so it depends on every one.
    if (leaves) {
      peers.resize(world_);
      std::iota(peers.begin(), peers.end(), 0);
      std::erase(peers, rank_);
    }
    wait_.emplace(heartbeat_,
                  WatchOptions{.rank = rank_,
                               .peers = peers,
                               .timeout_s = current_->timeout_s,
                               .what = leaves ? WatchFor::Leaving : WatchFor::Messages},
                  seconds_of(current_->begin));
  }
  for (const int rank : wait_->watch.tick(seconds_of(now))) hooks_.ask(rank);
  wait_->watch.see_stopped(stops_.stopped(), seconds_of(now));
  if (!wait_->watch.expired()) return {};
  return text_of_expiry();
}

std::string Watchdog::text_of_expiry() const {
  const double waited_s = seconds_of(Clock::now()) - seconds_of(current_->begin);
  const std::string reason = wait_->watch.reason(hooks_.name);
  if (current_->describe == nullptr) {
    return fmt::format("leave: rank {} has waited {:.3g} s for the others to end{}", rank_,
                       waited_s, reason);
  }
  if (current_->peers != nullptr) {
    return fmt::format("{} after {:.3g} s{}", (*current_->describe)(), waited_s, reason);
  }
  return fmt::format("wait: {} not done after {:.3g} s{}", (*current_->describe)(), waited_s,
                     reason);
}

}  // namespace armillary::comm

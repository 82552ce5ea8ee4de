// The graph of waits as far as it is known: answers tell who waits for whom, and each rank that is
// reached that way is asked too.
#include "armillary/comm/liveness/heartbeat.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace armillary::comm {
namespace {

constexpr std::size_t kMostPeersTold = 240;
// A rank that computes has at least this part of a core, also on a machine that is busy. Threads
// that look for messages have less.
constexpr double kUsedPart = 0.03;
// Looks that follow each other sooner tell nothing.
constexpr double kShortestLook = 0.005;

/// The head of a heartbeat as bytes; ranks follow.
struct Head {
  std::uint64_t progress = 0;
  std::uint32_t left = 0;
  std::uint32_t peers = 0;
};

double seconds_now() {
  return seconds_of(std::chrono::steady_clock::now());
}

}  // namespace

HeartbeatBytes to_bytes(const Heartbeat& heartbeat) {
  const std::size_t peers = std::min(heartbeat.waits_for.size(), kMostPeersTold);
  const Head head{heartbeat.progress, heartbeat.left ? 1U : 0U, static_cast<std::uint32_t>(peers)};
  HeartbeatBytes bytes{};
  std::memcpy(bytes.data(), &head, sizeof head);
  if (peers > 0)
    std::memcpy(bytes.data() + sizeof head, heartbeat.waits_for.data(), peers * sizeof(int));
  return bytes;
}

Heartbeat heartbeat_of(const HeartbeatBytes& bytes) {
  Head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  Heartbeat heartbeat{.progress = head.progress, .left = head.left != 0, .waits_for = {}};
  heartbeat.waits_for.resize(std::min<std::size_t>(head.peers, kMostPeersTold));
  if (head.peers > 0) {
    std::memcpy(heartbeat.waits_for.data(), bytes.data() + sizeof head,
                heartbeat.waits_for.size() * sizeof(int));
  }
  return heartbeat;
}

std::vector<int> peers_of(std::span<const Request> requests) {
  std::vector<int> peers;
  for (const Request& request : requests) {
    if (request) peers.push_back(request->peer());
  }
  std::ranges::sort(peers);
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

OwnHeartbeat::OwnHeartbeat(std::function<double()> used_s)
    : used_s_(std::move(used_s)), looked_at_s_(seconds_now()), used_then_s_(used_s_()) {}

void OwnHeartbeat::begin_wait(std::vector<int> peers) {
  const std::lock_guard lock(mutex_);
  waits_ = true;
  waits_for_ = std::move(peers);
}

// The core that the wait has used, by looking for messages, is no progress, but its end is: until
// now the rank was as far as those that it waited for.
void OwnHeartbeat::end_wait() {
  const std::lock_guard lock(mutex_);
  if (waits_) ++computed_;
  waits_ = false;
  waits_for_.clear();
  looked_at_s_ = seconds_now();
  used_then_s_ = used_s_();
}

void OwnHeartbeat::leave() {
  const std::lock_guard lock(mutex_);
  left_ = true;
}

Heartbeat OwnHeartbeat::take() {
  const std::lock_guard lock(mutex_);
  const double now_s = seconds_now();
  const double passed_s = now_s - looked_at_s_;
  if (!waits_ && !left_ && passed_s >= kShortestLook) {
    const double used_s = used_s_();
    if (used_s - used_then_s_ >= kUsedPart * passed_s) ++computed_;
    looked_at_s_ = now_s;
    used_then_s_ = used_s;
  }
  return {.progress = computed_ + messages_.load(std::memory_order_relaxed),
          .left = left_,
          .waits_for = left_ ? std::vector<int>() : waits_for_};
}

Watch::Watch(WatchOptions options, double now_s)
    : options_(std::move(options)),
      interval_s_(interval_of(options_.timeout_s)),
      last_tick_s_(now_s) {}

double Watch::interval_of(double timeout_s) {
  return std::clamp(timeout_s / 8, 0.01, 0.25);
}

std::vector<int> Watch::tick(double now_s) {
  time_s_ += std::min(now_s - last_tick_s_, 2 * interval_s_);
  last_tick_s_ = now_s;
  std::vector<int> due;
  for (const int peer : options_.peers) {
    if (options_.what == WatchFor::Leaving && known(peer).heartbeat.left) continue;
    for (const int rank : reachable(peer)) {
      if (rank == options_.rank) continue;
      PeerKnowledge& rank_known = known_[rank];
      if (rank_known.asked_s >= 0 && time_s_ - rank_known.asked_s < interval_s_) continue;
      rank_known.asked_s = time_s_;
      due.push_back(rank);
    }
  }
  return due;
}

// The first answer tells no progress: the rank may have made it before this wait.
void Watch::hear(int rank, const Heartbeat& heartbeat) {
  PeerKnowledge& now = known_[rank];
  if (now.answered && heartbeat.progress > now.heartbeat.progress) now.progress_s = time_s_;
  now.answered = true;
  now.answer_s = time_s_;
  now.heartbeat = heartbeat;
}

void Watch::see_stopped(const std::map<int, double>& since_s, double now_s) {
  for (auto& [rank, one] : known_) {
    if (!since_s.contains(rank)) one.stopped_s.reset();
  }
  for (const auto& [rank, since] : since_s) known_[rank].stopped_s = time_s_ - (now_s - since);
}

const Watch::PeerKnowledge& Watch::known(int rank) const {
  static const PeerKnowledge nothing;
  const auto entry = known_.find(rank);
  return entry == known_.end() ? nothing : entry->second;
}

std::vector<int> Watch::reachable(int from) const {
  std::vector<int> reached{from};
  for (std::size_t i = 0; i < reached.size(); ++i) {
    // A rank that leaves sends nothing more, so whoever still waits for it gets no further through
    // its waits.
    const bool is_self = reached[i] == options_.rank;
    if (is_self && options_.what == WatchFor::Leaving) continue;
    if (known(reached[i]).stopped_s) continue;
    for (const int next : is_self ? options_.peers : known(reached[i]).heartbeat.waits_for) {
      if (std::ranges::find(reached, next) == reached.end()) reached.push_back(next);
    }
  }
  return reached;
}

std::optional<int> Watch::silent_peer() const {
  for (const int peer : options_.peers) {
    if (options_.what == WatchFor::Leaving && known(peer).heartbeat.left) continue;
    if (time_s_ - progress_of(peer) >= options_.timeout_s) return peer;
  }
  return {};
}

double Watch::progress_of(int peer) const {
  if (known(peer).stopped_s) return *known(peer).stopped_s;
  double progress_s = 0;
  for (const int rank : reachable(peer)) {
    if (!known(rank).stopped_s) progress_s = std::max(progress_s, known(rank).progress_s);
  }
  return progress_s;
}

bool Watch::answers(int rank) const {
  return known(rank).answered && !known(rank).stopped_s &&
         time_s_ - known(rank).answer_s < 4 * interval_s_ + 0.1;
}

std::optional<int> Watch::culprit() const {
  const std::optional<int> peer = silent_peer();
  if (!peer) return {};
  std::vector<int> ranks = reachable(*peer);
  std::erase(ranks, options_.rank);
  const auto stopped =
      std::ranges::find_if(ranks, [&](int rank) { return known(rank).stopped_s.has_value(); });
  if (stopped != ranks.end()) return *stopped;
  const auto unheard = std::ranges::find_if(ranks, [&](int rank) { return !answers(rank); });
  if (unheard != ranks.end()) return *unheard;
  const auto idle = std::ranges::find_if(
      ranks, [&](int rank) { return known(rank).heartbeat.waits_for.empty(); });
  return idle == ranks.end() ? std::nullopt : std::optional(*idle);
}

bool Watch::culprit_is_lost() const {
  const std::optional<int> rank = culprit();
  return rank && !answers(*rank);
}

std::string Watch::reason(const std::function<std::string(int)>& name) const {
  const std::optional<int> rank = culprit();
  if (!rank) return expired() ? "; all of them wait for each other" : "";
  if (known(*rank).stopped_s)
    return fmt::format("; {} does not answer: it is stopped", name(*rank));
  if (!answers(*rank)) return fmt::format("; {} does not answer", name(*rank));
  if (known(*rank).heartbeat.left) return fmt::format("; {} has ended its part", name(*rank));
  return fmt::format("; {} answers, and neither waits for a message nor computes", name(*rank));
}

}  // namespace armillary::comm

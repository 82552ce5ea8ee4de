// Notices of failure and of leaving. Each peer has a thread that waits for its notices, because
// Gloo tells of a message, and of a connection that closed, only to a thread that waits.
#include "armillary/comm/c10d/abort_channel.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace armillary::comm {
namespace {

// Notices that were sent last are given so long to leave this process.
constexpr std::chrono::milliseconds kFlush(200);
// Peers are given so long to hear that this rank has left. Those that are stopped do not.
constexpr std::chrono::milliseconds kHear(1000);

}  // namespace

C10dAbortChannel::C10dAbortChannel(GlooBackend control, std::vector<PeerProcess> processes,
                                   OwnHeartbeat& heartbeat, C10dAbortChannelHooks hooks)
    : control_(std::move(control)),
      processes_(std::move(processes)),
      heartbeat_(heartbeat),
      hooks_(std::move(hooks)) {
  const int world = control_->getSize();
  peers_.resize(world);
  asks_.resize(world);
  answers_.resize(world);
  incoming_.resize(world);
  listening_.resize(world);
  for (int peer = 0; peer < world; ++peer) {
    if (peer != control_->getRank()) threads_.emplace_back([this, peer] { listen(peer); });
  }
}

C10dAbortChannel::~C10dAbortChannel() {
  if (wants_heard_) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kHear, [&] {
      return all_peers([](const Peer& peer) { return peer.heard || peer.left || peer.gone; });
    });
  }
  // A peer that is there receives at once; one that is gone ends the wait with an error.
  const auto end = std::chrono::steady_clock::now() + kFlush;
  for (const GlooNotice* out : pending_notices()) {
    for (const GlooWork& work : out->works) {
      const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(
          end - std::chrono::steady_clock::now());
      try {
        work->wait(std::max(rest, std::chrono::milliseconds(1)));
      } catch (const std::exception&) {
        // The peer has its own ways to learn of the failure.
      }
    }
  }
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    for (const GlooWork& work : listening_) {
      if (work) work->abort();
    }
  }
  for (std::thread& thread : threads_) thread.join();
}

template <class Condition>
bool C10dAbortChannel::all_peers(const Condition& is_so) const {
  for (int rank = 0; rank < control_->getSize(); ++rank) {
    if (rank != control_->getRank() && !is_so(peers_[rank])) return false;
  }
  return true;
}

bool C10dAbortChannel::record(int rank, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (raised()) return false;
    failed_rank_ = rank;
    text_ = reason;
    raised_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  hooks_.on_raise();
  return true;
}

void C10dAbortChannel::raise(int rank, const std::string& reason) {
  const std::lock_guard order(order_);
  if (!record(rank, reason)) return;
  const std::lock_guard lock(mutex_);
  send(Notice::failure(rank, reason), peers());
}

bool C10dAbortChannel::wait_raised(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [&] { return raised(); });
}

bool C10dAbortChannel::wait_told(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [&] {
    return all_peers([](const Peer& peer) { return peer.left || peer.failed || peer.gone; });
  });
}

bool C10dAbortChannel::is_left() {
  const std::lock_guard lock(mutex_);
  if (raised()) return peers_[failed_rank_].went_on;
  return !all_peers([](const Peer& peer) { return !peer.left; });
}

bool C10dAbortChannel::is_told() {
  const std::lock_guard lock(mutex_);
  return peers_[failed_rank_].failed;
}

CommError C10dAbortChannel::error() const {
  return CommError(fmt::format("rank {} failed: {}", failed_rank_, text_));
}

std::vector<const C10dAbortChannel::GlooNotice*> C10dAbortChannel::pending_notices() {
  std::vector<const GlooNotice*> all;
  const std::lock_guard lock(mutex_);
  all.reserve(outgoing_.size());
  for (const GlooNotice& out : outgoing_) all.push_back(&out);
  return all;
}

std::vector<int> C10dAbortChannel::peers() const {
  std::vector<int> ranks(control_->getSize());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::erase(ranks, control_->getRank());
  return ranks;
}

void C10dAbortChannel::send(const Notice& notice, const std::vector<int>& peers) {
  // The list keeps the notice in its place, from which Gloo sends it.
  GlooNotice& out = outgoing_.emplace_back(GlooNotice{notice, {}});
  for (const int peer : peers) {
    try {
      out.works.push_back(
          gloo_send(*control_, reinterpret_cast<std::byte*>(&out.notice), sizeof(Notice), peer, 0));
    } catch (const std::exception&) {
      // A connection that is closed: the thread of that peer tells what it means.
    }
  }
}

// A process that is gone has closed its connections: the operating system does it if the process
// could not. A peer that left has told so before.
void C10dAbortChannel::listen(int peer) {
  call_this_thread_a_helper();
  try {
    listen_to_notices(peer);
  } catch (const std::exception&) {
    {
      const std::lock_guard lock(mutex_);
      peers_[peer].gone = true;
      changed_.notify_all();
      if (peers_[peer].left) return;
    }
    raise(peer, fmt::format("its connection closed: process {} of host {} has ended, or the "
                            "network is down",
                            processes_[peer].pid, processes_[peer].host.data()));
  }
}

void C10dAbortChannel::listen_to_notices(int peer) {
  // The memory outlives the receive also if this function throws.
  Notice& notice = incoming_[peer];
  while (true) {
    GlooWork work;
    {
      const std::lock_guard lock(mutex_);
      if (closing_) return;
      work =
          gloo_receive(*control_, reinterpret_cast<std::byte*>(&notice), sizeof(notice), peer, 0);
      listening_[peer] = work;
    }
    if (!work->wait(kForever)) return;  // The destructor has interrupted it.
    take(notice, peer);
  }
}

void C10dAbortChannel::take(const Notice& notice, int peer) {
  switch (notice.kind) {
    case NoticeKind::Failure:
      // Before the failure is known: who wakes of it asks whether the rank told so itself.
      if (notice.rank == peer) set_failed(peer);
      // The rank that found it has told all others itself, so nothing is passed on but by ranks
      // that leave: else they might be known to have left sooner than why.
      record(notice.rank, notice.text.data());
      break;
    case NoticeKind::PassedOn:
      set_failed(notice.rank);
      record(notice.rank, notice.text.data());
      break;
    case NoticeKind::Left: {
      const std::lock_guard lock(mutex_);
      peers_[peer].left = true;
      peers_[peer].went_on = notice.text[0] != 0;
      changed_.notify_all();
      // A rank that has left itself has told so: that is the answer.
      if (!has_left_) send({.kind = NoticeKind::Heard, .rank = control_->getRank()}, {peer});
      break;
    }
    case NoticeKind::Heard: {
      const std::lock_guard lock(mutex_);
      peers_[peer].heard = true;
      changed_.notify_all();
      break;
    }
    case NoticeKind::Ask:
      if (!raised()) {
        send_single(answers_[peer],
                    {.kind = NoticeKind::Answer,
                     .rank = control_->getRank(),
                     .text = to_bytes(heartbeat_.take())},
                    peer);
      }
      break;
    case NoticeKind::Answer: {
      const std::lock_guard lock(mutex_);
      peers_[peer].owes_answer = false;
    }
      hooks_.on_answer(peer, heartbeat_of(notice.text));
      break;
    case NoticeKind::Leaving:
      break;  // Another engine's.
  }
}

void C10dAbortChannel::set_failed(int rank) {
  const std::lock_guard lock(mutex_);
  peers_[rank].failed = true;
  changed_.notify_all();
}

void C10dAbortChannel::ask(int rank) {
  {
    const std::lock_guard lock(mutex_);
    if (raised() || peers_[rank].owes_answer || closing_) return;
    peers_[rank].owes_answer = true;
  }
  send_single(asks_[rank], {.kind = NoticeKind::Ask, .rank = control_->getRank()}, rank);
}

// The one before was received, so its work is over, or about to be.
void C10dAbortChannel::send_single(Single& single, const Notice& notice, int peer) {
  try {
    if (single.work) single.work->wait(kForever);
    const std::lock_guard lock(mutex_);
    single.notice = notice;
    single.work =
        gloo_send(*control_, reinterpret_cast<std::byte*>(&single.notice), sizeof(Notice), peer, 0);
  } catch (const std::exception&) {
    // A connection that is closed: the thread of that peer tells what it means.
  }
}

// A rank that leaves because it has failed tells the failure first: peers that have heard of all
// that they left have ended well.
void C10dAbortChannel::tell_left(bool went_on) {
  wants_heard_ = true;
  send_left(went_on);
}

void C10dAbortChannel::send_left(bool went_on) {
  const std::lock_guard order(order_);
  Notice notice{.kind = NoticeKind::Left, .rank = control_->getRank()};
  notice.text[0] = static_cast<char>(went_on);
  const std::lock_guard lock(mutex_);
  has_left_ = true;
  // The notice of another rank may come later than this one, on a connection of its own.
  if (raised() && failed_rank_ != control_->getRank()) {
    Notice failure = Notice::failure(failed_rank_, text_);
    if (peers_[failed_rank_].failed) failure.kind = NoticeKind::PassedOn;
    std::vector<int> others = peers();
    std::erase(others, failed_rank_);
    send(failure, others);
  }
  send(notice, peers());
}

void C10dAbortChannel::leave() {
  send_left(false);
  std::unique_lock lock(mutex_);
  // Ranks that still work are waited for as long as they need: their own deadlines end them.
  changed_.wait(lock,
                [&] { return raised() || all_peers([](const Peer& peer) { return peer.left; }); });
}

}  // namespace armillary::comm

// Notices of failure and of leaving. Each peer has a thread that waits for its notices, because
// Gloo tells of a message, and of a connection that closed, only to a thread that waits.
#include "armillary/comm/c10d/alarm.h"

#include <algorithm>
#include <utility>

namespace armillary::comm {
namespace {

// Notices that were sent last are given so long to leave this process.
constexpr std::chrono::seconds kFlush(1);

}  // namespace

C10dAlarm::C10dAlarm(GlooBackend control, std::function<void()> on_raise)
    : control_(std::move(control)), on_raise_(std::move(on_raise)) {
  incoming_.resize(control_->getSize());
  listening_.resize(control_->getSize());
  for (int peer = 0; peer < control_->getSize(); ++peer) {
    if (peer != control_->getRank()) threads_.emplace_back([this, peer] { listen(peer); });
  }
}

C10dAlarm::~C10dAlarm() {
  // A peer that is there receives at once; one that is gone ends the wait with an error.
  const auto end = std::chrono::steady_clock::now() + kFlush;
  for (Outgoing& out : outgoing_) {
    for (const GlooWork& work : out.works) {
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

bool C10dAlarm::record(int rank, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (raised()) return false;
    failed_rank_ = rank;
    text_ = reason;
    raised_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  on_raise_();
  return true;
}

void C10dAlarm::raise(int rank, const std::string& reason) {
  if (!record(rank, reason)) return;
  // A reason that is too long is cut: its end is a zero.
  Notice notice{.kind = Kind::Failure, .rank = rank};
  std::copy_n(reason.begin(), std::min(reason.size(), notice.reason.size() - 1),
              notice.reason.begin());
  send_to_all(notice);
}

bool C10dAlarm::wait_raised(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [&] { return raised(); });
}

CommError C10dAlarm::error() const {
  return CommError(fmt::format("rank {} failed: {}", failed_rank_, text_));
}

void C10dAlarm::send_to_all(const Notice& notice) {
  // The list keeps the notice in its place, from which Gloo sends it.
  const std::lock_guard lock(mutex_);
  Outgoing& out = outgoing_.emplace_back(Outgoing{notice, {}});
  for (int peer = 0; peer < control_->getSize(); ++peer) {
    if (peer == control_->getRank()) continue;
    try {
      out.works.push_back(
          gloo_send(*control_, reinterpret_cast<std::byte*>(&out.notice), sizeof(Notice), peer, 0));
    } catch (const std::exception&) {
      // A connection that is closed: the thread of that peer tells what it means.
    }
  }
}

// A process that is gone has closed its connections: the operating system does it if the process
// could not. A peer that left has told so before, and its thread has ended.
void C10dAlarm::listen(int peer) {
  try {
    listen_to_notices(peer);
  } catch (const std::exception&) {
    raise(peer, "its connection closed: the process has ended, or the network is down");
  }
}

void C10dAlarm::listen_to_notices(int peer) {
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
    {
      const std::lock_guard lock(mutex_);
      if (notice.kind == Kind::Left) {
        ++peers_left_;
        changed_.notify_all();
        return;
      }
    }
    // The rank that sent it has told all others itself, so nothing is passed on.
    record(notice.rank, notice.reason.data());
  }
}

void C10dAlarm::leave() {
  send_to_all({.kind = Kind::Left, .rank = control_->getRank()});
  std::unique_lock lock(mutex_);
  // Ranks that still work are waited for as long as they need: their own deadlines end them.
  changed_.wait(lock, [&] { return raised() || peers_left_ + 1 == control_->getSize(); });
}

}  // namespace armillary::comm

// group_peer_wait.h: peer_wait.h on engines whose groups watch their peers. Internal to comm.
#pragma once

#include <chrono>
#include <optional>
#include <utility>

#include "armillary/comm/liveness/heartbeat.h"
#include "armillary/comm/peer_wait.h"

namespace armillary::comm {

/// A wait on an engine whose Group has watch_peers(rank, wait, options, begin).
template <class Group>
class GroupPeerWait : public PeerWait {
 public:
  GroupPeerWait(Group& group, int rank, PeerWaitOptions options)
      : group_(group), rank_(rank), options_(std::move(options)) {}

  void look() override {
    // Most waits are over before the first look at the peers.
    const double waited_s = seconds_of(std::chrono::steady_clock::now()) - begin_s_;
    if (waited_s >= Watch::interval_of(options_.timeout_s) / 2) {
      group_.watch_peers(rank_, wait_, options_, begin_s_);
    }
  }

 private:
  Group& group_;
  const int rank_;
  const PeerWaitOptions options_;
  const double begin_s_ = seconds_of(std::chrono::steady_clock::now());
  std::optional<LongWait> wait_;
};

}  // namespace armillary::comm

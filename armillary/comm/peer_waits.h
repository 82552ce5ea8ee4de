// peer_waits.h: waits for peers beside the messages of a group: those for NCCL, whose messages its
// host's group does not see, and those of ranks that sleep until a message comes (bench).
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "armillary/comm/pulse.h"

namespace armillary::comm {

/// A wait, as long as the object lives. One at a time, on the rank's thread.
class PeerWait {
 public:
  struct Options {
    std::vector<int> peers;  ///< Ranks of the group; empty: the wait never expires.
    double timeout_s = 60;
    std::function<std::string()> describe;  ///< "wait: .. not done", for the text of a failure.
  };
  PeerWait() = default;
  PeerWait(const PeerWait&) = delete;
  PeerWait& operator=(const PeerWait&) = delete;
  virtual ~PeerWait() = default;

  /// Fails the group if a peer is silent for the timeout, by itself and through those that it waits
  /// for. To be called again and again; does not throw for the failure.
  virtual void look() = 0;
};

/// The way to begin one, which the engine keeps with the communicator of all ranks
/// (Communicator::attachment).
struct PeerWaits {
  std::function<std::unique_ptr<PeerWait>(PeerWait::Options)> begin;
};

/// A wait on an engine whose Group has watch_peers(rank, wait, options, begin).
template <class Group>
class GroupPeerWait : public PeerWait {
 public:
  GroupPeerWait(Group& group, int rank, Options options)
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
  const Options options_;
  const double begin_s_ = seconds_of(std::chrono::steady_clock::now());
  std::optional<LongWait> wait_;
};

}  // namespace armillary::comm

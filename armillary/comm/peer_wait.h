// peer_wait.h: a wait for peers beside the messages of a group: for NCCL, whose messages its host's
// group does not see, and for ranks that sleep until a message comes (bench).
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace armillary::comm {

/// One wait.
struct PeerWaitOptions {
  std::vector<int> peers;  ///< Ranks of the group; empty: the wait never expires.
  double timeout_s = 60;
  std::function<std::string()> describe;  ///< "wait: .. not done", for the text of a failure.
};

/// A wait, as long as the object lives (Communicator::begin_peer_wait). One at a time, on the
/// rank's thread.
class PeerWait {
 public:
  PeerWait() = default;
  PeerWait(const PeerWait&) = delete;
  PeerWait& operator=(const PeerWait&) = delete;
  virtual ~PeerWait() = default;

  /// Fails the group if a peer is silent for the timeout, by itself and through those that it waits
  /// for. To be called again and again; does not throw for the failure.
  virtual void look() = 0;
};

}  // namespace armillary::comm

// rank.h: the state that all groups of one rank share: its GPU, its host group, and its failure.
// Internal to nccl.h.
//
//   group of all ----- lanes 0 .. 7 --.
//   made by split() -- lanes 0 .. 7 --+--> NcclRank: makes progress on all, aborts all at once
//   lanes that end -------------------'
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "armillary/comm/nccl.h"
#include "armillary/comm/nccl/api.h"
#include "armillary/comm/nccl/lanes.h"
#include "armillary/comm/peer_wait.h"

namespace armillary::comm {

/// One rank, on the thread that made it.
class NcclRank {
 public:
  /// Takes the device of options, which are legal. `host` is the group of all ranks.
  NcclRank(NcclApi& api, Communicator& host, const NcclOptions& options);
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;
  /// Aborts all communicators that have not ended, and returns when NCCL has freed them.
  ~NcclRank();

  NcclApi& api() const { return api_; }
  Communicator& host() const { return host_; }
  const NcclOptions& options() const { return options_; }
  int device() const { return options_.device; }

  /// Lanes between the ranks of `part`, which is the host group or was made of it. Collective over
  /// `part`. @throws CommError if a rank does not come by the deadline of `part`.
  NcclLanes& make_lanes(Communicator& part);
  /// Ends lanes that nobody uses any more, without waiting for the other ranks.
  void end_lanes(NcclLanes& lanes);

  /// Makes progress on the lanes of all groups. @throws CommError if the group has failed.
  void progress();
  /// @throws CommError if the group has failed, after all communicators are aborted.
  void throw_if_failed();
  /// Fails the group with this text, in the name of this rank, and throws.
  [[noreturn]] void fail_group(const std::string& reason);
  /// Calls functions of the libraries. An error of theirs fails the group; the reason of another
  /// rank, which often is what NCCL noticed, comes first if it is told soon.
  void call(const std::function<void()>& functions);
  /// Waits until `is_over` is true, with progress between two looks. If a peer of the wait, a rank
  /// of host(), is silent for the timeout, the group fails.
  void wait_until(const std::function<bool()>& is_over, PeerWaitOptions wait);
  /// Whether work of this rank waits for progress(), so that a wait must not do without it.
  bool needs_progress() const;
  /// Aborts all communicators, so that no memory is touched any more. Does nothing the second time.
  void abort_lanes() noexcept;
  /// Returns when all ranks have called it, with all lanes ended. @throws CommError if one failed.
  void leave();

 private:
  NcclApi& api_;
  Communicator& host_;
  NcclOptions options_;
  bool aborted_ = false;
  std::vector<std::unique_ptr<NcclLanes>> lanes_;  ///< In use, and on their way to their end.
  std::thread abort_;  ///< Frees communicators after an abort, which takes NCCL up to a second.
};

}  // namespace armillary::comm

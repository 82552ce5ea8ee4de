// split_communicator.h: a group made of some ranks of another group, which carries its messages.
// Internal to comm: the default of Communicator::split.
//
//   group of all    rank 0  1  2  3  4  5     lanes 0 .. 31
//   made of it      rank    0     1     2     lanes 0 .. 31, which are lanes 32 .. 63 of all
//
// Groups that share a rank have different lanes of the group that was split first, so their
// messages do not meet. Lanes are taken in blocks and given back with the group, to groups that are
// made when all their ranks have given them back. So whoever sends in a group that ends must be
// received from: a message that nobody received would meet a receive of the next group.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/comm/lane_blocks.h"
#include "armillary/comm/peer_wait.h"

namespace armillary::comm {

/// One rank's end of a group that was made by splitting. `root` is the group that was split first,
/// also if this group is a part of a part: rank i is rank ranks[i] of `root`, and lane j is its
/// lane j of a block. It adds no state of its own to messages: requests are those of `root`, and so
/// are failures.
class SplitCommunicator : public Communicator {
 public:
  /// Takes the block, and gives it back at its end; block 0, which is the root's, is for groups of
  /// one rank, which send nothing.
  SplitCommunicator(Communicator& root, std::vector<int> ranks, int rank, int block,
                    double timeout_s)
      : Communicator(rank, static_cast<int>(ranks.size()), timeout_s, root.lanes(), &root),
        ranks_(std::move(ranks)),
        block_(block) {
    if (block_ > 0) root.lane_blocks().take(block_);
  }

  ~SplitCommunicator() override {
    if (block_ > 0) root().lane_blocks().give_back(block_);
  }

  int root_rank(int rank) const override { return ranks_[rank]; }
  bool shares_process() const override { return root().shares_process(); }
  std::unique_ptr<PeerWait> begin_peer_wait(PeerWaitOptions wait) override {
    for (int& peer : wait.peers) peer = ranks_[peer];
    return root().begin_peer_wait(std::move(wait));
  }
  void throw_if_failed() override { root().throw_if_failed(); }
  void abort(const std::string& reason) noexcept override { root().abort(reason); }

 private:
  void do_start(std::span<const Message> batch, std::span<Request> requests) override;
  bool do_is_complete(const Pending& request) override { return root().do_is_complete(request); }
  std::size_t do_wait_any(std::span<const Request> requests, double timeout_s) override {
    return root().do_wait_any(requests, timeout_s);
  }
  void do_give_back(const Pending& request) override { root().do_give_back(request); }
  bool takes(int device) const override { return root().takes(device); }
  std::string taken_memory() const override { return root().taken_memory(); }

  const std::vector<int> ranks_;
  const int block_;
  std::vector<Message> translated_;  ///< The batch that is being started, in terms of the root.
};

/// A group of this rank alone, which sends nothing and fails with `group`. It must not outlive the
/// root of both.
std::unique_ptr<Communicator> group_of_one(Communicator& group);

}  // namespace armillary::comm

// split.h: a group made of some ranks of another group, which carries its messages. Internal to
// comm: the default of Communicator::split.
//
//   group of all    rank 0  1  2  3  4  5     lanes 0 .. 31
//   made of it      rank    0     1     2     lanes 0 .. 31, which are lanes 32 .. 63 of all
//
// Groups that share a rank have different lanes of the group that was split first, so their
// messages do not meet. Lanes are never reused.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/comm/peer_waits.h"

namespace armillary::comm {

/// One rank's end of a group that was made by splitting. `root` is the group that was split first,
/// also if this group is a part of a part: rank i is rank ranks[i] of `root`, and lane j is its
/// lane first_lane + j. It adds no state of its own to messages: requests are those of `root`, and
/// so are failures.
class SplitCommunicator : public Communicator {
 public:
  SplitCommunicator(Communicator& root, std::vector<int> ranks, int rank, int first_lane,
                    double timeout_s)
      : Communicator(rank, static_cast<int>(ranks.size()), timeout_s, root.lanes()),
        root_(root),
        ranks_(std::move(ranks)),
        first_lane_(first_lane) {
    attachment<PeerWaits>().begin = [this](PeerWait::Options wait) {
      for (int& peer : wait.peers) peer = ranks_[peer];
      return root_.attachment<PeerWaits>().begin(std::move(wait));
    };
  }

  std::unique_ptr<Communicator> split(int color, int key) override;
  bool shares_process() const override { return root_.shares_process(); }
  void throw_if_failed() override { root_.throw_if_failed(); }
  void abort(const std::string& reason) noexcept override { root_.abort(reason); }

 private:
  void do_start(std::span<const Message> batch, std::span<Request> requests) override;
  bool do_done(const Pending& request) override { return root_.do_done(request); }
  std::size_t do_wait_any(std::span<const Request> requests, double timeout_s) override {
    return root_.do_wait_any(requests, timeout_s);
  }
  void do_give_back(const Pending& request) override { root_.do_give_back(request); }
  bool takes(int device) const override { return root_.takes(device); }
  std::string taken_memory() const override { return root_.taken_memory(); }

  Communicator& root_;
  const std::vector<int> ranks_;
  const int first_lane_;
  std::vector<Message> translated_;  ///< The batch that is being started, in terms of `root_`.
};

/// Communicator::split for `comm`, whose rank i is rank ranks[i] of `root`. Collective over `comm`.
/// @throws CommError if lane numbers are used up.
std::unique_ptr<Communicator> split_group(Communicator& comm, Communicator& root,
                                          const std::vector<int>& ranks, int color, int key);

}  // namespace armillary::comm

// split.h: a group of some ranks of another, which carries its messages. Internal to comm.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"

namespace armillary::comm {

/// The end that `root`, the group that was split first, has of a group made of its `ranks`: rank i
/// is ranks[i], lane j is first_lane + j.
class SplitCommunicator : public Communicator {
 public:
  SplitCommunicator(Communicator& root, std::vector<int> ranks, int rank, int first_lane,
                    double timeout_s)
      : Communicator(rank, static_cast<int>(ranks.size()), timeout_s, root.lanes()),
        root_(root),
        ranks_(std::move(ranks)),
        first_lane_(first_lane) {}

  std::unique_ptr<Communicator> split(int color, int key) override;
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

  Communicator& root_;
  const std::vector<int> ranks_;
  const int first_lane_;
  std::vector<Message> translated_;  ///< Of the batch that is being started.
};

/// The part of `comm`, whose rank i is ranks[i] of `root`, that calls with this color.
std::unique_ptr<Communicator> split_group(Communicator& comm, Communicator& root,
                                          const std::vector<int>& ranks, int color, int key);

}  // namespace armillary::comm

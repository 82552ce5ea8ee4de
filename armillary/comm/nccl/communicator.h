// communicator.h: one rank's end of a group of NCCL, the first one or one made by split(). Internal
// to nccl.h.
//
//   messages of device memory, and without bytes ---------------> NcclLanes
//   messages with bytes in host memory, or with a label alone --> the host group of the same ranks
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/comm/nccl/rank.h"

namespace armillary::comm {

/// Requests are those of the host group, or NcclPending. Error texts of messages name ranks and
/// lanes of this group.
class NcclCommunicator : public Communicator {
 public:
  /// Collective over `part`, the host group of these ranks, which must outlive this object.
  NcclCommunicator(NcclRank& rank, Communicator& part);
  /// The same, split off `root`, with a part that it owns.
  NcclCommunicator(NcclRank& rank, std::unique_ptr<Communicator> part, Communicator& root);
  ~NcclCommunicator() override;

  std::unique_ptr<Communicator> split(int color, int key) override;
  int root_rank(int rank) const override { return lanes_.on_host({rank}).front(); }
  std::unique_ptr<PeerWait> begin_peer_wait(PeerWaitOptions wait) override;
  void throw_if_failed() override { rank_.throw_if_failed(); }
  void abort(const std::string& reason) noexcept override { rank_.host().abort(reason); }

  /// Runs a collective on kCollectiveLane until it is done, or has missed the deadline.
  /// `operation` is its name for the text.
  void run(const char* operation, std::function<void(NcclComm, GpuStream)> collective);
  NcclApi& api() const { return rank_.api(); }

 private:
  void do_start(std::span<const Message> batch, std::span<Request> requests) override;
  bool do_is_complete(const Pending& request) override;
  std::size_t do_wait_any(std::span<const Request> requests, double timeout_s) override;
  bool takes(int device) const override { return device == kHost || device == rank_.device(); }
  std::string taken_memory() const override;
  std::unique_ptr<Collectives> make_collectives() override;

  /// Ranks of the host group that the requests wait for.
  std::vector<int> peers_on_host(std::span<const Request> requests) const;
  /// Whether it is done, without progress of NCCL.
  bool is_over(const Pending& request);

  NcclRank& rank_;
  const std::unique_ptr<Communicator> owned_part_;
  Communicator& part_;
  NcclLanes& lanes_;
};

}  // namespace armillary::comm

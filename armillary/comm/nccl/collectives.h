// collectives.h: the collectives of NCCL, for arrays on the device. Internal to nccl.h.
#pragma once

#include "armillary/comm/collectives.h"

namespace armillary::comm {

class NcclCommunicator;

/// Arrays in host memory are exchanged by messages of the host group, as by default. Before those
/// on the device move, ranks agree on the call by a barrier of the host group. The sums of NCCL
/// have an order of their own: it is the same in every run on the same machines, but it is not that
/// of the ranks, and 16-bit floats may be rounded after each addition. @throws InvalidArgument from
/// every function if one array is on the device and the other is not.
class NcclCollectives : public Collectives {
 public:
  explicit NcclCollectives(NcclCommunicator& comm);

  void all_reduce(const Array& values, Reduction reduction) override;
  void reduce_scatter(const Array& all, const Array& mine, Reduction reduction) override;
  void all_gather(const Array& mine, const Array& all) override;
  void all_to_all(const Array& outgoing, const Array& incoming) override;
  void broadcast(const Array& values, int root) override;

 private:
  NcclCommunicator& nccl_;
};

}  // namespace armillary::comm

// pending.h: the handle of a message under way through NCCL. Internal to nccl.h.
#pragma once

#include <cstdint>

#include "armillary/comm/communicator.h"

namespace armillary::comm {

class NcclLanes;

/// A send or a receive of this rank. It is done when the work of its lane with that number is.
class NcclPending : public Pending {
 public:
  NcclPending(NcclLanes& lanes, const Message& message, std::int64_t bytes, std::uint64_t work)
      : Pending(message, bytes), lanes_(lanes), work_(work) {}
  /// Withdraws a message that is not done.
  ~NcclPending() override;

  NcclLanes& lanes() const { return lanes_; }
  bool is_complete() const;

 private:
  NcclLanes& lanes_;
  const std::uint64_t work_;
};

}  // namespace armillary::comm

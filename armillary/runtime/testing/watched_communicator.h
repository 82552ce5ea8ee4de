// watched_communicator.h: for tests that look at the messages of plans.
#pragma once

#include "armillary/comm/collectives.h"
#include "armillary/comm/watched_communicator.h"

namespace armillary::runtime {

using comm::WatchedCommunicator;

/// Whether a message carries a part of a tile. Lanes of plans are those between the lane of
/// collectives and the last lane, which agreement uses.
inline bool is_of_a_plan(const comm::Communicator& comm, const comm::Message& message) {
  return message.lane > comm::kCollectiveLane && message.lane < comm.lanes() - 1;
}

}  // namespace armillary::runtime

// solo.h: a group of one rank, for callers that have no group. It has nobody to send to.
#pragma once

#include <memory>

#include "armillary/comm/communicator.h"

namespace armillary::comm {

/// A world of 1 that lives as long as the object. Threads: one at a time.
std::unique_ptr<Communicator> make_solo();

}  // namespace armillary::comm

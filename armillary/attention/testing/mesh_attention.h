// mesh_attention.h: attention on one axis of a 2 x 2 mesh beside sums over the other, for tests on
// every engine.
#pragma once

#include <string>

#include "armillary/comm/communicator.h"

namespace armillary::attention {

/// A difference in so many steps from attention of each replica alone, or from the sum; empty for
/// none. Requires 4 ranks.
std::string attend_beside_sums(comm::Communicator& world, int steps);

}  // namespace armillary::attention

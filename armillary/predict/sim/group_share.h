// group_share.h: a cluster as one of several groups of devices has it that do the same at once.
//
//   node of 8, 2 groups     devices 0 2 4 6 | 1 3 5 7
//   what group 0 sees       a node of 4, on the switches that its devices are on; of a link that
//                           both groups use, half
#pragma once

#include "armillary/predict/sim/cluster.h"

namespace armillary::sim {

/// The share of one group if every `groups`-th device of a node is in it, as the ranks of one
/// tensor-parallel index are. Device i of the result is device i * groups of the cluster. A link
/// loses capacity to the other groups that have devices behind the end with fewer groups behind it:
/// exact if links form a tree, or a mesh of devices. Requires that `groups` divides
/// devices_per_node.
Cluster group_share(Cluster cluster, int groups);

}  // namespace armillary::sim

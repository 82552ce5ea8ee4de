// group_share.cpp: groups that do the same at once share each link evenly, so a cluster for one of
// them has the same links with a part of their capacity.
#include "armillary/predict/sim/group_share.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "armillary/core/error.h"
#include "armillary/predict/sim/link_names.h"

namespace armillary::sim {
namespace {

/// Most groups that have devices behind one end of a link. Groups alternate from device to device.
int groups_behind(const LinkName& end, int per_node, int groups) {
  if (end.is_device()) return 1;
  std::map<std::string, std::set<int>> behind;
  for (int i = 0; i < per_node; ++i) {
    behind[end.at({.n = 0, .i = i, .j = i})].insert(i % groups);
  }
  std::size_t most = 0;
  for (const auto& [name, result] : behind) most = std::max(most, result.size());
  return static_cast<int>(most);
}

}  // namespace

Cluster group_share(Cluster cluster, int groups) {
  ARMILLARY_CHECK(groups >= 1 && cluster.devices_per_node % groups == 0);
  if (groups == 1) return cluster;
  for (LinkRule& link : cluster.links) {
    LinkName from("", link.from);
    LinkName to("", link.to);
    const int sharing = std::min(groups_behind(from, cluster.devices_per_node, groups),
                                 groups_behind(to, cluster.devices_per_node, groups));
    link.bytes_per_s /= sharing;
    link.burst_bytes /= sharing;
    link.from = from.with_spacing(groups);
    link.to = to.with_spacing(groups);
  }
  cluster.devices_per_node /= groups;
  return cluster;
}

}  // namespace armillary::sim

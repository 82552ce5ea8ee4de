// collectives_over_hosts.h: started gathers and sums in two levels, for groups with as many ranks
// on each of several hosts. Internal to comm.
//
//   2 hosts   0 1 | 2 3     sum      0 <-> 1, 2 <-> 3    then    0 <-> 2, 1 <-> 3
//                           gather   0 <-> 2, 1 <-> 3    then    0 <-> 1, 2 <-> 3
//
// H hosts with h ranks each send (H - 1)/H of all bytes from each host, where one level sends h
// times as much; each rank sends as much as with one level.
#pragma once

#include <vector>

#include "armillary/comm/array.h"
#include "armillary/comm/communicator.h"
#include "armillary/comm/reduce.h"
#include "armillary/comm/started_collective.h"

namespace armillary::comm {

/// The ranks of a group by host, hosts in the order of their first ranks, ranks ascending.
struct HostGrid {
  std::vector<std::vector<int>> ranks;  ///< By host and index on it.
  std::vector<int> host, index;         ///< By rank.
  /// Whether several hosts have as many ranks each, several too.
  bool has_levels() const;
};
HostGrid host_grid(const Communicator& comm);

/// The arrays of a sum: a part for each rank, and the place of that of this rank.
struct ScatterArrays {
  std::vector<Array> parts;
  Array mine;
  Reduction reduction = Reduction::Sum;
};

// Both fill in a collective that has its label, and start it. Messages have that label, also those
// without bytes to the neighbours of the ring, which find ranks that call differently (exchange.h).

/// Fills the parts, of which that of this rank is there.
void start_gather_over_hosts(Communicator& comm, const HostGrid& hosts,
                             const std::vector<Array>& parts, StartedCollective& collective);

/// Sums over the ranks of each host in rank order, then over hosts in order. The dtype of all is
/// one, of 4 or 8 bytes. Extra memory: P - 1 parts.
void start_scatter_over_hosts(Communicator& comm, const HostGrid& hosts,
                              const ScatterArrays& arrays, StartedCollective& collective);

}  // namespace armillary::comm

// wait_graph.h: the ranks that each rank waits for, and walks along these edges. Internal to
// diagnosis.h.
#pragma once

#include <vector>

#include "armillary/host/recorder/reader.h"

namespace armillary::recorder {

/// Numbers of ranks.
using Ranks = std::vector<int>;
/// By rank: the ranks that it waits for, ascending. A rank that waits for nobody is *free*.
using WaitGraph = std::vector<Ranks>;

/// The edges of a run. A rank without a file, or one that has ended well, is free.
WaitGraph wait_graph(const RecordedRun& run);

/// Whether the rank waits until all ranks of a group have come to the same place.
bool waits_for_all(const Flight& flight);

/// By rank: whether one of `targets` is reached from it. Targets reach themselves.
/// Cost: each edge once.
std::vector<bool> reaching(const WaitGraph& graph, const Ranks& targets);

/// Ranks that wait for each other, each for the next and the last for the first; empty if a free
/// rank is reached from every rank.
Ranks find_cycle(const WaitGraph& graph);

/// These ranks and all that they wait for, directly or not, ascending.
Ranks reached_from(const WaitGraph& graph, const Ranks& from);

}  // namespace armillary::recorder

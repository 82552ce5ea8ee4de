// Ranks that wait for all others of a group are compared by their position: the step, the activity
// in it, and the call. Such a rank waits for those of the group that are behind it, or, if all have
// come, for the others that wait beside it: they hold each other up.
#include "armillary/host/recorder/wait_graph.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "armillary/host/recorder/diagnosis.h"

namespace armillary::recorder {
namespace {

/// Progress of a rank in the order in which all ranks make it.
auto position(const Flight& flight) {
  return std::tuple(flight.work.step, flight.work.activity_number, flight.work.call);
}

/// The group that a rank waits for; null for all ranks of the run.
const Ranks* group_of(const Flight& flight) {
  return flight.ranks_of(flight.wait == Wait::None ? flight.work.group : flight.wait_group);
}

/// Whether `other` waits for a group that `own` is in, at the same place as `own`.
bool is_beside(const Flight& other, const Flight& own) {
  if (!waits_for_all(other) || position(other) != position(own) || other.wait != own.wait) {
    return false;
  }
  const Ranks* const group = group_of(other);
  return group == nullptr || std::ranges::binary_search(*group, own.rank);
}

/// Whether a rank has yet to come to the place where `own` waits for its group.
bool is_behind(const std::optional<Flight>& other, const Flight& own) {
  if (!other || other->end == End::Done) return true;
  if (position(*other) != position(own)) return position(*other) < position(own);
  return !is_beside(*other, own);
}

/// Peers of the messages under way, each once.
Ranks peers_of_messages(const Flight& own) {
  Ranks peers;
  for (const RecordedOp& message : messages_of(own)) peers.push_back(message.op.peer);
  std::ranges::sort(peers);
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

/// The ranks for which a rank waits that waits for a group: those of it that are behind, or else
/// those beside it.
Ranks late_ranks(const RecordedRun& run, const Flight& own) {
  Ranks all(static_cast<std::size_t>(own.world));
  std::iota(all.begin(), all.end(), 0);
  const Ranks* const group = group_of(own);
  Ranks behind;
  Ranks beside;
  for (const int rank : group == nullptr ? all : *group) {
    if (rank == own.rank) continue;
    const std::optional<Flight>& other = run.flights[rank];
    if (is_behind(other, own)) behind.push_back(rank);
    if (other && is_beside(*other, own)) beside.push_back(rank);
  }
  return behind.empty() ? beside : behind;
}

}  // namespace

bool waits_for_all(const Flight& flight) {
  if (flight.wait == Wait::Agreement || flight.wait == Wait::Proof) return true;
  return flight.wait == Wait::None && flight.work.collective &&
         std::ranges::all_of(flight.ops, &RecordedOp::complete);
}

WaitGraph wait_graph(const RecordedRun& run) {
  WaitGraph graph;
  for (const std::optional<Flight>& own : run.flights) {
    Ranks& peers = graph.emplace_back();
    if (!own || own->end == End::Done) continue;
    if (own->wait == Wait::Messages) {
      peers = peers_of_messages(*own);
    } else if (waits_for_all(*own)) {
      peers = late_ranks(run, *own);
    }
  }
  return graph;
}

std::vector<bool> reaching(const WaitGraph& graph, const Ranks& targets) {
  WaitGraph waiters(graph.size());
  for (std::size_t rank = 0; rank < graph.size(); ++rank) {
    for (const int peer : graph[rank]) waiters[peer].push_back(static_cast<int>(rank));
  }
  // From the targets backwards.
  std::vector<bool> reached(graph.size(), false);
  Ranks open = targets;
  for (const int rank : targets) reached[rank] = true;
  while (!open.empty()) {
    const int rank = open.back();
    open.pop_back();
    for (const int waiter : waiters[rank]) {
      if (reached[waiter]) continue;
      reached[waiter] = true;
      open.push_back(waiter);
    }
  }
  return reached;
}

Ranks find_cycle(const WaitGraph& graph) {
  Ranks free;
  for (std::size_t rank = 0; rank < graph.size(); ++rank) {
    if (graph[rank].empty()) free.push_back(static_cast<int>(rank));
  }
  const std::vector<bool> reaches_free = reaching(graph, free);
  const auto stuck = std::ranges::find(reaches_free, false);
  if (stuck == reaches_free.end()) return {};
  // All edges of such a rank lead to others of them, so a walk comes to one of its ranks again.
  Ranks path;
  auto rank = static_cast<int>(stuck - reaches_free.begin());
  auto again = path.end();
  while ((again = std::ranges::find(path, rank)) == path.end()) {
    path.push_back(rank);
    rank = graph[rank].front();
  }
  return {again, path.end()};
}

Ranks reached_from(const WaitGraph& graph, const Ranks& from) {
  Ranks reached = from;
  std::vector<bool> is_reached(graph.size(), false);
  for (const int rank : from) is_reached[rank] = true;
  for (std::size_t i = 0; i < reached.size(); ++i) {
    for (const int peer : graph[reached[i]]) {
      if (is_reached[peer]) continue;
      is_reached[peer] = true;
      reached.push_back(peer);
    }
  }
  std::ranges::sort(reached);
  return reached;
}

}  // namespace armillary::recorder
